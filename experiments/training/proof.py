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

    ProofCollector(...)    checks claim 1, and which layers were converted
    watch_movement()       around the first optimizer step: checks claim 3
    profile(step)          around one step, mostly the third: checks claim 2
    record()               gives the proof of run.json
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from experiments.records.run import Parameters, Proof, StateKind, Stretch
from experiments.training.plan import Plan
from models import float8
from models.device import local_tensor

SEARCHED_ELEMENTS = 1 << 24  # of a parameter, for witnesses; this bounds memory
MAX_WITNESSES = 64  # elements of a parameter whose values are compared
MAX_REPORTED_SHAPES = 3
MatmulShape = tuple[int, int, int]  # M, K, N

FP8_MATMUL = "aten::_scaled_mm"
# Attention is none of these: it is bmm, or a kernel of its own
MATMUL_OPERATORS = {FP8_MATMUL, "aten::mm", "aten::addmm", "aten::_grouped_mm"}
ATTENTION_PATTERN = re.compile(
    "aten::_scaled_dot_product_(?:attention_)?(cudnn|flash|efficient|math)"
)
# With max-autotune inductor may compile a matmul into a kernel of its own, as
# triton_tem_fused__scaled_mm_3
TRITON_MATMUL_PATTERN = re.compile(r"triton_tem_.*?_(scaled_|add)?mm_")
COMPILATIONS = {
    "_compile.compile_inner (dynamo_timed)",
    "backward._backward_impl (dynamo_timed)",
}


class ProofError(RuntimeError):
    """The run is not what its recipe says."""


class ProofCollector:
    """Collects the evidence of one run of a plan. Raises `ProofError`.

    Args:
        model: converted and parallelized.
    """

    def __init__(self, plan: Plan, model: nn.Module, optimizer: torch.optim.Optimizer):
        self.plan = plan
        self.optimizer = optimizer
        self.parameters: dict[str, nn.Parameter] = {}
        self.trainable: dict[str, nn.Parameter] = {}
        for wrapped_name, parameter in model.named_parameters():
            name = float8.strip_wrapper_names(wrapped_name)
            self.parameters[name] = parameter
            if parameter.requires_grad:
                self.trainable[name] = parameter
        self.converted = float8.converted_modules(model)
        self.fp8 = plan.fp8  # of the steps to come: an extension may change it at a switch
        self.attention: str | None = None  # set by `profile`
        self.profiled: Stretch  # set by `profile`
        self.moved: Parameters  # set by `watch_movement`
        self.evidence: dict[str, dict] = {}  # by extension

        optimized_ids: set[int] = set()
        for group in optimizer.param_groups:
            optimized_ids.update(map(id, group["params"]))
        self.orphans = [name for name, p in self.trainable.items() if id(p) not in optimized_ids]
        plan.recipe.find_hook("check_orphans", check_orphans)(plan.config, self.orphans)

        unexpected = sorted(plan.fp8.layers ^ self.converted.keys())
        if unexpected:
            raise ProofError(
                f"the recipe converts {len(plan.fp8.layers)} linear layers to FP8, and "
                f"{len(self.converted)} were converted: {unexpected[0]} is one too many or too few"
            )

    # ---- claim 2: FP8 layers multiply in FP8 ----

    @contextmanager
    def profile(self, step: int) -> Iterator[None]:
        """Profile `step`, run inside; check its matmuls and graphs."""
        check_hooks = self.plan.recipe.find_hooks("check_profile").values()
        activities: list[ProfilerActivity] | None = [ProfilerActivity.CPU]
        if check_hooks:
            activities = None  # all that torch can record, with the work of a GPU
        with profile(activities=activities, record_shapes=True) as profiler:
            yield
        events = [event for event in profiler.events() if event.device_type == DeviceType.CPU]
        matmuls = find_matmuls(events)
        self.attention = find_attention(events)
        self.profiled = Stretch(
            in_fp8=self.fp8.scaling is not None,
            profiled_step=step,
            gemm_flops=sum_flops_by_operator(matmuls),
            row_scaled_flops=sum(matmul.flops for matmul in matmuls if matmul.is_row_scaled),
        )
        for check in check_hooks:
            check(self, profiler)
        if not self.fp8.emulated:
            self._check_matmuls(step, matmuls)
        if self.plan.config.compile.enable and count_compiled_graphs() == 0:
            raise ProofError(
                "the recipe is compiled and torch.compile made no graph, so all of it ran eager: "
                "unset TORCHDYNAMO_DISABLE, or say compile.enable=false"
            )

    def _check_matmuls(self, step: int, matmuls: Iterable["Matmul"]) -> None:
        """Compare the number of FP8 matmuls of each shape with the plan."""
        layers = self.converted.values() if self.fp8.scaling else []
        min_counts, max_counts = count_expected_matmuls(self.plan, layers)
        counts = Counter(matmul.shape for matmul in matmuls if matmul.is_fp8)
        differences = []
        for shape in max_counts.keys() | counts.keys():
            if not min_counts[shape] <= counts[shape] <= max_counts[shape]:
                m, k, n = shape
                expected = str(min_counts[shape])
                if max_counts[shape] > min_counts[shape]:  # recomputation may repeat a matmul
                    expected = f"{min_counts[shape]} to {max_counts[shape]}"
                differences.append(f"{counts[shape]} instead of {expected} of {m} x {k} x {n}")
        if differences:
            raise ProofError(
                f"the FP8 matmuls are not the recipe's: in step {step} {FP8_MATMUL} ran "
                f"{'; '.join(differences[:MAX_REPORTED_SHAPES])} (M x K x N)"
            )

    # ---- claim 3: parameters move ----

    @contextmanager
    @torch.no_grad()
    def watch_movement(self) -> Iterator[None]:
        """Check the first optimizer step, run inside: it must change each parameter.

        After a resume nothing is certain to change: the optimizer's moments are old, and its step
        can be of any size.
        """
        is_resumed = bool(self.optimizer.state)
        group = self.optimizer.param_groups[0]
        witnesses = {}
        for name, parameter in self.trainable.items():
            if parameter.grad is None:
                raise ProofError(f"{name} is trainable and got no gradient")
            if not is_resumed:
                witnesses[name] = _find_witnesses(
                    parameter, parameter.grad, float(group["lr"]), group["eps"]
                )
        yield
        still = []
        unmovable = []
        for name, (indices, values) in witnesses.items():
            if not indices.numel():
                unmovable.append(name)
            elif torch.equal(local_tensor(self.trainable[name]).flatten()[indices], values):
                still.append(name)
        stuck = [name for name in still if name not in self.orphans]
        if stuck:
            raise ProofError(
                f"{len(stuck)} parameters did not move in the first optimizer step, {stuck[0]} "
                "among them, although their gradient and dtype allow it: the optimizer steps "
                "something else"
            )
        optimized = [p for name, p in self.trainable.items() if name not in self.orphans]
        self.moved = Parameters(
            trainable=len(self.trainable),
            in_optimizer=len(optimized),
            elements_in_optimizer=sum(parameter.numel() for parameter in optimized),
            orphans=self.orphans,
            frozen=[name for name in self.parameters if name not in self.trainable],
            moved_in_first_step=len(witnesses) - len(still) - len(unmovable),
            still_in_first_step=still,
            # bf16 keeps 8 significant bits: a first step of 5e-7 cannot move a norm weight of 1.0
            dtype_cannot_hold_first_update=sorted(unmovable),
            bytes_per_parameter=self._bytes_per_parameter(optimized),
        )

    def _bytes_per_parameter(self, optimized: list[nn.Parameter]) -> dict[StateKind, float]:
        """Measure what this rank keeps from step to step: weights and optimizer states."""
        weights = [local_tensor(parameter) for parameter in optimized]
        n_elements = sum(weight.numel() for weight in weights)
        weight_bytes = sum(weight.nbytes for weight in weights)
        state_bytes = 0
        for state in self.optimizer.state.values():
            state_bytes += sum(local_tensor(tensor).nbytes for tensor in state.values())
        return {"weights": weight_bytes / n_elements, "states": state_bytes / n_elements}

    # ---- the record ----

    def record(self) -> Proof:
        """Sum up the evidence."""
        plan = self.plan
        return Proof(
            recipe_name=plan.fp8.recipe_name,
            emulated=plan.fp8.emulated,
            converted_modules={name: [*m.weight.shape] for name, m in self.converted.items()},
            profiled_step=self.profiled.profiled_step,
            gemm_flops=self.profiled.gemm_flops,
            fp8_flops=self.profiled.fp8_flops,
            fp8_flops_expected=plan.fp8.flops_per_token * plan.tokens,
            # By first step: one stretch, unless an extension splits it
            stretches={"1": self.profiled},
            attention=self.attention,
            compiled_graphs=count_compiled_graphs(),
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


class Matmul(NamedTuple):
    """A matmul of a profiled step: (M, K) by (K, N)."""

    operator: str
    shape: MatmulShape
    scale_shapes: tuple[tuple[int, ...], ...] = ()  # in FP8: of what follows the operands

    @property
    def is_row_scaled(self) -> bool:
        """True if a column of several scales, (M, 1), follows the operands."""
        return any(
            len(shape) == 2 and shape[0] > 1 and shape[1] == 1 for shape in self.scale_shapes
        )

    @property
    def flops(self) -> int:
        return 2 * math.prod(self.shape)

    @property
    def is_fp8(self) -> bool:
        return "_scaled_mm" in self.operator


def find_matmuls(events: Iterable) -> list[Matmul]:
    """List the matmuls of a profile with shapes; without attention's.

    What torch.compile calls while it compiles, to trace or to try kernels, is left out: a stretch
    of one step is profiled in the step that compiles it.
    """
    return _find_called_matmuls(event for event in events if event.cpu_parent is None)


def _find_called_matmuls(events: Iterable) -> list[Matmul]:
    """List the matmuls among operators and the operators that they call.

    Eager FP8 enters as aten::mm of a tensor subclass, which calls _scaled_mm: the latter counts.
    Any other matmul that calls matmuls counts itself.
    """
    matmuls = []
    for event in events:
        if event.name in COMPILATIONS:
            continue
        called = _find_called_matmuls(event.cpu_children)
        triton_match = TRITON_MATMUL_PATTERN.match(event.name)
        if triton_match:
            is_fp8 = triton_match[1] == "scaled_"
            matmuls.append(_read_triton_matmul(event, is_fp8))
        elif event.name in MATMUL_OPERATORS:
            called_in_fp8 = [matmul for matmul in called if matmul.is_fp8]
            matmuls += called_in_fp8 or [_read_matmul(event)]
        else:
            matmuls += called
    return matmuls


def _read_matmul(event) -> Matmul:
    """Read the shape of an operator's matmul."""
    shapes = event.input_shapes
    if event.name == "aten::addmm":  # the bias comes first
        shapes = shapes[1:]
    left = shapes[0]
    right = shapes[1]
    # A grouped matmul has the rows of all groups in its left operand
    shape = (math.prod(left[:-1]), left[-1], right[-1])
    if event.name == FP8_MATMUL:
        return Matmul(event.name, shape, _read_scale_shapes(event))
    return Matmul(event.name, shape)


def _read_triton_matmul(event, is_fp8: bool) -> Matmul:
    """Read the shape of a matmul that inductor compiled.

    Its two operands come first, each perhaps transposed, and its output last. Scales of rows have a
    dimension of 1 and are no matrices.
    """
    matrices = [shape for shape in event.input_shapes if len(shape) == 2 and min(shape) > 1]
    m, n = matrices[-1]
    # (M K) (K N) is (M N) times K squared
    k = math.isqrt(math.prod(matrices[0]) * math.prod(matrices[1]) // (m * n))
    if is_fp8:
        return Matmul("triton _scaled_mm", (m, k, n), _read_scale_shapes(event))
    return Matmul("triton mm", (m, k, n))


def _read_scale_shapes(event) -> tuple[tuple[int, ...], ...]:
    """Read the shapes of what follows an FP8 matmul's two operands."""
    return tuple(tuple(shape) for shape in event.input_shapes[2:])


def find_attention(events: Iterable) -> str | None:
    """Name whose kernels computed attention; None without any."""
    matches = [ATTENTION_PATTERN.match(event.name) for event in events]
    kernels = {match[1] for match in matches if match}
    return ", ".join(sorted(kernels)) or None


def sum_flops_by_operator(matmuls: Iterable[Matmul]) -> dict[str, int]:
    """Add up the FLOPs of matmuls."""
    flops: Counter[str] = Counter()
    for matmul in matmuls:
        flops[matmul.operator] += matmul.flops
    return dict(flops)


def count_expected_matmuls(
    plan: Plan, layers: Iterable[nn.Linear]
) -> tuple[Counter[MatmulShape], Counter[MatmulShape]]:
    """Count the FP8 matmuls of a step by shape, (M, K, N): at least and at most so many.

    A converted layer of `in` and `out` features multiplies, for each pass over `tokens`:

        output             (tokens, in) by (in, out)
        input's gradient   (tokens, out) by (out, in)
        weight's gradient  (out, tokens) by (tokens, in); in bf16 where the scaling says so

    Recomputation repeats the output's matmul, except where compiled code or a policy sees no need:
    with recomputation it counts once or twice. All else is exact.
    """
    tokens = plan.tokens // plan.passes
    recomputes = plan.config.activation_checkpoint.mode != "none"
    min_counts: Counter[MatmulShape] = Counter()
    max_counts: Counter[MatmulShape] = Counter()
    for layer in layers:
        n_out, n_in = layer.weight.shape
        shapes = [(tokens, n_in, n_out), (tokens, n_out, n_in)]
        if layer.weight.requires_grad and plan.fp8.casts_weight_gradient:
            shapes.append((n_out, tokens, n_in))
        for shape in shapes:
            min_counts[shape] += plan.passes
            max_counts[shape] += plan.passes
        if recomputes:
            max_counts[shapes[0]] += plan.passes
    return min_counts, max_counts


def count_compiled_graphs() -> int:
    """Count torch.compile's graphs of this process's code; cached kernels count too."""
    return counters["stats"]["unique_graphs"]


# ---- the first optimizer step ----


def _find_witnesses(
    parameter: nn.Parameter, parameter_gradient: torch.Tensor, lr: float, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find elements sure to change in Adam's first step, lr * g / (|g| + eps).

    Returns their indices and values. Half the step is taken for certain, and gradients below 100
    eps are left out.
    """
    weight = local_tensor(parameter).flatten()[:SEARCHED_ELEMENTS]
    gradient = local_tensor(parameter_gradient).flatten()[:SEARCHED_ELEMENTS]
    half_step = 0.5 * lr * gradient.float().sign()
    moves = (weight.float() - half_step).to(weight.dtype) != weight
    is_certain = gradient.abs() > 100 * eps
    indices = (moves & is_certain).nonzero().flatten()[:MAX_WITNESSES]
    return indices, weight[indices]


# ---- what a run begins with ----


def digest_tensors(tensors: Iterable[torch.Tensor]) -> str:
    """Digest the values of tensors, in their order; empty ones do not count.

    `torch.hash_tensor` XORs the values of a tensor as float64, so that the hash is the same in any
    order, and only eight bytes leave the device.
    """
    digest = hashlib.sha256()
    for tensor in tensors:
        if tensor.numel():
            digest.update(torch.hash_tensor(tensor).cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
