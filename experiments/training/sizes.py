"""Compare a run's estimated memory with what is free, and choose a size."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch

from experiments.config import recipes
from experiments.records.run import RECIPE
from experiments.training.plan import Plan, plan
from models import device, nvidia_smi
from models.errors import InputError
from models.flops import GIB, format_memory_need

CPU_SIZE = "cpu"
"""The overlay for machines without a GPU."""
GAP_SHARE = 0.10
MAX_GAP_BYTES = 4.5 * GIB
"""PyTorch's allocator leaves gaps between its blocks: a share of the estimate, up to so many bytes.
From 2 to 9 % were seen, 4.2 GiB at most, in the steps of all sizes with torch 2.11 and 2.15."""
CONTEXT_BYTES = 0.5 * GIB
"""CUDA takes these of a GPU for each process."""
REFUSED_EXCESS = 1.3
"""A run that needs so many times the free memory is refused. Less is a remark, because the need is
an estimate."""


class Memory(NamedTuple):
    """The memory of a device for a run, in bytes."""

    free: float
    total: float


# ---- the memory of a run ----


def find_memory(world_size: int) -> Memory:
    """Find the memory for each process of a run; without GPUs the processes share the machine's."""
    total = device.memory_bytes()
    if device.TYPE == "cpu":
        return Memory(total / world_size, total / world_size)
    if world_size > 1:  # each looks at its own GPU, which is not this one
        return Memory(total, total)
    return Memory(*torch.cuda.mem_get_info())


def estimate_gap_bytes(run_plan: Plan) -> float:
    """Estimate the bytes of a GPU in the gaps between the allocator's blocks."""
    if device.TYPE == "cpu":
        return 0.0
    return min(GAP_SHARE * run_plan.memory_needed, MAX_GAP_BYTES)


def has_room(run_plan: Plan, free_bytes: float) -> bool:
    """Tell if a run fits into the free bytes, with the allocator's gaps."""
    return run_plan.memory_needed + estimate_gap_bytes(run_plan) <= free_bytes


def check_memory(run_plan: Plan) -> str:
    """Compare the estimate with what is free; return a sentence.

    Raises `InputError` for a run far too large.
    """
    memory = find_memory(run_plan.world_size)
    comparison = format_memory_need(run_plan.memory_needed, *memory)
    if run_plan.memory_needed > REFUSED_EXCESS * memory.free:
        raise InputError(f"the run needs {comparison} here: {suggest_size(run_plan, memory.free)}")
    if has_room(run_plan, memory.free):
        return comparison
    if run_plan.memory_needed > memory.free:
        warning = "this will probably not fit"
    else:
        gap_gib = estimate_gap_bytes(run_plan) / GIB
        warning = f"this may not fit, as PyTorch takes up to {gap_gib:.1f} GiB more"
    return f"{comparison}: {warning}; {suggest_size(run_plan, memory.free)}"


def explain_shortage(run_plan: Plan) -> str:
    """Say what to do after the GPU ran out of memory."""
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    free_bytes += torch.cuda.memory_reserved()  # by this run
    comparison = format_memory_need(run_plan.memory_needed, free_bytes, total_bytes)
    suggestion = suggest_size(run_plan, free_bytes)
    return f"the GPU is out of memory: the run needs {comparison}; {suggestion}"


def suggest_size(run_plan: Plan, free_bytes: float) -> str:
    """Name the largest size below a run's with room in the free bytes."""
    for overlay, smaller_plan in plan_smaller_sizes(run_plan):
        if has_room(smaller_plan, free_bytes):
            needed_gib = smaller_plan.memory_needed / GIB
            return f"take --overlay {overlay}, which needs about {needed_gib:.1f} GiB"
    keys = "training.local_batch_size, training.seq_len or the model's size"
    if device.TYPE == "cpu":
        return f"no overlay makes it fit: lower {keys}"
    shard_option = "shard over more GPUs, " if run_plan.shards > 1 else ""
    return (
        "no overlay makes it fit: free what other programs hold (`nvidia-smi` lists them), "
        f"{shard_option}or lower {keys}"
    )


def plan_smaller_sizes(run_plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Plan a run with each overlay under which it needs less memory.

    Keys of the command line count more than an overlay's.
    """
    overlays = recipes.list_sizes() if device.TYPE == "cuda" else [CPU_SIZE]
    for overlay in overlays:
        try:
            smaller_plan = plan(add_overlay(run_plan.recipe, overlay))
        except (InputError, OSError):  # keys contradict each other; a full disk
            continue
        if smaller_plan.memory_needed < run_plan.memory_needed:
            yield overlay, smaller_plan


def add_overlay(recipe: recipes.Recipe, overlay: str) -> recipes.Recipe:
    """Put an overlay on a resolved recipe."""
    with TemporaryDirectory() as folder:
        file = Path(folder, RECIPE)
        file.write_text(recipes.to_yaml(recipe))
        return recipes.load(str(file), [overlay], recipe.provenance.overrides, is_compared=True)


# ---- the size that suits this machine ----


def choose_size(
    recipe_names: Sequence[str], overrides: Sequence[str] = ()
) -> tuple[list[str], str]:
    """Choose overlays for runs of some recipes on this machine, and say why in a sentence."""
    if device.TYPE == "cpu":
        return [CPU_SIZE], "a small Llama of the same architecture, because there is no GPU here"
    memories = query_gpu_memories()
    memory = min(memories)
    gpu = f"GPU {memories.index(memory)}" if len(memories) > 1 else device.name()
    gpu_memory = f"{gpu} has {memory.free / GIB:.1f} GiB free of {memory.total / GIB:.1f}"
    for overlay in recipes.list_sizes():
        plans = []
        for name in recipe_names:
            recipe = recipes.load(name, [overlay], overrides, is_compared=True)
            plans.append(plan(recipe))
        if all(has_room(run_plan, memory.free) for run_plan in plans):
            size = f"{plans[0].args.describe()} (overlay {overlay})"
            return [overlay], f"{size}, the largest that fits: {gpu_memory}"
    return [CPU_SIZE], f"the CPU size, because the smallest for GPUs does not fit: {gpu_memory}"


def query_gpu_memories() -> list[Memory]:
    """Find the memory of each visible GPU for a run, as nvidia-smi has it.

    torch would have to make a CUDA context in this process. It holds `CONTEXT_BYTES` of the GPU, or
    all of it where only one process may use it. A GPU that nvidia-smi does not know counts as free:
    a part of a GPU (MIG), or AMD's.
    """
    memories = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        [free_mib] = nvidia_smi.query_fields(["memory.free"], f"GPU-{properties.uuid}")
        free_bytes: float = properties.total_memory
        if free_mib:
            free_bytes = min(free_bytes, float(free_mib) * 2**20)
        memories.append(Memory(free_bytes - CONTEXT_BYTES, properties.total_memory))
    return memories
