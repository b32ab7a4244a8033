"""Add up values of all ranks; record what a rank sends in a step, and how much of that time
compute hides.

Operators of `c10d::` are counted, because they are the same for all backends. gloo's own operators
are not counted: its reduce-scatter is an all-reduce. The bytes of a call are those of its whole
tensor: the output of an all-gather, the input of a reduce-scatter or of an all-to-all.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

import torch
import torch.distributed as dist
from torch.autograd import DeviceType
from torch.utils._pytree import tree_leaves

from experiments.training.plan import Plan
from experiments.training.proof import ProofCollector, ProofError

GATHER, REDUCE, EXCHANGE, AGREE = "all-gather", "reduce-scatter", "all-to-all", "all-reduce"
_OPERATORS = {
    "c10d::_allgather_base_": GATHER,
    "c10d::_reduce_scatter_base_": REDUCE,
    "c10d::alltoall_base_": EXCHANGE,
    "c10d::allreduce_": AGREE,
}


def all_reduce(values: torch.Tensor, operation: str = "sum") -> torch.Tensor:
    """Return the `sum` or the `max` over ranks.

    Numbers on the host are sent between hosts, so that nothing waits for a device.
    """
    if dist.get_world_size() == 1:
        return values
    reduced = values.clone()
    group = _host_group(dist.group.WORLD) if values.device.type == "cpu" else None
    dist.all_reduce(reduced, dist.ReduceOp.MAX if operation == "max" else dist.ReduceOp.SUM, group)
    return reduced


@cache
def _host_group(world: dist.ProcessGroup) -> dist.ProcessGroup:
    """Make a group of all ranks of a world that sends between hosts."""
    return dist.new_group(backend="gloo")


# ---- a profiled step ----


def check_profile(proof: ProofCollector, profiler) -> None:
    """Record what a profiled step sent, which must be no more than the recipe promises.

    Args:
        profiler: a finished `torch.profiler.profile` of one step, with shapes.

    Raises:
        ProofError: more was sent.
    """
    plan, sent, calls = proof.plan, Counter(), Counter()
    if plan.world_size == 1:
        return
    # the tree of events is the profiler's only record with the sizes of lists of tensors
    tree = profiler.profiler.kineto_results.experimental_event_tree()
    by_dtype = Counter()
    for collective, dtype, size in payloads(tree):
        sent[collective] += size
        calls[collective] += 1
        by_dtype[f"{collective} of {dtype}"] += size
    shapes = {name: parameter.shape for name, parameter in proof.parameters.items()}
    weights, gradients = fsdp_bytes(plan, shapes)
    evidence = proof.evidence["sharded"] = {
        "bytes": by_dtype,
        "gathered_bytes": sent[GATHER],  # of weights
        "gathered_bytes_expected": plan.passes * weights,
        "reduced_bytes": sent[REDUCE] + sent[EXCHANGE],  # of gradients
        "reduced_bytes_expected": plan.passes * gradients,
        "all_reduces": calls[AGREE],
        "nccl": nccl_seconds(profiler.events()),  # null on CPUs
    }
    gathers_fp8 = plan.config.quantize.linear.float8.enable_fsdp_float8_all_gather
    promises = {
        "gathered_bytes": gathers_fp8 and plan.fp8.layers,
        "reduced_bytes": plan.recipe.find_hook("gradient_bytes"),
    }
    for name, promised in promises.items():
        size, expected = evidence[name], evidence[f"{name}_expected"]
        if promised and not 0 < size <= expected:
            raise ProofError(
                f"{name} of a step: {size:,}, and the recipe promises {expected:,}: not (all) of "
                "them were sent in FP8"
            )


# ---- bytes ----


def payloads(tree: Iterable) -> Iterator[tuple[str, str, int]]:
    """Yield collective, dtype and bytes of each call in a tree of events."""
    for event in tree:
        if event.name in _OPERATORS:
            inputs = tree_leaves(event.extra_fields.inputs)
            tensors = [each for each in inputs if hasattr(each, "sizes")]
            elements = max(math.prod(tensor.sizes) for tensor in tensors)
            dtype = tensors[0].dtype
            name = str(dtype).removeprefix("torch.")
            yield _OPERATORS[event.name], name, elements * dtype.itemsize
        yield from payloads(event.children)


def fsdp_bytes(plan: Plan, shapes: Mapping) -> tuple[int, int]:
    """Count the bytes that a forward and backward pass gathers, of whole weights, and sends, of
    whole gradients.

    The embedding and the blocks are gathered twice, since FSDP2 frees them after their forward
    pass. The last norm and the head are gathered once: their backward pass follows at once. A tied
    embedding goes with the head. FSDP2 pads rows to a multiple of the shards.

    Args:
        shapes: of the parameters by name, unsharded.
    """
    config = plan.config
    shards = plan.shards
    gathers_fp8 = config.quantize.linear.float8.enable_fsdp_float8_all_gather
    in_fp8 = {f"{name}.weight" for name in plan.fp8.layers} if gathers_fp8 else set()
    itemsize = getattr(torch, config.training.mixed_precision_param).itemsize
    reshard = config.parallelism.fsdp_reshard_after_forward
    separate_groups: tuple[str, ...] = ("layers.",)
    if "output.weight" in shapes:
        separate_groups = ("layers.", "tok_embeddings.")
    weight_bytes = 0
    gradients_by_group: Counter[str] = Counter()  # elements of a rank's, sent together
    for name, (rows, *columns) in shapes.items():
        elements = -(-rows // shards) * shards * math.prod(columns)
        is_separate = name.startswith(separate_groups)
        element_bytes = 1 if name in in_fp8 else itemsize
        # A weight that is freed after the forward pass is gathered again
        is_freed = reshard == "always" or (reshard == "default" and is_separate)
        n_gathers = 2 if is_freed else 1
        weight_bytes += elements * element_bytes * n_gathers
        group = ".".join(name.split(".")[:2]) if is_separate else "norm and head"
        gradients_by_group[group] += elements // shards
    size = plan.recipe.find_hook("gradient_bytes", lambda config, n: 4 * n)
    gradient_bytes = shards * sum(size(config, n) for n in gradients_by_group.values())
    return weight_bytes, gradient_bytes


# ---- time ----


def nccl_seconds(events: Iterable) -> dict | None:
    """Time NCCL kernels, and how long no other kernel ran beside them; None without NCCL.

    An NCCL kernel runs from its launch on, also while it waits for the other ranks.
    """
    sends, computes = [], []
    for event in events:
        on_gpu = event.device_type == DeviceType.CUDA and not event.is_user_annotation
        if on_gpu and not event.name.startswith(("Memcpy", "Memset")):
            kernels = sends if event.name.startswith("nccl") else computes
            kernels.append((event.time_range.start / 1e6, event.time_range.end / 1e6))  # from µs
    if not sends:
        return None
    exposed = covered(sends + computes) - covered(computes)
    return {"seconds": covered(sends), "exposed_seconds": exposed}


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Measure the union of (start, end)."""
    length, reached = 0.0, -math.inf
    for start, end in sorted(intervals):
        length += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return length
