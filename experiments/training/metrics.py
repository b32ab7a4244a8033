"""Measure a run: its warm-up, its log windows, and how near to FP8's limits its values are."""

import math
import re
from collections import defaultdict

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.utils import calculate_time_spent, counters
from torch.distributed.tensor import DTensor
from torchao.float8.config import CastConfig
from torchao.float8.float8_scaling_utils import get_maybe_axiswise_dim
from torchao.float8.float8_utils import tensor_to_scale, to_fp8_saturated
from torchtitan.components.metrics import MetricsProcessor

from experiments.records.run import Timing, Window
from experiments.training.plan import Plan
from models import device, float8

# ---- the warm-up ----


def compiled_s() -> float:
    """Return the seconds that torch.compile took of this process, backward graphs included."""
    return calculate_time_spent().get("total_wall_time", 0.0)


def compile_cache() -> str:
    """`cold` if inductor compiled any graph, `warm` if all came from its cache, `none` without
    any.

    Some graphs cannot be cached (bypass): a block's with recomputation, whose random numbers are an
    operator that inductor has no key for.
    """
    found, graphs = counters["inductor"], counters["aot_autograd"]["autograd_cache_hit"]
    if found["fxgraph_cache_miss"] + found["fxgraph_cache_bypass"]:
        return "cold"
    return "warm" if graphs + found["fxgraph_cache_hit"] else "none"


class Timeline:
    """Seconds of each part of the warm-up, in the order in which parts were first marked."""

    def __init__(self):
        self.parts: dict[str, float] = {}
        self._last = 0.0

    def mark(self, part: str) -> None:
        """Count the time since the last mark for a part."""
        now = device.seconds_since_process_start()
        self.parts[part] = self.parts.get(part, 0.0) + now - self._last
        self._last = now

    def marked(self, build, until_call: str = "", own: str = ""):
        """Wrap `build`: count the time until it is called for one part, its own for another."""

        def build_and_mark(*args, **kwargs):
            if until_call:
                self.mark(until_call)
            built = build(*args, **kwargs)
            if own:
                self.mark(own)
            return built

        return build_and_mark

    def end_first_step(self) -> Timing:
        """Count what torch.compile took of a run's first step as a part of its own; return all.

        `compiled_s` counts from the start of the process, which may have trained before.
        """
        self.mark("first_step")
        compiled_before = self.parts.get("compile", 0.0)
        self.parts["compile"] = compiled_s()
        self.parts["first_step"] -= self.parts["compile"] - compiled_before
        return Timing(
            warm_up_s=sum(self.parts.values()),
            phases=dict(self.parts),
            compile_cache=compile_cache(),
        )


TIMELINE = Timeline()


# ---- log windows ----


class Meter:
    """Collects the steps of a log window; `close` makes its record."""

    def __init__(self, plan: Plan):
        self.plan = plan

    def begin(self, mark) -> None:
        """Begin a window at a `device.mark`."""
        self.marks = [mark]  # then one at the end of each step
        self.losses: list[torch.Tensor] = []  # this rank's part of each step's, on the device
        self.valid_tokens = 0.0  # of all ranks
        self.not_steady: list[int] = []

    def end_step(self, step: int, loss: torch.Tensor, valid_tokens: float, steady: bool) -> None:
        """Note when a step ended, and what it did."""
        self.marks.append(device.mark())
        self.losses.append(loss)
        self.valid_tokens += valid_tokens
        if not steady:
            self.not_steady.append(step)

    def close(
        self,
        step: int,
        grad_norm: float,
        lr: float,
        processor: MetricsProcessor,
        ranges: dict[str, float],
        in_fp8: float,
    ) -> Window:
        """Make the record of the window that `step` ends. All ranks call it.

        Args:
            processor: torchtitan's, with the waits for the window's micro-batches.
            in_fp8: FLOPs of a token that run in FP8.
        """
        losses = torch.stack(self.losses)
        if self.plan.world_size > 1:
            dist.all_reduce(losses)
        step_s = device.seconds_between(self.marks)
        waits = np.reshape(processor.data_loading_times, (len(step_s), -1)).sum(1)
        peak_memory = processor.device_memory_monitor.get_peak_stats().max_reserved_gib * 2**30
        seconds = sum(step_s)
        tokens_per_s = self.plan.tokens * self.plan.world_size * len(step_s) / seconds
        window = Window(
            step=step,
            elapsed_s=round(device.seconds_since_process_start(), 3),
            loss=finite(losses.mean().item()),
            losses=list(map(finite, losses.tolist())),
            grad_norm=finite(grad_norm),
            lr=lr,
            tokens_per_s=tokens_per_s,
            valid_tokens_per_s=self.valid_tokens / seconds,
            step_s=[round(s, 6) for s in step_s],
            data_wait_s=[round(s, 6) for s in waits.tolist()],
            not_steady=self.not_steady,
            peak_memory_bytes=int(peak_memory),
            fp8_ranges={name: finite(value) for name, value in ranges.items()},
            **utilisation(self.plan, tokens_per_s, in_fp8),
        )
        self.begin(self.marks[-1])
        return window


def utilisation(plan: Plan, tokens_per_s: float, in_fp8: float = 0) -> dict[str, float | None]:
    """Give the three MFUs of all ranks together at `tokens_per_s`: fractions of 1.

    `in_fp8` are the FLOPs of a token that ran in FP8. Without a datasheet's peak there are none.
    """
    peak, flops = device.peak(), plan.flops_per_token
    if peak is None:
        return {}
    rate = tokens_per_s / plan.world_size
    by_fp8 = by_both = None
    if peak.fp8:
        by_fp8 = rate * flops / peak.fp8
        by_both = rate * (in_fp8 / peak.fp8 + (flops - in_fp8) / peak.bf16)
    return {
        "mfu_bf16_peak": rate * flops / peak.bf16,
        "mfu_fp8_peak": by_fp8,
        "mfu_mixed_peak": by_both,
    }


def finite(value: float) -> float | None:
    """Write a number that is not finite as null."""
    return value if math.isfinite(value) else None


# ---- FP8's ranges ----

# Compiled code casts where nobody can look, so at the end of some steps the weights and their
# gradients are cast once more, by torchao's functions. A weight's gradient is not cast in training;
# it stands for the gradients of outputs, which compiled code keeps to itself. A format too narrow
# for its values shows here before it shows in the loss.

QUANTITIES = ("amax", "scale", "saturated", "flushed")


def fp8_ranges(model: nn.Module) -> dict[str, float]:
    """Return `TENSOR/QUANTITY/GROUP` to value, for the layers that are in FP8 now.

    TENSOR is `weight` or `gradient`. A GROUP is the same layer of all blocks, as `feed_forward.w1`.
    The quantities:
      amax        the largest absolute value of the group
      scale       the smallest factor by which one of its casts multiplies
      saturated   fraction of the values that become the format's largest value
      flushed     fraction of the values that are not 0 and become 0

    Sharded weights are gathered one by one, so all ranks have to call this. Weights that FSDP2
    gathers in FP8 have none: their scale is that of all shards; nor have weights with scales of
    blocks.
    """
    groups: dict[tuple[str, str], list[torch.Tensor]] = defaultdict(list)
    for name, layer in float8.converted_modules(model).items():
        config = layer.config
        gathered = config.enable_fsdp_float8_all_gather
        if gathered or layer.scaling.by_blocks:
            continue
        group, powers_of_2 = re.sub(r"^layers\.\d+\.", "", name), config.round_scales_to_power_of_2
        weight, gradient = layer.weight, layer.weight.grad
        groups["weight", group].append(_range(weight, config.cast_config_weight, powers_of_2))
        if gradient is not None:
            cast = config.cast_config_grad_output
            groups["gradient", group].append(_range(gradient, cast, powers_of_2))
    if not groups:
        return {}
    combined = torch.stack([_combined(torch.stack(layers)) for layers in groups.values()])
    ranges = {}
    for (tensor, group), values in zip(groups, combined.tolist(), strict=True):  # one wait
        for quantity, value in zip(QUANTITIES, values, strict=True):
            ranges[f"{tensor}/{quantity}/{group}"] = value
    return ranges


@torch.no_grad()
def _range(x: torch.Tensor, cast: CastConfig, powers_of_2: bool) -> torch.Tensor:
    """(4,) float32, the `QUANTITIES` of one matrix, cast by rows where rows have scales."""
    x = x.full_tensor() if isinstance(x, DTensor) else x
    dtype, granularity = cast.target_dtype, cast.scaling_granularity
    rows = get_maybe_axiswise_dim(-1, granularity)
    scale = tensor_to_scale(
        x, dtype, scaling_granularity=granularity, axiswise_dim=rows,
        round_scales_to_power_of_2=powers_of_2,
    )  # fmt: skip
    low = to_fp8_saturated(x.float() * scale, dtype)
    size = low.view(torch.uint8) & 0x7F  # without the sign; bits compare faster than FP8 converts
    largest = torch.tensor(torch.finfo(dtype).max).to(dtype).view(torch.uint8).item()
    saturated, flushed = size == largest, (size == 0) & (x != 0)
    shares = [mask.count_nonzero() / x.numel() for mask in (saturated, flushed)]
    return torch.stack([x.abs().amax().float(), scale.amin(), *shares])


def _combined(layers: torch.Tensor) -> torch.Tensor:
    """(4,) of a group, from those of its layers (n, 4), which are of one size."""
    amax, scale, saturated, flushed = layers.unbind(1)
    return torch.stack([amax.amax(), scale.amin(), saturated.mean(), flushed.mean()])
