"""What the ranks of a run send one another in a step: collectives by dtype, and how much of them
compute does not hide.

Bytes follow nccl-tests (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md). The payload is the whole
tensor: an all-gather's output, the input of a reduce-scatter or of an all-to-all. Bus bytes are
what the link of a rank carries in each direction, however fast: among n ranks 2(n-1)/n of the
payload in an all-reduce, (n-1)/n in the others.

Operators of `c10d::` are counted, which are the same for all backends. gloo's own are not: its
reduce-scatter is an all-reduce.
"""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

from models.flops import fsdp_bytes

ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL = (
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "all-to-all",
)
_OPERATORS = {
    "c10d::_allgather_base_": ALL_GATHER,
    "c10d::_reduce_scatter_base_": REDUCE_SCATTER,
    "c10d::allreduce_": ALL_REDUCE,
    "c10d::alltoall_base_": ALL_TO_ALL,
}
_REDUCTION = "FSDP::post_backward_reduce"  # begins the name of FSDP2's region that reduces the gradients of a group
_NCCL = re.compile(r"nccl(Dev)?Kernel")


@dataclass(frozen=True)
class Sharding:
    """How FSDP2 shards a run's model, and in which precision it sends weights and gradients."""

    shards: int  # ranks that hold the model together
    replicas: int  # how many such groups of ranks there are
    weight_bytes: int  # of an element that is gathered, where it is not in FP8
    reshard: str  # parallelism.fsdp_reshard_after_forward
    fp8: bool  # the recipe promises that the weights of converted layers are gathered in FP8
    fp8_gradients: bool = (
        False  # and that gradients are sent in FP8, by all-to-all; else they are in float32
    )

    @property
    def ranks(self) -> int:
        return self.shards * self.replicas

    def expected(
        self, shapes: Mapping[str, Sequence[int]], converted: Collection[str], passes: int
    ) -> dict[str, int]:
        """Payloads of a step by closed form: of weights that are gathered, of gradients that are
        reduced.

        Args:
            shapes: of the parameters by name, unsharded.
            converted: names of the FP8 layers' weights.
            passes: forward passes of a step.
        """
        fp8 = converted if self.fp8 else ()
        gathered, reduced = fsdp_bytes(
            shapes, self.shards, fp8, self.weight_bytes, self.reshard, self.fp8_gradients
        )
        sent = passes * (self.shards > 1)
        return {
            "gathered_bytes_expected": sent * gathered,
            "reduced_bytes_expected": sent * reduced,
        }


def sharding(config, parallel_dims) -> Sharding | None:
    """That of a recipe's `JobConfig` over torchtitan's dimensions; None for one rank."""
    if parallel_dims.world_size == 1:
        return None
    return Sharding(
        shards=parallel_dims.dp_shard,
        replicas=parallel_dims.dp_replicate,
        weight_bytes={"bfloat16": 2, "float32": 4}[config.training.mixed_precision_param],
        reshard=config.parallelism.fsdp_reshard_after_forward,
        fp8=config.quantize.linear.float8.enable_fsdp_float8_all_gather,
        fp8_gradients=config.quantize.gradients == "float8",
    )


def activities(sharding: Sharding | None) -> list[ProfilerActivity]:
    """What to profile: the host's operators and, where ranks share a run on GPUs, the kernels."""
    kernels = [ProfilerActivity.CUDA] if sharding and torch.cuda.is_available() else []
    return [ProfilerActivity.CPU, *kernels]


def record(profiler, sharding: Sharding) -> dict:
    """What this rank sent, from a finished profile of one step with shapes; see `table` and
    `nccl_seconds`."""
    rows = table(profiler.profiler.kineto_results.experimental_event_tree(), sharding)

    def total(key: str, *collectives: str) -> int:
        return sum(row[key] for row in rows if row["collective"] in collectives)

    return {
        "shards": sharding.shards,
        "replicas": sharding.replicas,
        "table": rows,
        "gathered_bytes": total("payload_bytes", ALL_GATHER),
        "reduced_bytes": total("payload_bytes", REDUCE_SCATTER, ALL_TO_ALL),
        "all_reduces": total("calls", ALL_REDUCE),
        "nccl": nccl_seconds(profiler.events()),
    }


# ---- bytes ----


def table(tree: Iterable, sharding: Sharding) -> list[dict]:
    """One row a collective, number of ranks and dtype, with calls, elements, payload and bus bytes.

    Args:
        tree: the profiler's tree of events, its one record that has the sizes of lists of tensors.
    """
    rows: dict[tuple, dict] = {}
    for event, in_reduction in _calls(tree):
        kind = _OPERATORS[event.name]
        sizes = [sum(math.prod(tensor.sizes) for tensor in tensors) for tensors in _tensors(event)]
        if (
            kind == ALL_REDUCE
        ):  # besides FSDP's, over replicas, there are only some of a few scalars over all ranks
            ranks = sharding.replicas if in_reduction else sharding.ranks
        elif kind == ALL_TO_ALL:
            ranks = sharding.shards
        else:
            ranks = max(sizes) // min(sizes)
        dtype = next(_tensors(event))[0].dtype
        key = {"collective": kind, "ranks": ranks, "dtype": str(dtype).removeprefix("torch.")}
        row = rows.setdefault(tuple(key.values()), key | dict.fromkeys(_COUNTED, 0))
        share = (ranks - 1) / ranks * (2 if kind == ALL_REDUCE else 1)
        payload = max(sizes) * dtype.itemsize
        for name, value in zip(
            _COUNTED, (1, max(sizes), payload, round(payload * share)), strict=True
        ):
            row[name] += value
    return sorted(rows.values(), key=lambda row: -row["payload_bytes"])


_COUNTED = ("calls", "elements", "payload_bytes", "bus_bytes")


def _calls(tree: Iterable, in_reduction: bool = False) -> Iterator[tuple]:
    """Each call of a collective, and whether FSDP2 reduces gradients with it."""
    for event in tree:
        if event.name in _OPERATORS:
            yield event, in_reduction
        yield from _calls(event.children, in_reduction or event.name.startswith(_REDUCTION))


def _tensors(event) -> Iterator[list]:
    """The tensors that an operator takes, a list an argument."""
    for argument in event.extra_fields.inputs:
        tensors = argument if isinstance(argument, list) else [argument]
        if tensors and hasattr(tensors[0], "sizes"):
            yield tensors


# ---- time ----


def nccl_seconds(events: Iterable) -> dict[str, float] | None:
    """Seconds in which NCCL kernels ran, and in which no kernel but them did; None where there are
    none.

    A rank's NCCL kernel runs from its launch on, also while it waits for the other ranks.
    """
    kernels = [e for e in events if e.device_type == DeviceType.CUDA and not e.is_user_annotation]
    kernels = [e for e in kernels if not e.name.startswith(("Memcpy", "Memset"))]
    sends, computes = [], []
    for kernel in kernels:
        interval = kernel.time_range.start / 1e6, kernel.time_range.end / 1e6  # from microseconds
        (sends if _NCCL.match(kernel.name) else computes).append(interval)
    if not sends:
        return None
    return {
        "seconds": covered(sends),
        "exposed_seconds": covered(sends + computes) - covered(computes),
    }


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Length of the union of (start, end)."""
    length, reached = 0.0, -math.inf
    for start, end in sorted(intervals):
        length += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return length
