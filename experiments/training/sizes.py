"""Compare a run's estimated memory with what is free, and choose a size."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch

from experiments.config import recipes
from experiments.records.run import RECIPE
from experiments.training.plan import Plan, plan
from models import device
from models.errors import InputError
from models.flops import GIB, format_memory_need

ON_CPU = "cpu"
"""The overlay for machines without a GPU."""
GAPS, MOST_GAPS = 0.10, 4.5 * GIB
"""What PyTorch's allocator takes of a GPU beside what it hands out: a share of that, up to so many
bytes. From 2 to 9 % were seen, 4.2 GiB at most, in the steps of all sizes with torch 2.11 and 2.15.
"""
HOPELESS = 1.3  # times the memory: more is an error; less a remark, since it is an estimate


class Memory(NamedTuple):
    """The memory of a device for a run, in bytes."""

    free: float
    total: float


def memory_here(world_size: int) -> Memory:
    """Find the memory for each process of a run; without GPUs the processes share the machine's."""
    total = device.memory_bytes()
    if device.TYPE == "cpu":
        return Memory(total / world_size, total / world_size)
    if world_size > 1:  # each looks at its own GPU, which is not this one
        return Memory(total, total)
    return Memory(*torch.cuda.mem_get_info())


def has_room(planned: Plan, free: float) -> bool:
    """Tell if a run fits into so many free bytes, with the allocator's gaps."""
    return planned.memory_needed + gaps(planned) <= free


def gaps(planned: Plan) -> float:
    """Estimate the bytes of a GPU in the gaps between the allocator's blocks."""
    return min(GAPS * planned.memory_needed, MOST_GAPS) if device.TYPE == "cuda" else 0.0


def check_memory(planned: Plan) -> str:
    """Compare the estimate with what is free; return a finding. Raises `InputError` for a run far
    too large."""
    memory = memory_here(planned.world_size)
    finding = format_memory_need(planned.memory_needed, *memory)
    if planned.memory_needed > HOPELESS * memory.free:
        raise InputError(f"the run needs {finding} here: {advise(planned, memory.free)}")
    if has_room(planned, memory.free):
        return finding
    if planned.memory_needed > memory.free:
        finding += ": this will probably not fit"
    else:
        finding += f": this may not fit, as PyTorch takes up to {gaps(planned) / GIB:.1f} GiB more"
    return f"{finding}; {advise(planned, memory.free)}"


def explain_shortage(planned: Plan) -> str:
    """Say what to do after the GPU ran out of memory."""
    free, total = torch.cuda.mem_get_info()
    free += torch.cuda.memory_reserved()  # by this run
    finding = format_memory_need(planned.memory_needed, free, total)
    return f"the GPU is out of memory: the run needs {finding}; {advise(planned, free)}"


def advise(planned: Plan, free: float) -> str:
    """Name the largest size below a run's with room in so many free bytes."""
    for overlay, smaller in smaller_sizes(planned):
        if has_room(smaller, free):
            needed = f"{smaller.memory_needed / GIB:.1f} GiB"
            return f"take --overlay {overlay}, which needs about {needed}"
    keys = "training.local_batch_size, training.seq_len or the model's size"
    if device.TYPE == "cpu":
        return f"no overlay makes it fit: lower {keys}"
    shards = "shard over more GPUs, " if planned.shards > 1 else ""
    return (
        "no overlay makes it fit: free what other programs hold (`nvidia-smi` lists them), "
        f"{shards}or lower {keys}"
    )


def smaller_sizes(planned: Plan) -> Iterator[tuple[str, Plan]]:
    """Plan a run with each overlay under which it needs less memory.

    Keys of the command line count more than an overlay's.
    """
    for overlay in recipes.list_sizes() if device.TYPE == "cuda" else [ON_CPU]:
        try:
            smaller = plan(with_overlay(planned.recipe, overlay))
        except (InputError, OSError):  # keys contradict each other; a full disk
            continue
        if smaller.memory_needed < planned.memory_needed:
            yield overlay, smaller


def with_overlay(recipe: recipes.Recipe, overlay: str) -> recipes.Recipe:
    """Put an overlay on a resolved recipe."""
    with TemporaryDirectory() as folder:
        file = Path(folder, RECIPE)
        file.write_text(recipes.to_yaml(recipe))
        return recipes.load(str(file), [overlay], recipe.provenance.overrides, is_compared=True)


# ---- the size that suits this machine ----


def choose_size(names: Sequence[str], overrides: Sequence[str] = ()) -> tuple[list[str], str]:
    """Choose overlays for runs of some recipes on this machine, and say why in a sentence."""
    if device.TYPE == "cpu":
        return [ON_CPU], "a small Llama of the same architecture, because there is no GPU here"
    memories = gpu_memories()
    tightest = min(range(len(memories)), key=lambda gpu: memories[gpu].free)
    memory = memories[tightest]
    gpu = f"GPU {tightest}" if len(memories) > 1 else device.name()
    here = f"{gpu} has {memory.free / GIB:.1f} GiB free of {memory.total / GIB:.1f}"
    for overlay in recipes.list_sizes():
        plans = [plan(recipes.load(name, [overlay], overrides, is_compared=True)) for name in names]
        if all(has_room(planned, memory.free) for planned in plans):
            size = f"{plans[0].args.describe()} (overlay {overlay})"
            return [overlay], f"{size}, the largest that fits: {here}"
    return [ON_CPU], f"the CPU size, because the smallest for GPUs does not fit: {here}"


def gpu_memories() -> list[Memory]:
    """Ask for the memory of each visible GPU.

    Another process asks CUDA: asking makes a context, which holds some 500 MB of the GPU, or all of
    it where only one process may use it.
    """
    ask = "[torch.cuda.mem_get_info(gpu) for gpu in range(torch.cuda.device_count())]"
    command = [sys.executable, "-c", f"import json, torch; print(json.dumps({ask}))"]
    answer = subprocess.check_output(command, text=True)
    return [Memory(*pair) for pair in json.loads(answer.splitlines()[-1])]
