"""What this machine must have for a run, and which size suits it.

`check_here` raises `InputError` with a sentence that says what to change.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from sysconfig import get_paths

import torch

from experiments.config import recipes
from experiments.training.plan import Plan, plan, refuse
from models import device
from models.driver import check_driver
from models.errors import InputError
from models.flops import count, memory_finding

MOST = 0.95  # of the memory: the estimate is what PyTorch allocates, and CUDA and gaps come on top
HOPELESS = 1.3  # times the memory: more is an error; less a remark, since it is an estimate
OTHERS = 2**30  # bytes of the GPU that are told, if they are not free: a context holds half of it
SIZES = (
    "no_recompute",
    "full_recompute",
    "llama_3b",
    "llama_1b",
    "llama_1b_2048",
    "llama_1b_1024",
)
"""Overlays for GPUs, those that need most memory first."""
Finding = tuple[str, str]  # topic, and a sentence for people


def check_here(plan: Plan) -> list[Finding]:
    """Check what this machine must have for a run."""
    config = plan.config
    check_driver()
    check_units(plan)
    here = f"{device.name()}, {device.memory_bytes() / 2**30:.0f} GiB ({device.TYPE})"
    slow = slow_attention(config)
    if slow:
        here += f"; {slow}"
    return [("device", here), ("memory", _check_memory(plan))]


def check_units(plan: Plan) -> None:
    """Check that this machine can compute what a plan asks for, however large it is."""
    if device.TYPE == "cpu":
        _check_cpu(plan.config)
        return
    if plan.fp8.layers and not plan.fp8.emulated:
        device.check_fp8_units()
    if plan.config.compile.enable:
        _check_c_compiler()


def _check_c_compiler() -> None:
    """Check what Triton compiles its launchers with: a C compiler and Python's headers."""
    compiler = os.environ.get("CC", "").split(" ")[0]
    if not any(shutil.which(name) for name in ([compiler] if compiler else ["gcc", "clang"])):
        missing, debian, rhel = f"no C compiler ({compiler or 'gcc'})", "gcc", "gcc"
    elif not Path(get_paths("posix_prefix")["include"], "Python.h").exists():
        missing, rhel = "no Python.h", "python3-devel"
        debian = f"python{sys.version_info.major}.{sys.version_info.minor}-dev"
    else:
        return
    raise InputError(
        f"compiled kernels need a C compiler and Python's headers, and there is {missing} here: "
        f"install it (Debian, Ubuntu: apt install {debian}; RHEL, Fedora: dnf install {rhel}), or "
        "run the recipe `baseline`, which is not compiled"
    )


def _check_cpu(config) -> None:
    cudnn, snapshot = config.model.attention_backend == "cudnn", config.profiling
    needs_gpu = {
        "model.attention_backend": (cudnn, "auto, flash or math"),
        "comm.nccl_max_ctas": (config.comm.nccl_max_ctas, "null"),
        "profiling.enable_memory_snapshot": (snapshot.enable_memory_snapshot, "false"),
    }
    refuse(needs_gpu, "a GPU:")
    compiler = os.environ.get("CXX", "g++").split(" ")[0]
    if config.compile.enable and not shutil.which(compiler):
        raise InputError(
            f"a compiled model needs a C++ compiler on a CPU and `{compiler}` is not "
            "there: install g++, point the environment variable CXX at another one, or run the "
            "recipe `baseline`, which is not compiled"
        )


def slow_attention(config) -> str | None:
    """Say what to do about a cuDNN older than 9.15, whose attention PyTorch does not take.

    None if there is nothing to do. PyTorch prefers cuDNN's attention on GPUs of compute capability
    9 and up.
    """
    version, other = device.cudnn(), config.model.attention_backend in ("flash", "math")
    if not version or other or torch.cuda.get_device_capability() < (9, 0):
        return None
    if tuple(map(int, version.split(".")[:2])) >= (9, 15):
        return None
    package = f"nvidia-cudnn-cu{(torch.version.cuda or '13').split('.')[0]}"
    return (
        f"cuDNN {version} is older than 9.15, with which PyTorch takes a slower attention: take "
        "its folder off LD_LIBRARY_PATH, or install a newer one "
        f"(python -m pip install '{package}>=9.15')"
    )


def _check_memory(plan: Plan) -> str:
    """Compare the estimate with what each device has; an error only far beyond that."""
    available = memory_of_each(plan.world_size)
    held = ""
    if device.TYPE == "cuda" and plan.world_size == 1:
        available, _ = torch.cuda.mem_get_info()
        held = others(available)
    finding = memory_finding(plan.memory_needed, available) + held
    if plan.memory_needed > HOPELESS * available:
        mend = less_memory(plan.config)
        if device.TYPE == "cpu":
            mend = "without a GPU, take the small Llama (--overlay cpu)"
        raise InputError(f"the run needs {finding} here: {mend}, or choose a smaller model.flavor")
    if plan.memory_needed > available:
        finding += ": this will probably not fit"
    return finding


def memory_of_each(processes: int) -> float:
    """Return the bytes that each of some processes on this machine has; on a CPU they share it."""
    if device.TYPE == "cpu":
        return device.memory_bytes() / max(1, processes)
    return device.memory_bytes()


def others(free: float) -> str:
    """Say how many bytes of the GPU other programs hold; empty if hardly any."""
    held = device.memory_bytes() - free
    if held < OTHERS:
        return ""
    gib = f"{held / 2**30:.0f} of {device.memory_bytes() / 2**30:.0f} GiB"
    return f", because other programs hold {gib} (nvidia-smi lists them)"


def less_memory(config) -> str:
    """Say by which overlay or key a run needs less memory."""
    recompute = "recompute activations (overlay `full_recompute`), "
    if config.activation_checkpoint.mode == "full":
        recompute = ""
    return f"{recompute}lower training.local_batch_size, or shard over more GPUs"


# ---- the size that suits this machine ----


def choose_size(name: str = "baseline", overrides: Sequence[str] = ()) -> tuple[list[str], str]:
    """Choose overlays for runs of a recipe on this machine, and say why in a sentence."""
    check_driver()
    if device.TYPE == "cpu":
        small = "a small Llama of the same architecture, because there is no GPU here"
        return ["cpu"], f"the CPU size, {small}"
    free = device.free_bytes()
    have = f"{device.name()} has {free / 2**30:.0f} GiB{others(free)}"
    for overlay in SIZES:
        planned = plan(recipes.load(name, [overlay], overrides))
        need = f"{planned.memory_needed / 2**30:.1f} GiB"
        if planned.memory_needed <= MOST * free:
            rows = f"rows of {planned.config.training.seq_len:,} tokens"
            size = f"{count(planned.parameters)} parameters and {rows} (overlay {overlay})"
            return [overlay], f"{size}, the largest that fits: it needs {need}, and {have}"
    return ["cpu"], f"the CPU size, because the smallest for GPUs needs {need}, and {have}"
