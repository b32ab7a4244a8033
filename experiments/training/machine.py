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
Finding = tuple[str, str]  # topic, and a sentence for people


def check_here(plan: Plan) -> list[Finding]:
    """Check what this machine must have for a run."""
    device.check_driver()
    check_units(plan)
    here = f"{device.name()}, {device.memory_bytes() / 2**30:.0f} GiB ({device.TYPE})"
    if device.TYPE == "cuda" and 0 < (torch.backends.cudnn.version() or 0) < FAST_ATTENTION:
        here += "; cuDNN is older than 9.15: with a newer nvidia-cudnn attention is faster"
    return [("device", here), ("memory", _check_memory(plan))]


def check_units(plan: Plan) -> None:
    """Check that this machine can compute what a plan asks for, however large it is."""
    config = plan.config
    if device.TYPE == "cpu":
        needs_gpu = ["comm.nccl_max_ctas", "profiling.enable_memory_snapshot"]
        if config.model.attention_backend == "cudnn":
            needs_gpu.append("model.attention_backend")
        refuse(config, needs_gpu, "a GPU")
    elif plan.fp8.layers and not plan.fp8.emulated:
        device.check_fp8_units()
    if config.compile.enable:
        _check_compiler()


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


def _check_memory(plan: Plan) -> str:
    """Compare the estimate with what each device has; an error only far beyond that."""
    available, mend = device.memory_bytes(), LESS_MEMORY
    if device.TYPE == "cpu":
        available /= plan.world_size  # which share it
        mend = "without a GPU, take the small Llama (--overlay cpu)"
    elif plan.world_size == 1:
        available, _ = torch.cuda.mem_get_info()  # other programs may hold some
    finding = memory_finding(plan.memory_needed, available)
    if plan.memory_needed > HOPELESS * available:
        raise InputError(f"the run needs {finding} here: {mend}, or choose a smaller model.flavor")
    if plan.memory_needed > available:
        finding += ": this will probably not fit"
    return finding


# ---- the size that suits this machine ----


def choose_size(name: str = "baseline", overrides: Sequence[str] = ()) -> tuple[list[str], str]:
    """Choose overlays for runs of a recipe on this machine, and say why in a sentence."""
    device.check_driver()
    if device.TYPE == "cpu":
        return ["cpu"], "a small Llama of the same architecture, because there is no GPU here"
    free = device.free_bytes()
    here = f"{device.name()} has {free / 2**30:.0f} GiB free"
    for overlay in SIZES:
        planned = plan(recipes.load(name, [overlay], overrides))
        if planned.memory_needed <= MOST * free:
            size = f"{planned.args.describe()} (overlay {overlay})"
            return [overlay], f"{size}, the largest that fits: {here}"
    return ["cpu"], f"the CPU size, because the smallest for GPUs does not fit: {here}"
