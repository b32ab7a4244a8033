"""What this machine must have for a run, and which size suits it.

`check_here` raises `InputError` with a sentence that says what to change.
"""

import os
import shutil
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
OTHERS = 2**30  # bytes of a GPU in others' use that are reported: a context holds half of it
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
    check_driver()
    check_units(plan)
    here = f"{device.name()}, {device.memory_bytes() / 2**30:.0f} GiB ({device.TYPE})"
    slow = slow_attention(plan.config)
    if slow:
        here += f"; {slow}"
    return [("device", here), ("memory", _check_memory(plan))]


def check_units(plan: Plan) -> None:
    """Check that this machine can compute what a plan asks for, however large it is."""
    config, compiler = plan.config, os.environ.get("CC", "gcc").split(" ")[0]
    if device.TYPE == "cpu":
        cudnn, snapshot = config.model.attention_backend == "cudnn", config.profiling
        needs_gpu = {
            "model.attention_backend": (cudnn, "auto, flash or math"),
            "comm.nccl_max_ctas": (config.comm.nccl_max_ctas, "null"),
            "profiling.enable_memory_snapshot": (snapshot.enable_memory_snapshot, "false"),
        }
        refuse(needs_gpu, "a GPU:")
        compiler = os.environ.get("CXX", "g++").split(" ")[0]
    elif plan.fp8.layers and not plan.fp8.emulated:
        device.check_fp8_units()
    if config.compile.enable:
        _check_compiler(compiler)


def _check_compiler(compiler: str) -> None:
    """Check what inductor compiles with: on a CPU a C++ compiler; on a GPU Triton's launchers take
    a C compiler and Python's headers."""
    missing, headers = None, Path(get_paths("posix_prefix")["include"], "Python.h")
    if not shutil.which(compiler) and not (compiler == "gcc" and shutil.which("clang")):
        missing = f"the compiler `{compiler}`"
    elif device.TYPE == "cuda" and not headers.exists():
        missing = "Python.h (package python3-dev or python3-devel)"
    if missing:
        raise InputError(
            f"a compiled model needs {missing}, which is not here: install it, name another "
            "compiler in the environment variable CC (on a CPU: CXX), or run the recipe "
            "`baseline`, which is not compiled"
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
        f"(.venv/bin/python -m pip install '{package}>=9.15')"
    )


def _check_memory(plan: Plan) -> str:
    """Compare the estimate with what each device has; an error only far beyond that."""
    available, held = device.memory_bytes(), ""
    if device.TYPE == "cpu":
        available /= plan.world_size  # which share it
    elif plan.world_size == 1:
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
