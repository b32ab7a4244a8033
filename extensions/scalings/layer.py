"""The FP8 layer of the scalings of this extension: casts, a matmul, the three matmuls of a layer,
the layer.

Blocks never cross the sum of a matmul. A matmul has its operands with the summed dimension last,
and each operand is cast anew for each matmul that it is part of:

    output             sums over input features     input      (tokens, in)   weight   (out, in)
    input's gradient   sums over output features    gradient   (tokens, out)  weight.T (in, out)
    weight's gradient  sums over tokens             gradient.T (out, tokens)  input.T  (in, tokens)

`delayed` runs on FP8 units. The other scalings are emulated everywhere: operands are rounded as
their hardware would, and multiplied in float32, which is exact up to the order of sums.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torchao.float8 import Float8LinearConfig
from torchao.float8.float8_linear import Float8Linear
from torchao.float8.float8_utils import amax_to_scale, to_fp8_saturated
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import MXTensor

from extensions.scalings import Scaling
from extensions.scalings.nvfp4 import round_nvfp4

FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}

# ---- casts ----


# An operator, so that compiled code calls it as it is. Inductor's C++ code of blocks along either
# dimension does not always compile (pytorch issue 164428).
@torch.library.custom_op("fp8::round_blocks", mutates_args=())
def round_blocks(x: Tensor, rows: int, columns: int, scale: str, dtype: torch.dtype) -> Tensor:
    """Round x, (m, n) with the sum along n, to FP8 with a scale for each block of `rows` x
    `columns` values, and scale back to float32.

    Blocks at the end may be smaller. `scale` is `float32`, `power_of_2` (torchao's of rows), or
    torchao's mode of MX scales.
    """
    m, n = x.shape
    rows = min(rows, m)
    columns = min(columns, n)
    padded = pad(x.float(), (0, -n % columns, 0, -m % rows))
    if scale in ScaleCalculationMode.__members__:
        mx = MXTensor.to_mx(padded.contiguous(), dtype, columns, ScaleCalculationMode[scale])
        return mx.dequantize(torch.float32)[:m, :n].contiguous()
    blocks = padded.unflatten(1, (-1, columns)).unflatten(0, (-1, rows))
    amax = blocks.abs().amax((1, 3), keepdim=True)
    scales = amax_to_scale(amax, dtype, scale == "power_of_2")
    rounded = to_fp8_saturated(blocks * scales, dtype).float() / scales
    return rounded.flatten(2, 3).flatten(0, 1)[:m, :n].contiguous()


@round_blocks.register_fake
def _round_nothing(x: Tensor, rows: int, columns: int, scale: str, dtype: torch.dtype) -> Tensor:
    return x.new_empty(x.shape, dtype=torch.float32)


def cast_delayed(x: Tensor, history: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cast with one scale, from the largest values of earlier steps, and record this step's.

    Values beyond the earlier ones saturate. Without earlier ones, in the first step in FP8, the
    scale is this step's.

    Args:
        history: largest values of this step so far, then of the last ones: (1 + steps).

    Returns:
        The matrix in FP8, and the scale.
    """
    amax = x.abs().amax().float()
    history[0] = torch.maximum(history[0], amax)
    earlier_amax = history[1:].amax()
    scale = amax_to_scale(torch.where(earlier_amax > 0, earlier_amax, amax), dtype)
    return to_fp8_saturated(x.float() * scale, dtype), scale


# ---- a matmul ----

INPUT, WEIGHT, GRADIENT = range(3)  # rows of a layer's `largest_values`


def multiply(ctx, lhs: Tensor, lhs_kind: int, rhs: Tensor, rhs_kind: int) -> Tensor:
    """Compute lhs @ rhs.t() in FP8: (m, k) by (n, k), in the dtype of `lhs`. A kind is INPUT,
    WEIGHT or GRADIENT."""
    dtype = lhs.dtype
    sums_over_tokens = WEIGHT not in (lhs_kind, rhs_kind)
    lhs, lhs_scale = _cast_operand(ctx, lhs, lhs_kind, sums_over_tokens)
    rhs, rhs_scale = _cast_operand(ctx, rhs, rhs_kind, sums_over_tokens)
    if ctx.emulate:
        with torch.autocast(lhs.device.type, enabled=False):  # which would multiply in bf16
            return ((lhs.float() / lhs_scale) @ (rhs.float() / rhs_scale).t()).to(dtype)
    return torch._scaled_mm(
        lhs.contiguous(),  # FP8 units want each row of both in one piece
        rhs.contiguous().t(),
        lhs_scale.reciprocal(),
        rhs_scale.reciprocal(),
        out_dtype=dtype,
        use_fast_accum=lhs_kind == INPUT,  # of the output, as torchao: it adds up less exactly
    )


def _cast_operand(
    ctx, x: Tensor, kind: int, sums_over_tokens: bool
) -> tuple[Tensor, Tensor | float]:
    """Cast x; returns what a matmul takes, and its scale."""
    scaling = ctx.scaling
    block = scaling.weight_block if kind == WEIGHT else scaling.block
    if scaling.scale == "NVFP4":
        return round_nvfp4(x, block[0], sums_over_tokens, kind == GRADIENT), 1.0
    dtype = FORMATS[scaling.gradient_format if kind == GRADIENT else "e4m3"]
    if scaling.has_blocks:
        return round_blocks(x, *block, scaling.scale, dtype), 1.0
    return cast_delayed(x, ctx.largest_values[kind], dtype)


# ---- the three matmuls of a layer ----


@torch._dynamo.allow_in_graph
class _ScaledMatmuls(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, scaling, largest_values, emulate):
        ctx.save_for_backward(x, weight)
        ctx.scaling = scaling
        ctx.largest_values = largest_values
        ctx.emulate = emulate
        return multiply(ctx, x, INPUT, weight, WEIGHT)

    @staticmethod
    def backward(ctx, out_grad):
        x, weight = ctx.saved_tensors
        x_grad = multiply(ctx, out_grad, GRADIENT, weight.t(), WEIGHT)
        weight_grad = multiply(ctx, out_grad.t(), GRADIENT, x.t(), INPUT)
        return x_grad, weight_grad, None, None, None


def scaled_linear(
    x: Tensor,
    weight: Tensor,
    scaling: Scaling,
    largest_values: Tensor | None = None,
    emulate: bool = True,
) -> Tensor:
    """Compute x @ weight.t() and its gradients in FP8. x: (..., in_features). `largest_values` are
    a layer's, for `delayed`."""
    rows = x.flatten(0, -2)
    out = _ScaledMatmuls.apply(rows, weight, scaling, largest_values, emulate)
    return out.unflatten(0, x.shape[:-1])


# ---- the layer ----


class ScaledLinear(Float8Linear):
    """A layer whose matmuls are those above; torchao's configuration says whether to emulate."""

    def init_scaling(self, scaling: Scaling, history_steps: int) -> None:
        """Begin without a history; `delayed` looks back `history_steps`."""
        self.scaling = scaling
        largest_values = None
        if not scaling.has_blocks:
            # Of this step so far, then of the last ones
            largest_values = torch.zeros(3, 1 + history_steps, device=self.weight.device)
        self.register_buffer("largest_values", largest_values)

    def _apply(self, fn, recurse=True):
        """Begin without a history when torchtitan gives the model memory."""
        was_meta = self.largest_values is not None and self.largest_values.is_meta
        super()._apply(fn, recurse)
        if was_meta:
            self.largest_values.zero_()
        return self

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., in_features); the output has its dtype, or autocast's."""
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        emulate = self.config.emulate
        return scaled_linear(x, self.weight, self.scaling, self.largest_values, emulate)


def set_gradient_format(config: Float8LinearConfig, name: str) -> Float8LinearConfig:
    """Copy torchao's configuration with another FP8 format of gradients of outputs."""
    dtype = FORMATS[name]
    for_input = config.cast_config_grad_output
    for_weight = config.cast_config_grad_output_for_grad_weight
    return replace(
        config,
        cast_config_grad_output=replace(for_input, target_dtype=dtype),
        cast_config_grad_output_for_grad_weight=replace(for_weight, target_dtype=dtype),
    )


@torch.no_grad()
def end_step(model: nn.Module, all_reduce: Callable) -> None:
    """Move this step's largest values into the history; `all_reduce` finds all processes'
    largest."""
    histories = list_histories(model)
    if not histories:
        return
    step_maxima = all_reduce(torch.stack(histories)[:, :, 0], "max")
    for history, step_max in zip(histories, step_maxima, strict=True):
        history[:, 0] = step_max
        history.copy_(history.roll(1, dims=1))
        history[:, 0] = 0


@torch.no_grad()
def measure_saturation(model: nn.Module, all_reduce: Callable) -> dict[str, float]:
    """Measure the share of operands with a value beyond the earlier steps' largest one, which
    saturated in this step; empty without histories. `all_reduce` as in `end_step`."""
    histories = list_histories(model)
    if not histories:
        return {}
    largest_values = torch.stack(histories)  # (layers, operands, 1 + steps)
    step_maxima = all_reduce(largest_values[:, :, 0], "max")
    earlier_maxima = largest_values[:, :, 1:].amax(2)
    is_saturated = (earlier_maxima > 0) & (step_maxima > earlier_maxima)
    return {"saturated_share_of_operands": is_saturated.float().mean().item()}


def list_histories(model: nn.Module) -> list[Tensor]:
    """List the largest values of all layers with delayed scales."""
    return [buffer for name, buffer in model.named_buffers() if name.endswith("largest_values")]
