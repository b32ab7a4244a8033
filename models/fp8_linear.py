"""A linear layer whose products run in FP8; models/float8.py says which products, formats and
scales there are.

The arithmetic is that of torchao's `Float8Linear`, bit for bit. Unlike it this layer is operators
in an autograd function, without a tensor subclass: its compiled graphs can be cached, and every
product can be given scales of rows.
"""

from dataclasses import dataclass

import torch
import torch._functorch.config
from torch import nn
from torch._higher_order_ops.wrap import TagActivationCheckpoint

from models.fp8_operands import E4M3, SCALINGS, Fp8, Scaling, cast, cast_both, in_one_pass

torch._functorch.config.autograd_cache_allow_custom_autograd_functions = (
    True  # whose compiled graphs are then cached
)

if tag_nodes := getattr(TagActivationCheckpoint, "tag_nodes", None):

    def _tag_autograd_functions_too(
        graph_module: torch.fx.GraphModule, is_sac: bool
    ) -> torch.fx.GraphModule:
        """Have activation checkpointing recompute what an autograd function computes.

        torch 2.11 tags the operators that a compiled graph is to recompute, but not those within an
        autograd function, so that most of a block's activations stayed. torch 2.13 tags them all,
        and has no `tag_nodes`.
        """
        for node in tag_nodes(graph_module, is_sac).graph.nodes:
            if node.target is torch.ops.higher_order.autograd_function_apply:
                for operator in graph_module.get_submodule(node.args[0].target).graph.nodes:
                    if operator.op == "call_function":
                        operator.meta |= {
                            key: node.meta[key] for key in ("ac_graph_id", "recompute")
                        }
        return graph_module

    TagActivationCheckpoint.tag_nodes = staticmethod(_tag_autograd_functions_too)


@dataclass(frozen=True)
class Products:
    """How a layer multiplies."""

    recipe_name: str  # a key of `SCALINGS`
    fast_backward: bool = (
        False  # backward products add up within the tensor cores, less exactly, as the forward one
    )
    row_scales: bool = True  # products without fast accumulation take them; else their results are scaled afterwards
    emulate: bool = False  # multiply the rounded operands in float32
    # Keep the FP8 weight that was cast in one pass for both directions until the backward pass: 1
    # byte a weight, 7 GB for 8 B. Not under FSDP2, where every rank would keep all of it, nor where
    # activations are recomputed.
    keep_weight: bool = True


class Fp8Linear(nn.Linear):
    """`nn.Linear` without bias whose products run in FP8; the weight stays as it is."""

    how: Products
    in_fp8 = True  # else the product is that of `nn.Linear`; may change between steps, at one recompilation in all

    @classmethod
    def from_float(cls, linear: nn.Linear, how: Products) -> "Fp8Linear":
        """An FP8 layer with the same parameter."""
        with torch.device("meta"):
            layer = cls(linear.in_features, linear.out_features, bias=False)
        layer.weight, layer.how = linear.weight, how
        return layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (..., in_features); the output has its dtype."""
        if not self.in_fp8:
            return nn.functional.linear(x, self.weight)
        how = self.how  # as plain values, which compiled graphs can be cached by
        return _Fp8Products.apply(
            x,
            self.weight,
            how.recipe_name,
            how.fast_backward,
            how.row_scales,
            how.emulate,
            how.keep_weight,
        )


class _Fp8Products(torch.autograd.Function):
    """What one kernel casts for both directions is kept for the backward pass in FP8. What plain
    operators cast is kept as it is and cast again, so that a compiler sees where casts are the
    same."""

    @staticmethod
    def forward(ctx, x, weight, recipe_name, fast_backward, row_scales, emulate, keep_weight):
        s, flat = SCALINGS[recipe_name], x.reshape(-1, x.shape[-1])
        x8, kept_x = _cast_and_keep(flat, s, in_one_pass(x, s, emulate))
        weight8, kept_weight = _cast_and_keep(
            weight, s, keep_weight and in_one_pass(weight, s, emulate)
        )
        ctx.save_for_backward(*kept_x, *kept_weight)
        ctx.how, ctx.x = (recipe_name, fast_backward, row_scales, emulate), (x.shape, x.dtype)
        out = _multiply(x8, weight8.t(), x.dtype, fast=True, row_scales=row_scales, emulate=emulate)
        return out.reshape(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, gradient):
        x, x_scale, weight, weight_scale = ctx.saved_tensors
        (recipe_name, fast, row_scales, emulate), (shape, dtype) = ctx.how, ctx.x
        s, how = SCALINGS[recipe_name], (dtype, fast, row_scales, emulate)
        g = gradient.reshape(-1, gradient.shape[-1])
        weight8 = Fp8(weight, weight_scale)
        if weight_scale is None:
            weight8 = cast(weight, E4M3, s, along=0 if s.fp8_weight_gradient else None)
        if not s.fp8_weight_gradient:
            to_input = _multiply(cast(g, s.gradient, s, along=1), weight8, *how)
            return to_input.reshape(shape), g.t() @ x, *[None] * 5
        by_rows, by_columns = cast_both(g, s.gradient, s, emulate)
        x8 = cast(x, E4M3, s, along=0) if x_scale is None else Fp8(x, x_scale)
        to_input = _multiply(by_rows, weight8, *how)
        to_weight = _multiply(by_columns.t(), x8, *how)
        return to_input.reshape(shape), to_weight, *[None] * 5


def _cast_and_keep(
    x: torch.Tensor, s: Scaling, both: bool
) -> tuple[Fp8, tuple[torch.Tensor, torch.Tensor | None]]:
    """x by rows for the forward product, and to keep for a backward one: x by columns in FP8 with
    its scale if `both` are cast in one pass, else x and None."""
    if both:
        return cast_both(x, E4M3, s, emulate=False)
    return cast(x, E4M3, s, along=1), (x, None)


def _multiply(
    a: Fp8, b: Fp8, dtype: torch.dtype, fast: bool, row_scales: bool, emulate: bool
) -> torch.Tensor:
    """a @ b in `dtype`: (m, k) by (k, n), with scales for rows of a and columns of b, or for each
    as a whole.

    `fast` lets the product add up within the tensor cores; for `row_scales` and `emulate` see
    `Products`.
    """
    if emulate:
        with torch.autocast(a.data.device.type, enabled=False):  # which would multiply in bf16
            return ((a.data.float() / a.scale) @ (b.data.float() / b.scale)).to(dtype)
    # FP8 units want each row of the left operand and each column of the right one in one piece
    left, right = a.data.contiguous(), b.data.t().contiguous().t()
    inverse_a, inverse_b = a.scale.reciprocal(), b.scale.reciprocal()
    if not a.scale.dim():
        return torch._scaled_mm(
            left, right, inverse_a, inverse_b, out_dtype=dtype, use_fast_accum=fast
        )
    if not b.scale.dim():  # both have to be of one kind
        inverse_b = inverse_b.repeat(right.shape[1]).reshape(1, -1)
    if fast or row_scales:
        out = torch._scaled_mm(
            left, right, inverse_a, inverse_b, out_dtype=torch.bfloat16, use_fast_accum=fast
        )
    else:
        one = inverse_a.new_ones(())
        out = torch._scaled_mm(left, right, one, one, out_dtype=torch.bfloat16) * (
            inverse_a * inverse_b
        )
    return out.to(dtype)  # with scales of rows the product itself is bf16
