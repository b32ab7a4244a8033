"""Prove what a run did, because FP8 fails silently: training in bf16 instead looks fine.

Three claims. A claim that does not hold stops the run:

  1. Every trainable parameter is in the optimizer. (An extension can leave parameters out on
     purpose; such orphans are on record instead.)
  2. The layers in FP8 are those that the recipe names, and one profiled step calls
     `aten::_scaled_mm` for each of their matmuls, in number and shape. A recipe in bf16 calls
     none. A recipe with `torch.compile` has compiled graphs.
  3. Every parameter moves in the first optimizer step, where its gradient and its dtype allow it.

An emulated run rounds to FP8 and multiplies in float32: it is on record as emulated, and the
matmuls of claim 2 are not checked.

One profiled step does not show what other steps do, which FP8 format the gradients have, or how
emulated formats round: tests compare those with plain arithmetic.

The trainer calls, in this order:

    Proof(...)     checks claim 1, and which layers were converted
    movement()     around the first optimizer step: checks claim 3
    profile(step)  around one step, mostly the third: checks claim 2
    record()       gives the proof of run.json
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import NamedTuple

import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from experiments.records import run as records
from experiments.training.plan import Plan
from models import float8
from models.device import local_tensor

LOOKED_AT = 1 << 24  # elements of a parameter, which bounds memory
WITNESSES = 64  # elements remembered per parameter

_FP8_MATMUL = "aten::_scaled_mm"
# Attention is none of these: bmm, or a kernel of its own.
_MATMULS = {_FP8_MATMUL, "aten::mm", "aten::addmm", "aten::_grouped_mm"}
_ATTENTION = re.compile("aten::_scaled_dot_product_(?:attention_)?(cudnn|flash|efficient|math)")
# With max-autotune inductor may compile a matmul into a kernel of its own, as
# triton_tem_fused__scaled_mm_3.
_TEMPLATE = re.compile(r"triton_tem_.*?_(scaled_|add)?mm_")
_COMPILATIONS = {
    "_compile.compile_inner (dynamo_timed)",
    "backward._backward_impl (dynamo_timed)",
}


class ProofError(RuntimeError):
    """The run is not what its recipe says."""


class Proof:
    """Collects the evidence of one run of a plan. Raises `ProofError`.

    `model` is converted and parallelized. Later, `profile` sets `profiled` (what the profiled step
    ran) and `movement` sets `moved` (what the first optimizer step did to the parameters).
    """

    def __init__(self, plan: Plan, model: nn.Module, optimizer: torch.optim.Optimizer):
        self.plan, self.optimizer = plan, optimizer
        self.parameters = {
            float8.strip_wrapper_names(name): p for name, p in model.named_parameters()
        }
        self.trainable = {name: p for name, p in self.parameters.items() if p.requires_grad}
        self.converted = float8.converted_modules(model)
        self.fp8 = plan.fp8  # of the steps to come
        self.attention: str | None = None  # until a step was profiled
        self.evidence: dict[str, dict] = {}  # by extension

        owned = set(map(id, chain(*(group["params"] for group in optimizer.param_groups))))
        self.orphans = [name for name, p in self.trainable.items() if id(p) not in owned]
        plan.recipe.find_hook("check_orphans", check_orphans)(plan.config, self.orphans)

        differ = sorted(plan.fp8.layers ^ self.converted.keys())
        if differ:
            raise ProofError(
                f"the recipe converts {len(plan.fp8.layers)} linear layers to FP8, and "
                f"{len(self.converted)} were converted: {differ[0]} is one too many or too few"
            )

    # ---- claim 2: FP8 layers multiply in FP8 ----

    @contextmanager
    def profile(self, step: int) -> Iterator[None]:
        """Profile `step`, run inside; check its matmuls and graphs."""
        checks = self.plan.recipe.find_hooks("check_profile")
        activities = None if checks else [ProfilerActivity.CPU]  # None: what GPUs do too
        with profile(activities=activities, record_shapes=True) as profiler:
            yield
        events = [event for event in profiler.events() if event.device_type == DeviceType.CPU]
        matmuls = find_matmuls(events)
        self.attention = find_attention(events)
        self.profiled = records.Stretch(
            in_fp8=self.fp8.scaling is not None,
            profiled_step=step,
            gemm_flops=flops_by_operator(matmuls),
            row_scaled_flops=sum(matmul.flops for matmul in matmuls if matmul.row_scaled),
        )
        for check in checks:
            check(self, profiler)
        layers = self.converted.values() if self.fp8.scaling else []
        differ = differences(self.plan, layers, matmuls)
        if differ and not self.fp8.emulated:
            raise ProofError(
                f"the FP8 matmuls are not the recipe's: in step {step} aten::_scaled_mm ran "
                f"{'; '.join(differ[:3])} (M x K x N)"
            )
        if self.plan.config.compile.enable and compiled_graphs() == 0:
            raise ProofError(
                "the recipe is compiled and torch.compile made no graph, so all of it ran eager: "
                "unset TORCHDYNAMO_DISABLE, or say compile.enable=false"
            )

    # ---- claim 3: parameters move ----

    @contextmanager
    @torch.no_grad()
    def movement(self) -> Iterator[None]:
        """Check the first optimizer step, run inside: it must change each parameter.

        After a resume nothing is certain to change: the optimizer's moments are old, and its step
        can be of any size.
        """
        resumed, group = bool(self.optimizer.state), self.optimizer.param_groups[0]
        witnesses = {}
        for name, parameter in self.trainable.items():
            if parameter.grad is None:
                raise ProofError(f"{name} is trainable and got no gradient")
            if not resumed:
                witnesses[name] = _find_witnesses(parameter, float(group["lr"]), group["eps"])
        yield
        still, unmovable = [], []
        for name, (index, before) in witnesses.items():
            if not index.numel():
                unmovable.append(name)
            elif torch.equal(local_tensor(self.trainable[name]).flatten()[index], before):
                still.append(name)
        stuck = [name for name in still if name not in self.orphans]
        if stuck:
            raise ProofError(
                f"{len(stuck)} parameters did not move in the first optimizer step, {stuck[0]} "
                "among them, although their gradient and dtype allow it: the optimizer steps "
                "something else"
            )
        owned = [p for name, p in self.trainable.items() if name not in self.orphans]
        self.moved = records.Parameters(
            trainable=len(self.trainable),
            in_optimizer=len(owned),
            elements_in_optimizer=sum(p.numel() for p in owned),
            orphans=self.orphans,
            frozen=[name for name in self.parameters if name not in self.trainable],
            moved_in_first_step=len(witnesses) - len(still) - len(unmovable),
            still_in_first_step=still,
            # bf16 keeps 8 significant bits: a first step of 5e-7 cannot move a norm weight of 1.0
            dtype_cannot_hold_first_update=sorted(unmovable),
            bytes_per_parameter=self._bytes_per_parameter(owned),
        )

    def _bytes_per_parameter(self, owned: list[nn.Parameter]) -> dict[str, float]:
        """Measure what this rank keeps from step to step: weights and optimizer states."""
        elements = sum(local_tensor(parameter).numel() for parameter in owned)
        states = 0
        for state in self.optimizer.state.values():
            states += sum(local_tensor(tensor).nbytes for tensor in state.values())
        weights = sum(local_tensor(parameter).nbytes for parameter in owned)
        return {"weights": weights / elements, "states": states / elements}

    # ---- the record ----

    def record(self) -> records.Proof:
        """Sum up the evidence."""
        plan, profiled = self.plan, self.profiled
        return records.Proof(
            recipe_name=plan.fp8.recipe_name,
            emulated=plan.fp8.emulated,
            converted_modules={name: [*m.weight.shape] for name, m in self.converted.items()},
            profiled_step=profiled.profiled_step,
            gemm_flops=profiled.gemm_flops,
            fp8_flops=profiled.fp8_flops,
            fp8_flops_expected=plan.fp8.flops_per_token * plan.tokens,
            stretches={"1": profiled},  # by first step: one stretch, unless an extension splits it
            attention=self.attention,
            compiled_graphs=compiled_graphs(),
            parameters=self.moved,
            **self.evidence,
        )


def check_orphans(config, orphans: list[str]) -> None:
    """Raise `ProofError` for trainable parameters outside the optimizer."""
    if orphans:
        raise ProofError(
            f"{len(orphans)} trainable parameters are in no optimizer and would never learn, "
            f"{orphans[0]} among them: build the optimizer after the FP8 conversion, which can "
            "replace parameters"
        )


# ---- a profiled step ----


class Gemm(NamedTuple):
    """A matmul of a profiled step."""

    operator: str
    shape: tuple[int, int, int]  # M, K, N: (M, K) by (K, N)
    scale_shapes: tuple[tuple[int, ...], ...] = ()  # in FP8: of what follows the operands

    @property
    def row_scaled(self) -> bool:
        """True if a column of scales (M, 1) is among them."""
        return any(len(shape) == 2 and shape[1] == 1 < shape[0] for shape in self.scale_shapes)

    @property
    def flops(self) -> int:
        return 2 * math.prod(self.shape)

    @property
    def in_fp8(self) -> bool:
        return "_scaled_mm" in self.operator


def find_matmuls(events: Iterable) -> list[Gemm]:
    """List the matmuls of a profile with shapes; without attention's.

    What torch.compile calls while it compiles, to trace or to try kernels, is left out: a phase of
    one step is profiled in the step that compiles it.
    """
    return _find(event for event in events if event.cpu_parent is None)


def _find(events: Iterable) -> list[Gemm]:
    """List the matmuls among operators and their calls.

    Eager FP8 enters as aten::mm of a tensor subclass, which calls _scaled_mm: the latter counts.
    Any other matmul that calls matmuls counts itself.
    """
    found = []
    for event in events:
        if event.name in _COMPILATIONS:
            continue
        called = _find(event.cpu_children)
        if event.name in _MATMULS or _TEMPLATE.match(event.name):
            called = [matmul for matmul in called if matmul.in_fp8] or [_matmul(event)]
        found += called
    return found


def _matmul(event) -> Gemm:
    name, shapes, template = event.name, event.input_shapes, _TEMPLATE.match(event.name)
    if template:  # two operands come first, each perhaps transposed, and the output last
        name = "triton _scaled_mm" if template[1] == "scaled_" else "triton mm"
        # Scales of rows have a dimension of 1 and are no matrices.
        left, right, *_, (m, n) = [each for each in shapes if len(each) == 2 and min(each) > 1]
        # (m k) (k n) is (m n) times k squared
        k = math.isqrt(math.prod(left) * math.prod(right) // (m * n))
    else:
        left, right = shapes[name == "aten::addmm" :][:2]  # without addmm's bias
        # A grouped matmul has the rows of all groups in its left operand.
        m, k, n = math.prod(left[:-1]), left[-1], right[-1]
    gemm = Gemm(name, (m, k, n))
    if gemm.in_fp8:
        gemm = gemm._replace(scale_shapes=tuple(map(tuple, shapes[2:])))
    return gemm


def find_attention(events: Iterable) -> str | None:
    """Name whose kernels computed attention; None without any."""
    found = [_ATTENTION.match(event.name) for event in events]
    return ", ".join(sorted({match[1] for match in found if match})) or None


def flops_by_operator(matmuls: Iterable[Gemm]) -> dict[str, int]:
    """Add up the FLOPs of matmuls."""
    flops = Counter()
    for matmul in matmuls:
        flops[matmul.operator] += matmul.flops
    return dict(flops)


def differences(plan: Plan, layers: Iterable[nn.Module], matmuls: Iterable[Gemm]) -> list[str]:
    """Name the shapes with too few or too many FP8 matmuls in a step.

    A converted layer of `in` and `out` features multiplies, for each pass over `tokens`:

        output             (tokens, in) by (in, out)
        input's gradient   (tokens, out) by (out, in)
        weight's gradient  (out, tokens) by (tokens, in); in bf16 where the scaling says so

    Recomputation repeats the output's matmul, except where compiled code or a policy sees no need:
    with recomputation it counts once or twice. All else is exact.
    """
    tokens, passes = plan.tokens // plan.passes, plan.passes
    recomputes = plan.config.activation_checkpoint.mode != "none"
    least, most = Counter(), Counter()
    for layer in layers:
        n, k = layer.weight.shape
        count = plan.fp8.scaling.matmuls if layer.weight.requires_grad else 2
        shapes = [(tokens, k, n), (tokens, n, k), (n, tokens, k)][:count]
        least.update(shapes * passes)
        most.update((shapes + shapes[:1] * recomputes) * passes)
    ran = Counter(matmul.shape for matmul in matmuls if matmul.in_fp8)
    found = []
    for shape in most.keys() | ran.keys():
        if not least[shape] <= ran[shape] <= most[shape]:
            sizes = " x ".join(map(str, shape))
            found.append(f"{ran[shape]} instead of {least[shape]} of {sizes}")
    return found


def compiled_graphs() -> int:
    """Count torch.compile's graphs of this process's code; cached kernels count too."""
    return counters["stats"]["unique_graphs"]


# ---- the first optimizer step ----


def _find_witnesses(
    parameter: nn.Parameter, lr: float, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find elements sure to change in Adam's first step, lr * g / (|g| + eps).

    Returns their indices and values. Half the step is taken for certain, and gradients below 100
    eps are left out.
    """
    weight = local_tensor(parameter).flatten()[:LOOKED_AT]
    gradient = local_tensor(parameter.grad).flatten()[:LOOKED_AT]
    moves = (weight.float() - 0.5 * lr * gradient.float().sign()).to(weight.dtype) != weight
    index = (moves & (gradient.abs() > 100 * eps)).nonzero().flatten()[:WITNESSES]
    return index, weight[index]
