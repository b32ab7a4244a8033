"""Proof of what a run did, because FP8 fails silently: a run that is not in FP8 trains in bf16 and
looks fine.

Three claims, checked while the run trains and kept in proof.json; a claim that does not hold stops
the run:
  1. an FP8 recipe has converted layers, and in one profiled step `aten::_scaled_mm` did the FLOPs
  they account for;
     where FP8 is switched on and off, one step of each phase is profiled, and `aten::_scaled_mm`
     did none in bf16; several ranks sent no more bytes of weights and gradients than the recipe's
     precisions take (collectives.py);
  2. every trainable parameter is in the optimizer;
  3. every one of them moved in the first optimizer step, where its gradient and its dtype allow it.
A recipe that leaves parameters out of the optimizer on purpose (`optimizer.built`) has those
orphans on record instead.
"""

import math
import re
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import profile

from experiments.training import collectives
from models import float8
from models.fused_adamw import local

PROFILED_STEP = 3  # the first step compiles, the second may compile again
RECORDING_STEP = 2  # profiled with CUDA graphs: they warm up in the first; from the third on no operator is called
_FP8_OPS = {"aten::_scaled_mm", "aten::_scaled_mm_v2"}
# Of linear layers and experts; attention is another kernel, or bmm. On a CPU experts are mm, one
# after the other.
_GEMM_OPS = _FP8_OPS | {"aten::mm", "aten::addmm", "aten::_grouped_mm"}
_COMPILATIONS = {
    f"{key} (dynamo_timed)" for key in ("_compile.compile_inner", "backward._backward_impl")
}
# With max-autotune inductor may compile a product into a kernel of its own, such as
# triton_tem_fused__scaled_mm_3
_TEMPLATE = re.compile(r"triton_tem_.*?_(scaled_|add)?mm_")
_ATTENTION_OPS = {
    "aten::_scaled_dot_product_cudnn_attention": "cudnn",
    "aten::_scaled_dot_product_flash_attention": "flash",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "flash",
    "aten::_scaled_dot_product_efficient_attention": "efficient",
    "aten::_scaled_dot_product_attention_math": "math",
}
_CHUNK = 1 << 24  # elements looked at together when searching a parameter for ones that must move
_WITNESSES = 64  # elements remembered per parameter


class ProofError(RuntimeError):
    """The run is not what its recipe says."""


@dataclass
class Proof:
    """Collects the evidence of one run. Raises `ProofError`, from the start for claim 2 and a
    missing conversion."""

    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    recipe_name: str | None  # quantize.linear.float8.recipe_name, None for a run in bf16
    tokens: int  # of one forward pass on this rank: batch times sequence
    passes_per_step: int = 1  # gradient accumulation
    allow_orphans: bool = False  # trainable parameters in no optimizer are what the recipe is about
    sharding: collectives.Sharding | None = None  # of several ranks
    orphans: list[str] = field(default_factory=list)
    parameters: dict = field(default_factory=dict)
    gemm_flops: dict[str, int] = field(default_factory=dict)
    attention: list[str] = field(default_factory=list)
    sent: dict | None = None  # of several ranks, see collectives.record
    profiled_step: int | None = None
    phases: dict[int, dict] = field(
        default_factory=dict
    )  # by first step: what the profile of one step of it showed

    def __post_init__(self):
        self.converted = float8.converted_modules(self.model)
        if self.recipe_name and not self.converted:
            raise ProofError(
                f"the recipe asks for {self.recipe_name} FP8 and no layer was converted"
            )
        self._check_optimizer()
        self._witnesses: dict[
            str, tuple[torch.Tensor, torch.Tensor]
        ] = {}  # indices and values before the step
        self._resumed = False

    def take_over(self, record: dict, step: int) -> None:
        """Phases that an earlier attempt at the run profiled, by its record, up to the `step` that
        was resumed from."""
        phases = record.get("phases", {}).items()
        self.phases = {
            int(first): phase for first, phase in phases if phase["profiled_step"] <= step
        }

    @property
    def emulated(self) -> bool:
        """Whether layers round to FP8 but multiply in high precision."""
        return any(map(float8.emulates, self.converted.values()))

    @property
    def fp8_flops_expected(self) -> int:
        """FLOPs per step that the converted layers account for: 2 M N K for each GEMM with FP8
        operands."""
        weights = sum(
            m.in_features * m.out_features * float8.fp8_products(m) for m in self.converted.values()
        )
        return 2 * self.tokens * self.passes_per_step * weights

    @property
    def fp8_flops(self) -> int:
        """FLOPs per step that `aten::_scaled_mm`, or a compiled kernel in its place, was last seen
        to do."""
        return _in_fp8(self.gemm_flops)

    def trainable(self) -> dict[str, nn.Parameter]:
        return {
            n.replace("_orig_mod.", ""): p
            for n, p in self.model.named_parameters()
            if p.requires_grad
        }

    def _check_optimizer(self) -> None:
        """Claim 2."""
        owned = {
            id(p) for opt in self.optimizers for group in opt.param_groups for p in group["params"]
        }
        self.orphans = [name for name, p in self.trainable().items() if id(p) not in owned]
        if self.orphans and not self.allow_orphans:
            raise ProofError(
                f"{len(self.orphans)} trainable parameters are in no optimizer and would never learn, "
                f"{self.orphans[0]} among them: build the optimizer after the FP8 conversion, which can replace "
                "parameters"
            )

    @torch.no_grad()
    def before_step(self) -> None:
        """Before the first optimizer step: find in every parameter some elements that it must
        change.

        After a resume the optimizer's moments are old and its step can be of any size: then nothing
        is certain.
        """
        self._resumed = any(opt.state for opt in self.optimizers)
        groups = [group for opt in self.optimizers for group in opt.param_groups]
        learning_rate = {id(p): group["lr"] for group in groups for p in group["params"]}
        for name, parameter in self.trainable().items():
            if parameter.grad is None:
                raise ProofError(f"{name} is trainable and got no gradient")
            if self._resumed:
                continue
            lr = float(
                learning_rate.get(id(parameter), groups[0]["lr"])
            )  # an orphan's: what it ought to be
            if witness := _find_witness(local(parameter), local(parameter.grad), lr):
                self._witnesses[name] = witness

    @torch.no_grad()
    def after_step(self) -> None:
        """Claim 3, after the first optimizer step."""
        parameters, still = self.trainable(), []
        for name, (index, before) in self._witnesses.items():
            if torch.equal(local(parameters[name]).flatten()[index], before):
                still.append(name)
        if owned_still := [name for name in still if name not in self.orphans]:
            raise ProofError(
                f"{len(owned_still)} parameters did not move in the first optimizer step, {owned_still[0]} among them, "
                "although their gradient and dtype allow it: the optimizer steps something else"
            )
        owned = [p for name, p in parameters.items() if name not in self.orphans]
        self.parameters = {
            "trainable": len(parameters),
            "in_optimizer": len(owned),
            "elements_in_optimizer": sum(p.numel() for p in owned),
            "orphans": self.orphans,
            "frozen": [
                n.replace("_orig_mod.", "")
                for n, p in self.model.named_parameters()
                if not p.requires_grad
            ],
            "moved_in_first_step": len(self._witnesses) - len(still),
            "still_in_first_step": still,
            # bf16 keeps 8 significant bits: lr 5e-7 of the first step cannot move a norm weight of
            # 1.0
            "dtype_cannot_hold_first_update": []
            if self._resumed
            else sorted(set(parameters) - set(self._witnesses)),
            "bytes_per_parameter": self._bytes_per_parameter(owned),
        }
        self._witnesses = {}

    def _bytes_per_parameter(self, owned: list[nn.Parameter]) -> dict[str, float]:
        """What this rank keeps from step to step: its tensors of parameters and of the optimizer's
        states."""
        kept = [
            tensor
            for opt in self.optimizers
            for state in opt.state.values()
            for tensor in state.values()
        ]
        weights, states = (
            sum(local(tensor).nbytes for tensor in tensors) for tensors in (owned, kept)
        )
        elements = sum(local(parameter).numel() for parameter in owned)
        return {"weights": weights / elements, "states": states / elements}

    @contextmanager
    def profile(self, step: int, first: int = 1, in_fp8: bool = True):
        """Claim 1: profile what runs inside, and count the FLOPs of its matrix multiplications by
        operator.

        `first` is the phase's first step, `in_fp8` whether the phase is in FP8, where the recipe
        is.
        """
        with profile(
            activities=collectives.activities(self.sharding), record_shapes=True
        ) as profiler:
            yield
        events = [event for event in profiler.events() if event.device_type == DeviceType.CPU]
        self.profiled_step, self.gemm_flops = step, count_gemm_flops(events)
        self.attention = sorted(
            {_ATTENTION_OPS[event.name] for event in events if event.name in _ATTENTION_OPS}
        )
        self.phases[first] = {
            "in_fp8": in_fp8,
            "profiled_step": step,
            "gemm_flops": self.gemm_flops,
        }
        if self.sharding:
            self._check_wire(profiler)
        if self.emulated:
            return
        if not in_fp8 and self.fp8_flops:
            raise ProofError(
                f"in step {step} aten::_scaled_mm did {self.fp8_flops:.3e} FLOPs, and the recipe has this step in bf16"
            )
        expected = (
            0.99 * self.fp8_flops_expected
        )  # more where activation checkpointing computes twice
        if in_fp8 and self.fp8_flops < expected:
            frozen = any(not parameter.requires_grad for parameter in self.model.parameters())
            hint = "; of frozen layers before all trained ones nothing is computed backward: add them to filter_fqns"
            raise ProofError(
                f"in step {step} aten::_scaled_mm did {self.fp8_flops:.3e} FLOPs, and the {len(self.converted)} "
                f"converted layers account for {self.fp8_flops_expected:.3e}: not (all) of the FP8 recipe ran in FP8"
                f"{hint if frozen else ''}"
            )

    def _check_wire(self, profiler) -> None:
        """The second half of claim 1."""
        shapes = {
            name.replace("_orig_mod.", ""): p.shape for name, p in self.model.named_parameters()
        }
        weights = [f"{name}.weight" for name in self.converted]
        expected = self.sharding.expected(shapes, weights, self.passes_per_step)
        self.sent = collectives.record(profiler, self.sharding) | expected
        gathered, promised = (
            self.sent[key] for key in ("gathered_bytes", "gathered_bytes_expected")
        )
        if self.sharding.fp8 and not 0 < gathered <= promised:
            raise ProofError(
                f"in step {self.profiled_step} ranks gathered {gathered:,} bytes of weights, and with those of "
                f"{len(weights)} converted layers in FP8 it would be {promised:,}: not (all) of what "
                "enable_fsdp_float8_all_gather promises was sent in FP8"
            )
        reduced, promised = (self.sent[key] for key in ("reduced_bytes", "reduced_bytes_expected"))
        if self.sharding.fp8_gradients and not 0 < reduced <= promised:
            raise ProofError(
                f"in step {self.profiled_step} ranks sent {reduced:,} bytes of gradients, and in FP8 with their scales "
                f"it would be {promised:,}: not (all) of what quantize.gradients promises was sent in FP8"
            )

    def record(self) -> dict:
        """The contents of proof.json; FLOPs and shares are those of the last phase in FP8, if there
        is one."""
        last = max(self.phases, key=lambda first: (self.phases[first]["in_fp8"], first))
        gemm_flops = self.phases[last]["gemm_flops"]
        total = sum(gemm_flops.values())
        return {
            "recipe_name": self.recipe_name,
            "emulated": self.emulated,
            "converted_modules": {name: list(m.weight.shape) for name, m in self.converted.items()},
            "profiled_step": self.phases[last]["profiled_step"],
            "gemm_flops": gemm_flops,
            "fp8_flops": _in_fp8(gemm_flops),
            "fp8_flops_expected": self.fp8_flops_expected,
            "fp8_share_of_matmul_flops": _in_fp8(gemm_flops) / total if total else None,
            "phases": {first: self.phases[first] for first in sorted(self.phases)},
            "attention": ", ".join(self.attention) or None,
            "parameters": self.parameters,
            "collectives": self.sent,
        }


def _in_fp8(gemm_flops: dict[str, int]) -> int:
    """FLOPs of FP8 products, of those by operator or kernel."""
    return sum(count for name, count in gemm_flops.items() if "_scaled_mm" in name)


def count_gemm_flops(events) -> dict[str, int]:
    """FLOPs by operator of a profile's matrix multiplications by linear layers and experts;
    attention's are not in it.

    `events` are those of `torch.profiler.profile(record_shapes=True)`. What torch.compile calls
    while it compiles, to trace or to try kernels, is not counted: a phase of one step is profiled
    in the step that compiles it.
    """
    gemms = [event for event in events if event.name in _GEMM_OPS and not _compiling(event)]
    # Eager FP8 enters as aten::mm of a tensor subclass, which calls _scaled_mm; other GEMMs may
    # call one another too.
    around_fp8 = {
        id(parent) for event in gemms if event.name in _FP8_OPS for parent in _callers(event)
    }
    flops = Counter()
    for event in gemms:
        is_fp8 = event.name in _FP8_OPS
        inside = any(
            parent.name in (_FP8_OPS if is_fp8 else _GEMM_OPS) for parent in _callers(event)
        )
        if inside or (not is_fp8 and id(event) in around_fp8):
            continue
        # addmm has the bias first; every other operand after the two matrices is a scale or an
        # output
        left, right = (
            event.input_shapes[1:3] if event.name == "aten::addmm" else event.input_shapes[:2]
        )
        flops[event.name] += (
            2 * math.prod(left) * right[-1]
        )  # all experts' rows are in one matrix of a grouped product
    for event in events:
        if (product := _TEMPLATE.match(event.name)) and not _compiling(event):
            name = "triton _scaled_mm" if product[1] == "scaled_" else "triton mm"
            flops[name] += _template_flops(event.input_shapes)
    return dict(flops)


def _template_flops(shapes: list[list[int]]) -> int:
    """FLOPs of a kernel that gets two operands first, each perhaps transposed, and the product
    last.

    (m k) (k n) (m n) is (m n k) squared. Scales of rows have a dimension of 1, and are no matrices.
    """
    left, right, *_, product = [
        math.prod(shape) for shape in shapes if len(shape) == 2 and min(shape) > 1
    ]
    return 2 * math.isqrt(left * right * product)


def _compiling(event) -> bool:
    """Whether torch.compile called it to compile; what is called to record CUDA graphs is the
    step's own work."""
    return any(parent.name in _COMPILATIONS for parent in _callers(event))


def _callers(event) -> list:
    """The operators that called this one, innermost first."""
    callers = []
    while (event := event.cpu_parent) is not None:
        callers.append(event)
    return callers


def _find_witness(
    weight: torch.Tensor, grad: torch.Tensor, lr: float
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Indices and values of some elements that Adam's first step, lr * g / (|g| + eps), is sure to
    change, if any.

    Half the step is taken for certain, and gradients near eps (1e-8) are left out.
    """
    weights, grads = weight.flatten(), grad.flatten()
    for start in range(0, weights.numel(), _CHUNK):
        w, g = weights[start : start + _CHUNK], grads[start : start + _CHUNK]
        moves = (w.float() - 0.5 * lr * g.float().sign()).to(w.dtype) != w
        index = (moves & (g.abs() > 1e-6)).nonzero().flatten()[:_WITNESSES] + start
        if index.numel():
            return index, weights[index].clone()
    return None
