"""Describe this machine's device, and put a CPU where torchtitan expects an accelerator.

torchtitan 0.2.2 picks its device module while it is imported, and takes CUDA on a machine without a
GPU. Importing this module before torchtitan puts a CPU device there instead, and keeps out what
torchtitan imports in vain.
"""

import ctypes
import logging
import math
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or torch's profiler announces itself on stderr
import torch
import torch._inductor.config
from torch import Tensor
from torch.distributed.tensor import DTensor

from models import gpus, host_memory
from models.errors import InputError

OLDEST_TORCH = (2, 11)  # of those that this project was tried with
NEWEST_TORCH = (2, 15)

CPU_PEAK_VARIABLE = "FP8_RECIPES_CPU_PEAK"  # FLOP/s
CPU_PEAK_SIDE = 1024  # of the measured matrices
CPU_PEAK_REPEATS = 5


def parse_torch_version() -> tuple[int, int]:
    """Return torch's version, as (2, 14) of NVIDIA's 2.14.0a0+nv26.09 too."""
    major, minor = re.findall(r"\d+", torch.__version__)[:2]
    return int(major), int(minor)


def check_torch() -> None:
    """Raise `InputError` for an older torch than the oldest one."""
    if parse_torch_version() < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise InputError(
            f"torch {torch.__version__} is older than {oldest}, the oldest "
            "that this project runs with: install a newer torch, or take another Python"
        )


check_torch()

# Importing torchao warns of kernels and calls that are not used here.
for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)

TYPE = "cuda" if torch.cuda.is_available() else "cpu"

# ---- the allocator of GPU memory ----

ALLOCATOR = "PYTORCH_ALLOC_CONF"
_ALLOCATOR_NAMES = {ALLOCATOR, "PYTORCH_CUDA_ALLOC_CONF"}  # the other is its former name
_WSL = Path("/dev/dxg")  # the GPU of Windows
_CU_VIRTUAL_MEMORY = 102  # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED of CUDA's driver


def can_map_memory() -> bool:
    """Tell if torch can map a GPU's memory piece by piece, for expandable segments.

    Otherwise its first allocation would end the process: some virtual GPUs cannot map memory, under
    WSL2 the driver may refuse it (pytorch issue 192330), and torch asks NVML, which containers may
    lack.
    """
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    if not hasattr(driver, "cuMemAddressReserve") or _WSL.exists():
        return False
    supported = ctypes.c_int()
    driver.cuInit(0)
    driver.cuDeviceGetAttribute(ctypes.byref(supported), _CU_VIRTUAL_MEMORY, 0)
    return bool(supported.value)


def expand_segments() -> None:
    """Let the allocator's segments expand, as torchtitan's run_train.sh does, unless the user has
    set the allocator.

    A segment that cannot grow leaves gaps. torch reads the variable when it begins to use the GPU.
    """
    if torch.version.cuda and not _ALLOCATOR_NAMES & os.environ.keys() and can_map_memory():
        os.environ[ALLOCATOR] = "expandable_segments:True"


if TYPE == "cuda":
    expand_segments()

# ---- a CPU where torchtitan expects an accelerator ----


def _line_of(file: str, name: str) -> str:
    """Read a line `name: value` of one of Linux's files; empty if there is none.

    `name` is a pattern. Returns the value.
    """
    match = re.search(rf"^(?:{name})\s*:\s*(.*)$", Path(file).read_text(), re.MULTILINE)
    return match[1] if match else ""


def _memory_stats(device) -> dict[str, int]:
    """Read this process's peak of resident memory, in bytes.

    Not getrusage's ru_maxrss: a child starts with its parent's.
    """
    peak = int(_line_of("/proc/self/status", "VmHWM").removesuffix(" kB")) * 1024
    return {"active_bytes.all.peak": peak, "reserved_bytes.all.peak": peak}


def _no_op(*device) -> None:
    """Do nothing: a CPU needs none of these calls."""


# The part of `torch.cuda` that torchtitan's Trainer calls.
_CPU = SimpleNamespace(
    set_device=torch.cpu.set_device,
    synchronize=torch.cpu.synchronize,
    empty_cache=_no_op,
    reset_peak_memory_stats=_no_op,
    current_device=lambda: 0,
    get_device_name=lambda device: name(),
    get_device_properties=lambda device: SimpleNamespace(total_memory=memory_bytes()),
    memory_stats=_memory_stats,
)
if TYPE == "cpu":
    # torchtitan asks torch for a device while it is imported, and takes "cuda" if there is none.
    with patch.multiple(
        torch._utils,
        _get_available_device_type=lambda: TYPE,
        _get_device_module=lambda kind: _CPU,
    ):
        import torchtitan  # noqa: F401
    if platform.machine() == "x86_64":
        # Compiled code uses AVX2: in AVX-512 a SwiGLU in rowwise FP8 gave a NaN gradient of w1 on
        # an Intel Xeon (torch 2.13). It holds for all recipes, or they would not compare.
        # Delete this line once PyTorch is fixed.
        torch._inductor.config.cpp.simdlen = 256

from torchtitan.tools import utils as titan_utils  # noqa: E402

# torchtitan's own table assumes an A100 for what it lacks. Without a known peak its log says nan.
titan_utils.get_peak_flops = lambda device_name: getattr(find_peak_rates(), "bf16", math.nan)
# torchtitan's own loaders of texts are not used here, and would import `datasets` and pandas.
_no_loaders = ModuleType("torchtitan.hf_datasets.text_datasets")
vars(_no_loaders).update(build_text_dataloader=None, build_text_validation_dataloader=None)
sys.modules[_no_loaders.__name__] = _no_loaders


def allocator_retries() -> int:
    """Count how often the allocator has given its cache back to the GPU and asked again, because
    the memory was short. Each time the GPU is waited for."""
    if TYPE == "cpu":
        return 0
    return torch.cuda.memory_stats_as_nested_dict()["num_alloc_retries"]


# ---- what this machine is ----


def name() -> str:
    """Name the GPU or the processor."""
    return torch.cuda.get_device_name() if TYPE == "cuda" else cpu_name()


def cpu_name() -> str:
    """Name the processor's model, or its architecture where Linux has no name, as on ARM."""
    return _line_of("/proc/cpuinfo", "model name") or platform.machine()


def read_instruction_sets() -> list[str]:
    """List the processor's instruction sets for numerical code, by Linux's names."""
    pattern = r"\b(?:(?:avx|amx|f16c|asimd|sve|bf16)\w*|fma\b|sme\d*\b)"
    return re.findall(pattern, _line_of("/proc/cpuinfo", "flags|Features"))


INSTRUCTION_SETS = read_instruction_sets()


def memory_bytes() -> int:
    """Return the memory of the GPU; without a GPU, what this process may use of the machine's."""
    if TYPE == "cuda":
        return torch.cuda.get_device_properties(0).total_memory
    return host_memory.allowed_memory_bytes()


def find_peak_rates() -> gpus.PeakRates | None:
    """Find this GPU's peaks in the table of models/gpus.py, or measure this CPU's.

    None for a GPU not in the table, and for a GPU whose peaks no datasheet has.
    """
    if TYPE == "cpu":
        return gpus.PeakRates(measure_cpu_peak(), None, "measured on this machine, by matmuls")
    key = gpus.find(name())
    if key is None:
        return None
    gpu = gpus.GPUS[key]
    if gpu.bf16 is None:
        return None
    return gpus.PeakRates(gpu.bf16, gpu.fp8, gpu.source)


@cache
def measure_cpu_peak() -> float:
    """Measure the highest rate of this CPU's matmuls in bf16 and float32, in FLOP/s.

    The runs of a study take what the study measured, from `CPU_PEAK_VARIABLE`.
    """
    if CPU_PEAK_VARIABLE in os.environ:
        return float(os.environ[CPU_PEAK_VARIABLE])
    shortest_s = math.inf
    for dtype in (torch.float32, torch.bfloat16):
        matrix = torch.ones(CPU_PEAK_SIDE, CPU_PEAK_SIDE, dtype=dtype)
        for _ in range(CPU_PEAK_REPEATS):
            start_s = time.perf_counter()
            matrix @ matrix
            matmul_s = time.perf_counter() - start_s
            if matmul_s > 10 * shortest_s:
                break  # a CPU without fast bf16: repeats would take seconds
            shortest_s = min(shortest_s, matmul_s)
    return 2 * CPU_PEAK_SIDE**3 / shortest_s


def describe_untried_torch() -> str | None:
    """Name a torch newer than `NEWEST_TORCH` in a sentence; None for others."""
    if parse_torch_version() <= NEWEST_TORCH:
        return None
    newest = ".".join(map(str, NEWEST_TORCH))
    return (
        f"{torch.__version__} is newer than {newest}, the newest that this project was tried with"
    )


# ---- work given to the device ----


def local_tensor(tensor: Tensor) -> Tensor:
    """Take this rank's plain data of a parameter or gradient out of FSDP's and torchao's
    wrappers."""
    if isinstance(tensor, DTensor):
        tensor = tensor.to_local()
    return getattr(tensor, "_tensor", tensor)


def wait_for_device() -> None:
    """Wait for the device to do what it was given."""
    titan_utils.device_module.synchronize()


def record_event():
    """Record an event at this point of the device's work; nothing waits."""
    if TYPE == "cpu":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class Stopwatch:
    """Takes the time of laps of the device's work; nothing waits until the times are read."""

    def __init__(self):
        """Begin the first lap."""
        self.events = [record_event()]

    def lap(self) -> None:
        """End a lap, and begin the next."""
        self.events.append(record_event())

    def read(self) -> list[float]:
        """Return the seconds of each lap since the last reading, to the microsecond, once the work
        of the last is done."""
        events = self.events
        self.events = events[-1:]
        if TYPE == "cpu":
            return [round(end - start, 6) for start, end in pairwise(events)]
        events[-1].synchronize()
        return [round(start.elapsed_time(end) / 1000, 6) for start, end in pairwise(events)]


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the host to the device, without waiting for the device's work."""
    if TYPE == "cpu":
        return x
    return x.pin_memory().to(device, non_blocking=True)


def copy_scalar_async(scalar: Tensor) -> Callable[[], float]:
    """Start copying a scalar tensor to the host; return a function for its value.

    The function waits for the copy, and for no work given to the device since.
    """
    host_scalar = scalar.to("cpu", non_blocking=True)
    copy_event = record_event()

    def read() -> float:
        if TYPE == "cuda":
            copy_event.synchronize()
        return host_scalar.item()

    return read
