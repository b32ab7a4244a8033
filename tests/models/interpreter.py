"""Triton's interpreter, which runs kernels on CPU tensors.

Triton has to find TRITON_INTERPRET=1 when it is imported: `run_interpreted` starts a process that
has it.
"""

import os
import sys

from tests import processes


def run_interpreted(*command: str) -> str:
    """What `python -m` prints of these words."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    return processes.run([sys.executable, "-m", *command], env=environment).stdout


def round_to_nearest() -> None:
    """The interpreter cuts bf16 off and leaves FP8's small numbers out; GPUs round to the
    nearest."""
    import torch
    from triton.runtime import interpreter

    converts = interpreter._convert_float
    formats = {
        "bf16": (torch.bfloat16, torch.int16),
        "fp8e4nv": (torch.float8_e4m3fn, torch.uint8),
        "fp8e5": (torch.float8_e5m2, torch.uint8),
    }

    def convert(data, source, target, mode):
        if str(source) != "fp32" or str(target) not in formats:
            return converts(data, source, target, mode)
        to, bits = formats[str(target)]
        return torch.from_numpy(data.copy()).to(to).view(bits).numpy()

    interpreter._convert_float = convert
