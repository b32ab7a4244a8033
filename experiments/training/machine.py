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
from models.errors import InputError
from models.flops import memory_finding

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
    device.check_driver()
    check_units(plan)
    here = f"{device.name()}, {device.memory_bytes() / 2**30:.0f} GiB ({device.TYPE})"
    slow = slow_attention(plan.config)
    if slow:
        here += f"; {slow}"
    return [("device", here), ("memory", _check_memory(plan))]


def check_units(plan: Plan) -> None:
    """Check that this machine can compute what a plan asks for, however large it is."""
    config, compiler = plan.config, os.environ.get("CC", "gcc")
    if device.TYPE == "cpu":
        needs_gpu = ["comm.nccl_max_ctas", "profiling.enable_memory_snapshot"]
        if config.model.attention_backend == "cudnn":
            needs_gpu.append("model.attention_backend")
        refuse(config, needs_gpu, "a GPU")
        compiler = os.environ.get("CXX", "g++")
    elif plan.fp8.layers and not plan.fp8.emulated:
        device.check_fp8_units()
    if config.compile.enable:
        _check_compiler(compiler.split(" ")[0])


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
    """Name a cuDNN older than 9.15, whose attention PyTorch does not take; None if all is well.

    PyTorch prefers cuDNN's attention on GPUs of compute capability 9 and up.
    """
    version, other = device.cudnn(), config.model.attention_backend in ("flash", "math")
    if not version or other or torch.cuda.get_device_capability() < (9, 0):
        return None
    if tuple(map(int, version.split("."))) >= (9, 15):
        return None
    return (
        f"cuDNN {version} is older than 9.15, with which PyTorch takes a slower attention: take "
        "its folder off LD_LIBRARY_PATH, or install a newer nvidia-cudnn"
    )


def _check_memory(plan: Plan) -> str:
    """Compare the estimate with what each device has; an error only far beyond that."""
    available, held, mend = device.memory_bytes(), "", less_memory(plan.config)
    if device.TYPE == "cpu":
        available /= plan.world_size  # which share it
        mend = "without a GPU, take the small Llama (--overlay cpu)"
    elif plan.world_size == 1:
        available, _ = torch.cuda.mem_get_info()
        held = others(available)
    finding = memory_finding(plan.memory_needed, available) + held
    if plan.memory_needed > HOPELESS * available:
        raise InputError(f"the run needs {finding} here: {mend}, or choose a smaller model.flavor")
    if plan.memory_needed > available:
        finding += ": this will probably not fit"
    return finding


def others(free: float) -> str:
    """Say how many bytes of the GPU other programs hold; empty if hardly any."""
    held = device.memory_bytes() - free
    if held < OTHERS:
        return ""
    return f", because other programs hold {held / 2**30:.0f} GiB of the GPU (see nvidia-smi)"


def less_memory(config) -> str:
    """Say by which overlay or key a run needs less memory."""
    recompute = "recompute activations (overlay `full_recompute`), "
    if config.activation_checkpoint.mode == "full":
        recompute = ""
    return f"{recompute}lower training.local_batch_size, or shard over more GPUs"


# ---- the size that suits this machine ----


def choose_size(name: str = "baseline", overrides: Sequence[str] = ()) -> tuple[list[str], str]:
    """Choose overlays for runs of a recipe on this machine, and say why in a sentence."""
    device.check_driver()
    if device.TYPE == "cpu":
        small = "a small Llama of the same architecture, because there is no GPU here"
        return ["cpu"], f"the CPU size, {small}"
    free = device.free_bytes()
    have = f"{device.name()} has {free / 2**30:.0f} GiB{others(free)}"
    for overlay in SIZES:
        planned = plan(recipes.load(name, [overlay], overrides))
        need = f"it needs {planned.memory_needed / 2**30:.1f} GiB, and {have}"
        if planned.memory_needed <= MOST * free:
            rows = f"rows of {planned.config.training.seq_len:,} tokens (overlay {overlay})"
            return [overlay], f"{planned.args.describe()}, {rows}, the largest that fits: {need}"
    return ["cpu"], f"the CPU size, because the smallest for GPUs does not fit: {need}"
