"""Record what the ranks of a run send one another in a step, and how much of it compute hides.

Bytes follow nccl-tests (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md). The payload is the whole
tensor: the output of an all-gather, the input of a reduce-scatter or of an all-to-all. Bus bytes
are what the link of a rank carries in each direction: among n ranks 2(n-1)/n of the payload in an
all-reduce, (n-1)/n in the others.

Operators of `c10d::` are counted, because they are the same for all backends. gloo's own operators
are not counted: its reduce-scatter is an all-reduce.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch.autograd import DeviceType
from torch.utils._pytree import tree_leaves

from experiments.training.plan import Plan
from experiments.training.proof import Proof, ProofError

_OPERATORS = {
    "c10d::_allgather_base_": "all-gather",
    "c10d::_reduce_scatter_base_": "reduce-scatter",
    "c10d::allreduce_": "all-reduce",
    "c10d::alltoall_base_": "all-to-all",
}
_REDUCTION = "FSDP::post_backward_reduce"  # begins the name of FSDP2's region that sums gradients
_NCCL = re.compile(r"nccl(Dev)?Kernel")


def check_profile(proof: Proof, profiler) -> None:
    """Record what a profiled step sent, which must be no more than the recipe promises. Raises
    `ProofError`."""
    plan = proof.plan
    if plan.world_size == 1:
        return
    shapes = {name: parameter.shape for name, parameter in proof.parameters.items()}
    sent = proof.evidence["sharded"] = sum_up(profiler, plan, shapes)
    promises = {}
    if plan.config.quantize.linear.float8.enable_fsdp_float8_all_gather:
        promises["weights"] = "gathered_bytes"
    if plan.recipe.hook("gradient_bytes"):
        promises["gradients"] = "reduced_bytes"
    for what, name in promises.items():
        size, expected = sent[name], sent[f"{name}_expected"]
        if not 0 < size <= expected:
            raise ProofError(
                f"processes sent {size:,} bytes of {what} in a step, and the recipe promises "
                f"{expected:,}: not (all) of them were sent in FP8"
            )


def sum_up(profiler, plan: Plan, shapes: Mapping) -> dict:
    """Sum up what this rank sent in a profiled step, beside the payloads of closed forms.

    Args:
        profiler: a finished `torch.profiler.profile` of one step, with shapes.
        shapes: of the parameters by name, unsharded.

    Returns:
        What stands in proof.json under `sharded`; `nccl` is null on CPUs.
    """
    gathered, reduced = fsdp_bytes(plan, shapes)
    rows = table(profiler.profiler.kineto_results.experimental_event_tree(), plan)
    payload, calls = Counter(), Counter()
    for row in rows:
        payload[row["collective"]] += row["payload_bytes"]
        calls[row["collective"]] += row["calls"]
    return {
        "shards": plan.shards,
        "replicas": plan.world_size // plan.shards,
        "table": rows,
        "gathered_bytes": payload["all-gather"],  # of weights
        "gathered_bytes_expected": plan.passes * gathered,
        "reduced_bytes": payload["reduce-scatter"] + payload["all-to-all"],  # of gradients
        "reduced_bytes_expected": plan.passes * reduced,
        "all_reduces": calls["all-reduce"],
        "nccl": nccl_seconds(profiler.events()),
    }


# ---- bytes ----


def fsdp_bytes(plan: Plan, shapes: Mapping) -> tuple[int, int]:
    """Count the bytes that a forward and backward pass all-gathers, of whole weights, and
    reduce-scatters, of whole gradients.

    The embedding and the blocks are gathered twice, since FSDP2 frees them after their forward
    pass. The last norm and the head are gathered once: their backward pass follows at once. A tied
    embedding goes with the head. FSDP2 pads rows to a multiple of the shards.
    """
    config, shards = plan.config, plan.shards
    gathers_fp8 = config.quantize.linear.float8.enable_fsdp_float8_all_gather
    in_fp8 = {f"{name}.weight" for name in plan.fp8.layers} if gathers_fp8 else set()
    itemsize = getattr(torch, config.training.mixed_precision_param).itemsize
    reshard = config.parallelism.fsdp_reshard_after_forward
    apart = ("layers.", "tok_embeddings.") if "output.weight" in shapes else ("layers.",)
    weights, reduced = 0, Counter()  # elements of a rank's gradients that are sent together
    for name, (rows, *columns) in shapes.items():
        elements = -(-rows // shards) * shards * math.prod(columns)
        freed = reshard == "always" or reshard == "default" and name.startswith(apart)
        weights += elements * (1 if name in in_fp8 else itemsize) * (2 if freed else 1)
        together = ".".join(name.split(".")[:2]) if name.startswith(apart) else "norm and head"
        reduced[together] += elements // shards
    size = plan.recipe.hook("gradient_bytes", lambda config, n: 4 * n)
    return weights, shards * sum(size(config, n) for n in reduced.values())


def table(tree: Iterable, plan: Plan) -> list[dict]:
    """Sum up calls by collective, number of ranks and dtype; the largest payload comes first.

    Args:
        tree: the profiler's tree of events, its only record with the sizes of lists of tensors.
    """
    rows = {}
    for event, reduces_gradients in _calls(tree):
        collective = _OPERATORS[event.name]
        ranks = plan.shards
        if collective == "all-reduce":  # of gradients over replicas, else of a few scalars over all
            ranks = plan.world_size // (plan.shards if reduces_gradients else 1)
        tensors = [
            leaf for leaf in tree_leaves(event.extra_fields.inputs) if hasattr(leaf, "sizes")
        ]
        dtype = tensors[0].dtype
        row = {"collective": collective, "ranks": ranks, "dtype": str(dtype).removeprefix("torch.")}
        row |= {"calls": 0, "elements": 0, "payload_bytes": 0}
        row = rows.setdefault((collective, ranks, dtype), row)
        elements = max(math.prod(tensor.sizes) for tensor in tensors)
        row["calls"] += 1
        row["elements"] += elements
        row["payload_bytes"] += elements * dtype.itemsize
    for row in rows.values():
        trips = 2 if row["collective"] == "all-reduce" else 1
        row["bus_bytes"] = round(row["payload_bytes"] * trips * (row["ranks"] - 1) / row["ranks"])
    return sorted(rows.values(), key=lambda row: -row["payload_bytes"])


def _calls(tree: Iterable, reduces_gradients: bool = False) -> Iterator[tuple]:
    """Yield each call of a collective, and whether FSDP2 reduces gradients with it."""
    for event in tree:
        if event.name in _OPERATORS:
            yield event, reduces_gradients
        yield from _calls(event.children, reduces_gradients or event.name.startswith(_REDUCTION))


# ---- time ----


def nccl_seconds(events: Iterable) -> dict | None:
    """Time NCCL kernels, and how long no other kernel ran beside them; None without NCCL.

    An NCCL kernel runs from its launch on, also while it waits for the other ranks.
    """
    sends, computes = [], []
    for event in events:
        on_gpu = event.device_type == DeviceType.CUDA and not event.is_user_annotation
        if not on_gpu or event.name.startswith(("Memcpy", "Memset")):
            continue
        kernels = sends if _NCCL.match(event.name) else computes
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
