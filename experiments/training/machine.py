"""Check this machine for a run, choose a size for it, and describe it.

`check_here` raises `InputError` with a sentence that says what to change.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from glob import glob
from pathlib import Path
from sysconfig import get_paths

import torch

from experiments.config import recipes
from experiments.training.plan import Plan, plan, refuse
from models import device
from models.errors import InputError
from models.flops import memory_finding

MOST = 0.95  # of the memory: the estimate is what PyTorch allocates, and CUDA and gaps come on top
HOPELESS = 1.3  # times the memory: more is an error; less a remark, since it is an estimate
FAST_ATTENTION = 91500  # version of cuDNN: PyTorch takes the attention of no older one
LESS_MEMORY = (
    "recompute activations (overlay `full_recompute`), lower training.local_batch_size, or shard "
    "over more GPUs"
)
SIZES = (
    "no_recompute",
    "full_recompute",
    "llama_3b",
    "llama_1b",
    "llama_1b_2048",
    "llama_1b_1024",
)
"""Overlays for GPUs, those that need most memory first."""
DEVICE_FILES = "/dev/nvidia[0-9]*"
"""What Linux has of each GPU, whether nvidia-smi works or not."""
Finding = tuple[str, str]  # topic, and a sentence for people
TORCH = "torch"  # the topic of a finding that is a warning


def check_here(plan: Plan) -> list[Finding]:
    """Check this machine's driver, units and memory for a run; describe the device.

    The estimated memory is an error only far beyond what each device has.
    """
    check_driver()
    check_units(plan)
    available, mend = device.memory_bytes(), LESS_MEMORY
    here = f"{device.name()}, {available / 2**30:.0f} GiB ({device.TYPE})"
    if device.TYPE == "cuda" and 0 < (torch.backends.cudnn.version() or 0) < FAST_ATTENTION:
        here += "; cuDNN is older than 9.15: with a newer nvidia-cudnn attention is faster"
    if device.TYPE == "cpu":
        available /= plan.world_size  # which share it
        mend = "without a GPU, take the small Llama (--overlay cpu) and fewer rows or tokens"
    elif plan.world_size == 1:
        available, _ = torch.cuda.mem_get_info()  # other programs may hold some
    finding = memory_finding(plan.memory_needed, available)
    if plan.memory_needed > HOPELESS * available:
        raise InputError(f"the run needs {finding} here: {mend}, or choose a smaller model.flavor")
    if plan.memory_needed > available:
        finding += ": this will probably not fit"
    findings = [("device", here), ("memory", finding)]
    untried = device.describe_untried_torch()
    return [*findings, (TORCH, untried)] if untried else findings


def check_driver() -> None:
    """Raise `InputError` for a GPU unusable by torch: a run would train on the CPU.

    An empty CUDA_VISIBLE_DEVICES, or -1, asks for the CPU.
    """
    if torch.cuda.is_available() or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or "0"
    [gpu] = nvidia_smi("name", visible.split(",")[0])
    if gpu or glob(DEVICE_FILES):
        raise InputError(
            f"there is {gpu or 'a GPU'} here, which torch {torch.__version__} cannot use: install "
            "requirements.txt without constraints-cpu.txt, or a newer driver "
            "(docs/installing.md), and after an upgrade of the driver, reboot; or set "
            "CUDA_VISIBLE_DEVICES= to train on the CPU"
        )


def check_units(plan: Plan) -> None:
    """Check this machine's matmul units and compiler for a plan, whatever the plan's size."""
    config = plan.config
    if device.TYPE == "cpu":
        needs_gpu = ["comm.nccl_max_ctas", "profiling.enable_memory_snapshot"]
        if config.model.attention_backend == "cudnn":
            needs_gpu.append("model.attention_backend")
        refuse(config, needs_gpu, "a GPU")
    elif plan.fp8.layers and not plan.fp8.emulated:
        _check_fp8_units()
    if config.compile.enable:
        _check_compiler()


def _check_fp8_units() -> None:
    """Raise `InputError` for a GPU without FP8 matrix units."""
    if torch.cuda.get_device_capability() < (8, 9):
        raise InputError(
            f"{device.name()} has no FP8 units, which came with compute capability 8.9 (Ada, "
            "Hopper): train the recipe `baseline_compiled` instead"
        )


def _check_compiler() -> None:
    """Check what inductor compiles with: on a CPU a C++ compiler; on a GPU Triton's launchers take
    a C compiler and Python's headers."""
    missing, compilers = None, [os.environ.get("CXX", "g++")]
    if device.TYPE == "cuda":
        compilers = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
        if not Path(get_paths("posix_prefix")["include"], "Python.h").exists():
            missing = "Python.h (package python3-dev or python3-devel)"
    if not any(shutil.which(compiler.split(" ")[0]) for compiler in compilers):
        missing = f"the compiler `{compilers[0]}`"
    if missing:
        raise InputError(
            f"a compiled model needs {missing}, which is not here: install it, name another "
            "compiler in the environment variable CC (on a CPU: CXX), or run the recipe "
            "`baseline`, which is not compiled"
        )


# ---- the size that suits this machine ----


def choose_size(name: str = "baseline", overrides: Sequence[str] = ()) -> tuple[list[str], str]:
    """Choose overlays for runs of a recipe on this machine, and say why in a sentence."""
    check_driver()
    if device.TYPE == "cpu":
        return ["cpu"], "a small Llama of the same architecture, because there is no GPU here"
    free = free_bytes()
    here = f"{device.name()} has {free / 2**30:.0f} GiB free"
    for overlay in SIZES:
        planned = plan(recipes.load(name, [overlay], overrides, compared=True))
        if planned.memory_needed <= MOST * free:
            size = f"{planned.args.describe()} (overlay {overlay})"
            return [overlay], f"{size}, the largest that fits: {here}"
    return ["cpu"], f"the CPU size, because the smallest for GPUs does not fit: {here}"


def free_bytes() -> int:
    """Return what other programs leave of the GPU's `memory_bytes`.

    Another process asks CUDA: asking makes a context, which holds some 500 MB of the GPU, or all of
    it where only one process may use it.
    """
    asks = [sys.executable, "-c", "import torch; print(torch.cuda.mem_get_info()[0])"]
    return int(subprocess.check_output(asks, text=True).split()[-1])


# ---- what it is ----


def hardware() -> dict:
    """Describe the machine for a manifest: clock in MHz, power in W, unknown values None."""
    uuid, said = None, [None] * 3
    if device.TYPE == "cuda":  # whose numbers of GPUs are not always nvidia-smi's
        uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        said = nvidia_smi("driver_version,clocks.max.sm,power.limit", uuid)
    driver, clock, power = said
    return {
        "type": device.TYPE,
        "name": device.name(),
        "memory_bytes": device.memory_bytes(),
        "threads": torch.get_num_threads(),
        "cpu": device.cpu_name(),
        "cpu_instruction_sets": device.INSTRUCTION_SETS,
        "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),  # which GPUs of several
        "uuid": uuid,
        "cudnn": cudnn(),  # the version that PyTorch has loaded: it decides which attention runs
        "driver": driver,
        "sm_clock_max_mhz": number(clock),
        "power_limit_w": number(power),
    }


def nvidia_smi(query: str, gpu: str) -> list[str | None]:
    """Ask nvidia-smi for fields of a GPU, by its number or UUID; None for what it does not say."""
    command = f"nvidia-smi --query-gpu={query} --id={gpu} --format=csv,noheader,nounits".split()
    quiet = {"stderr": subprocess.DEVNULL, "text": True, "errors": "replace"}
    try:
        answers = subprocess.check_output(command, timeout=20, **quiet).strip().split(", ")
    except (OSError, subprocess.SubprocessError):
        return [None] * len(query.split(","))
    return [None if answer.startswith(("[", "N/A")) else answer for answer in answers]


def cudnn() -> str | None:
    """Return the version of cuDNN, as in 9.15.1; None without a GPU or without cuDNN."""
    version = torch.backends.cudnn.version() if device.TYPE == "cuda" else None
    return version and f"{version // 10000}.{version % 10000 // 100}.{version % 100}"


def number(answer: str | None) -> float | None:
    """Read a number; None for words such as `Unknown Error`."""
    with suppress(TypeError, ValueError):
        return float(answer)
    return None
