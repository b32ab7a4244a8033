"""What this device sustains: matrix products of the model's own shapes in bf16 and FP8, and copies.

    python -m experiments.benchmark_rates [--overlay O]… [--rounds N] [key.path=value …]

These are the rates that models/gpus.py calls sustained; a product is 2 M N K FLOPs. At the published size 20 rounds
take 11 s without a pause: long enough for a power limit to lower the clock, for all products alike, and too short for a
temperature limit.
"""

from collections.abc import Callable

import torch

from experiments.jobs.exit_codes import complain, leave
from experiments.profiling import calls
from experiments.training import preflight
from models import device, float8, flops
from models.errors import InputError

COPIED = {"cuda": 2 << 30, "cpu": 64 << 20}  # bytes: far more than any cache


def main(argv: list[str] | None = None) -> int:
    try:
        config, rounds = calls.parse("benchmark_rates", argv, rounds=20)
        model = preflight.model_args(config)
    except InputError as error:
        return complain(error)
    tokens = config.training.seq_len * config.training.local_batch_size
    shapes = sorted({(tokens, n, k) for n, k in flops.linear_shapes(model).values()})
    work = {f"bf16 {m} x {n} x {k}": (_bf16(m, n, k), 2 * m * n * k, "TFLOP/s") for m, n, k in shapes}
    if float8.product(device.TYPE, "tensorwise", emulate=False).how != float8.EMULATED:
        work |= {f"FP8  {m} x {n} x {k}": (_fp8(m, n, k), 2 * m * n * k, "TFLOP/s") for m, n, k in shapes}
    work["copy"] = (_copy(COPIED[device.TYPE]), 2 * COPIED[device.TYPE], "TB/s")
    seconds = calls.median_seconds({name: call for name, (call, *_) in work.items()}, rounds)
    print(f"{device.name()}, torch {torch.__version__}")
    for name, (_, amount, unit) in work.items():
        print(f"{name:<32}{amount / seconds[name] / 1e12:>9.3f} {unit}")
    return 0


def _bf16(m: int, n: int, k: int) -> Callable:
    a, b = (torch.randn(*size, dtype=torch.bfloat16, device=device.TYPE) for size in ((m, k), (n, k)))
    return lambda: a @ b.t()


def _fp8(m: int, n: int, k: int) -> Callable:
    a, b = (torch.randn(*size, device=device.TYPE).to(torch.float8_e4m3fn) for size in ((m, k), (n, k)))
    one = torch.ones((), device=device.TYPE)
    return lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)


def _copy(size: int) -> Callable:
    source = torch.zeros(size, dtype=torch.uint8, device=device.TYPE)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


if __name__ == "__main__":
    leave(main)
