"""Prove what a run did, because FP8 fails silently: a run that is not in FP8 trains in bf16 and
looks fine.

Three claims. A claim that does not hold stops the run:

  1. An FP8 recipe has converted layers, and in one profiled step `aten::_scaled_mm` does the FLOPs
     that these layers account for. Where FP8 is switched on and off, one step of each phase is
     profiled, and `aten::_scaled_mm` does nothing in bf16. Several ranks send no more bytes of
     weights and gradients than the recipe's precisions take.
  2. Every trainable parameter is in the optimizer. (A recipe can leave parameters out on purpose,
     by `optimizer.built`; such orphans are on record instead.)
  3. Every parameter moves in the first optimizer step, where its gradient and its dtype allow it.

The trainer calls, in this order:

    Proof(...)                   checks claim 2, and that layers were converted
    before_step(), after_step()  around the first optimizer step: check claim 3
    profile(...)                 around a step of each phase: checks claim 1
    record()                     gives the contents of proof.json
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from experiments.records import run
from experiments.training import collectives
from models import float8
from models.device import local

PROFILED_STEP = 3  # the first step compiles, the second may compile again
# Of runs with CUDA graphs: the first step warms them up, the second records them, and from the
# third step on no operator is called.
RECORDING_STEP = 2


class ProofError(RuntimeError):
    """The run is not what its recipe says."""


class Proof:
    """Collects the evidence of one run. Raises `ProofError`.

    Args:
        config: the recipe's `JobConfig`.
        model: converted and parallelized.
        dims: torchtitan's `ParallelDims`.
        passes: forward passes of a step (gradient accumulation).
    """

    def __init__(
        self, config, model: nn.Module, optimizer: torch.optim.Optimizer, dims, passes: int = 1
    ):
        self.config, self.optimizer, self.dims, self.passes = config, optimizer, dims, passes
        named = model.named_parameters()
        self.parameters = {name.replace("_orig_mod.", ""): p for name, p in named}
        self.trainable = {name: p for name, p in self.parameters.items() if p.requires_grad}
        self.phases = {}  # by first step
        self.profiled_step = self.sent = self.movement = None
        self._check_conversion(model)
        self._check_optimizer()

    def take_over(self, record: run.Proof | None, step: int) -> None:
        """Keep the phases that an earlier attempt profiled up to `step`, which was resumed from."""
        for first, phase in record.phases.items() if record else ():
            if phase.profiled_step <= step:
                self.phases[first] = phase

    # ---- claim 1: FP8 layers multiply in FP8 ----

    def _check_conversion(self, model: nn.Module) -> None:
        self.recipe_name = self.config.quantize.linear.float8.recipe_name
        self.converted = float8.converted_modules(model)
        if self.recipe_name and not self.converted:
            raise ProofError(
                f"the recipe asks for {self.recipe_name} FP8 and no layer was converted"
            )
        layers = self.converted.values()
        # Emulation rounds to FP8 and multiplies in high precision.
        self.emulated = any(map(float8.emulates, layers))
        keys = self.config.training
        self.tokens = keys.local_batch_size * keys.seq_len * self.passes  # of a step on this rank
        # An FP8 matmul of M tokens and a weight of N K elements is 2 M N K FLOPs.
        weights = sum(layer.weight.numel() * float8.matmuls_in_fp8(layer) for layer in layers)
        self.fp8_flops_expected = 2 * self.tokens * weights

    @contextmanager
    def profile(self, step: int, first: int = 1, in_fp8: bool = True) -> Iterator[None]:
        """Profile what runs inside, one step, and check its matmuls and collectives.

        Args:
            first: the first step of the phase.
            in_fp8: whether the phase is in FP8, if the recipe is.
        """
        several = self.dims.world_size > 1
        activities = None if several else [ProfilerActivity.CPU]  # None: GPUs' too, for NCCL
        with profile(activities=activities, record_shapes=True) as profiler:
            yield
        events = [event for event in profiler.events() if event.device_type == DeviceType.CPU]
        flops = count_matmul_flops(events)
        self.phases[str(first)] = run.Phase(in_fp8=in_fp8, profiled_step=step, gemm_flops=flops)
        self.profiled_step = step
        self.attention = {_ATTENTION[event.name] for event in events if event.name in _ATTENTION}
        if several:
            self._check_collectives(profiler)
        self._check_matmuls(step, in_fp8, _in_fp8(flops))

    def _check_matmuls(self, step: int, in_fp8: bool, flops: int) -> None:
        # Activation checkpointing computes more than is expected.
        self.fp8_flops_per_token = min(flops, self.fp8_flops_expected) / self.tokens
        did = f"in step {step} aten::_scaled_mm did {flops:.3e} FLOPs"
        if flops and not in_fp8:
            raise ProofError(f"{did}, and the recipe has this step in bf16")
        if in_fp8 and not self.emulated and flops < 0.99 * self.fp8_flops_expected:
            hint = ""
            if len(self.trainable) < len(self.parameters):
                hint = (
                    "; of frozen layers before all trained ones nothing is computed backward: "
                    "add them to filter_fqns"
                )
            raise ProofError(
                f"{did}, and the {len(self.converted)} converted layers account for "
                f"{self.fp8_flops_expected:.3e}: not (all) of the FP8 recipe ran in FP8{hint}"
            )

    def _check_collectives(self, profiler) -> None:
        shapes = {name: parameter.shape for name, parameter in self.parameters.items()}
        in_fp8 = {f"{name}.weight" for name in self.converted}
        self.sent = collectives.record(
            profiler, self.config, self.dims, shapes, in_fp8, self.passes
        )
        keys, sent = self.config.quantize, self.sent
        if keys.linear.float8.enable_fsdp_float8_all_gather:
            name = "quantize.linear.float8.enable_fsdp_float8_all_gather"
            _check_bytes(name, "weights", sent.gathered_bytes, sent.gathered_bytes_expected)
        if keys.gradients:
            name = "quantize.gradients"
            _check_bytes(name, "gradients", sent.reduced_bytes, sent.reduced_bytes_expected)

    # ---- claim 2: parameters are in the optimizer ----

    def _check_optimizer(self) -> None:
        owned = set()
        for group in self.optimizer.param_groups:
            owned.update(map(id, group["params"]))
        self.orphans = [name for name, p in self.trainable.items() if id(p) not in owned]
        if self.orphans and self.config.optimizer.built != "before_conversion":
            raise ProofError(
                f"{len(self.orphans)} trainable parameters are in no optimizer and would never "
                f"learn, {self.orphans[0]} among them: build the optimizer after the FP8 "
                "conversion, which can replace parameters"
            )

    # ---- claim 3: parameters move ----

    @torch.no_grad()
    def before_step(self) -> None:
        """Before the first optimizer step: find elements of each parameter that it must change.

        After a resume nothing is certain to change: the optimizer's moments are old, and its step
        can be of any size.
        """
        self._resumed = bool(self.optimizer.state)
        self._witnesses = {}  # by parameter: indices of elements, and their values
        lr = float(self.optimizer.param_groups[0]["lr"])
        for name, parameter in self.trainable.items():
            if parameter.grad is None:
                raise ProofError(f"{name} is trainable and got no gradient")
            witness = _find_witness(local(parameter), local(parameter.grad), lr)
            if witness and not self._resumed:
                self._witnesses[name] = witness

    @torch.no_grad()
    def after_step(self) -> None:
        """After the first optimizer step: check that these elements changed."""
        still = [
            name
            for name, (index, before) in self._witnesses.items()
            if torch.equal(local(self.trainable[name]).flatten()[index], before)
        ]
        stuck = [name for name in still if name not in self.orphans]
        if stuck:
            raise ProofError(
                f"{len(stuck)} parameters did not move in the first optimizer step, {stuck[0]} "
                "among them, although their gradient and dtype allow it: the optimizer steps "
                "something else"
            )
        owned = [p for name, p in self.trainable.items() if name not in self.orphans]
        # bf16 keeps 8 significant bits: lr 5e-7 of the first step cannot move a norm weight of 1.0
        unmovable = sorted(self.trainable.keys() - self._witnesses.keys())
        self.movement = run.Parameters(
            trainable=len(self.trainable),
            in_optimizer=len(owned),
            elements_in_optimizer=sum(p.numel() for p in owned),
            orphans=self.orphans,
            frozen=[name for name in self.parameters if name not in self.trainable],
            moved_in_first_step=len(self._witnesses) - len(still),
            still_in_first_step=still,
            dtype_cannot_hold_first_update=[] if self._resumed else unmovable,
            bytes_per_parameter=self._bytes_per_parameter(owned),
        )

    def _bytes_per_parameter(self, owned: list[nn.Parameter]) -> dict[str, float]:
        """Measure what this rank keeps from step to step: weights and optimizer states."""
        elements = sum(local(parameter).numel() for parameter in owned)
        states = 0
        for state in self.optimizer.state.values():
            states += sum(local(tensor).nbytes for tensor in state.values())
        weights = sum(local(parameter).nbytes for parameter in owned)
        return {"weights": weights / elements, "states": states / elements}

    # ---- proof.json ----

    def record(self) -> run.Proof:
        """Sum up the evidence; FLOPs and shares are those of the last phase in FP8, if any."""
        phase = max(self.phases.values(), key=lambda phase: (phase.in_fp8, phase.profiled_step))
        fp8, total = _in_fp8(phase.gemm_flops), sum(phase.gemm_flops.values())
        return run.Proof(
            recipe_name=self.recipe_name,
            emulated=self.emulated,
            converted_modules={name: [*m.weight.shape] for name, m in self.converted.items()},
            profiled_step=phase.profiled_step,
            gemm_flops=phase.gemm_flops,
            fp8_flops=fp8,
            fp8_flops_expected=self.fp8_flops_expected,
            fp8_share_of_matmul_flops=fp8 / total if total else None,
            phases=self.phases,
            attention=", ".join(sorted(self.attention)) or None,
            parameters=self.movement,
            collectives=self.sent,
        )


def _check_bytes(key: str, what: str, sent: int, expected: int) -> None:
    if not 0 < sent <= expected:
        raise ProofError(
            f"ranks sent {sent:,} bytes of {what} in a step, and in FP8 it would be {expected:,}: "
            f"not (all) of what {key} promises was sent in FP8"
        )


# ---- reading a profile ----

_FP8_MATMULS = {"aten::_scaled_mm", "aten::_scaled_mm_v2"}
# Of linear layers and of experts, which a CPU multiplies one after the other. Attention is bmm or a
# kernel of its own.
_MATMULS = {"aten::mm", "aten::addmm", "aten::_grouped_mm"}
_ATTENTION = {
    "aten::_scaled_dot_product_cudnn_attention": "cudnn",
    "aten::_scaled_dot_product_flash_attention": "flash",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "flash",
    "aten::_scaled_dot_product_efficient_attention": "efficient",
    "aten::_scaled_dot_product_attention_math": "math",
}
# With max-autotune inductor may compile a matmul into a kernel of its own, as
# triton_tem_fused__scaled_mm_3.
_TEMPLATE = re.compile(r"triton_tem_.*?_(scaled_|add)?mm_")
_COMPILATIONS = {
    "_compile.compile_inner (dynamo_timed)",
    "backward._backward_impl (dynamo_timed)",
}


def count_matmul_flops(events: Iterable) -> dict[str, int]:
    """Count the FLOPs of matmuls by operator, in a profile with shapes; without attention's.

    What torch.compile calls while it compiles, to trace or to try kernels, is not counted: a phase
    of one step is profiled in the step that compiles it.
    """
    flops = Counter()
    for event in events:
        for matmul in _matmuls(event) if event.cpu_parent is None else ():
            name, count = _flops(matmul)
            flops[name] += count
    return dict(flops)


def _matmuls(event) -> list:
    """List the matmuls that an operator is or calls.

    Eager FP8 enters as aten::mm of a tensor subclass, which calls _scaled_mm: the latter counts.
    Any other matmul that calls matmuls counts itself.
    """
    if event.name in _COMPILATIONS:
        return []
    if event.name in _FP8_MATMULS or _TEMPLATE.match(event.name):
        return [event]
    called = []
    for child in event.cpu_children:
        called += _matmuls(child)
    if event.name in _MATMULS:
        return [matmul for matmul in called if matmul.name in _FP8_MATMULS] or [event]
    return called


def _flops(matmul) -> tuple[str, int]:
    """Name a matmul's operator and count its FLOPs, 2 M N K."""
    template = _TEMPLATE.match(matmul.name)
    if template:  # two operands come first, each perhaps transposed, and the output last
        # Scales of rows have a dimension of 1 and are no matrices.
        matrices = [math.prod(s) for s in matmul.input_shapes if len(s) == 2 and min(s) > 1]
        name = "triton _scaled_mm" if template[1] == "scaled_" else "triton mm"
        # (m k) (k n) (m n) is (m n k) squared
        return name, 2 * math.isqrt(matrices[0] * matrices[1] * matrices[-1])
    operands = matmul.input_shapes[matmul.name == "aten::addmm" :]  # without addmm's bias
    # A grouped matmul has the rows of all experts in its left operand.
    return matmul.name, 2 * math.prod(operands[0]) * operands[1][-1]


def _in_fp8(flops: dict[str, int]) -> int:
    """Add up the FLOPs of FP8 matmuls."""
    return sum(count for name, count in flops.items() if "_scaled_mm" in name)


# ---- finding elements that must move ----

_CHUNK = 1 << 24  # elements looked at together, which bounds memory
_WITNESSES = 64  # elements remembered per parameter


def _find_witness(
    weight: torch.Tensor, grad: torch.Tensor, lr: float
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Find some elements that Adam's first step, lr * g / (|g| + eps), is sure to change, if any.

    Returns their indices and values. Half the step is taken for certain, and gradients near eps
    (1e-8) are left out.
    """
    weights, grads = weight.flatten().split(_CHUNK), grad.flatten().split(_CHUNK)
    for i, (w, g) in enumerate(zip(weights, grads, strict=True)):
        moves = (w.float() - 0.5 * lr * g.float().sign()).to(w.dtype) != w
        index = (moves & (g.abs() > 1e-6)).nonzero().flatten()[:_WITNESSES]
        if index.numel():
            return i * _CHUNK + index, w[index]
    return None
