"""Bytes that a transformer block's element-wise kernels move per token, and the casts to FP8 after them.

For models/roofline.py. `b` is the bytes of an element of the residual stream (that of a parameter, as autocast goes);
everything else between two GEMMs is bf16 or FP8.
"""

from collections.abc import Collection
from dataclasses import dataclass

from models import flops

_FUSED = {"wqkv": ("wq", "wk", "wv"), "w13": ("w1", "w3")}


@dataclass(frozen=True)
class Traffic:
    """Bytes per token. A kernel that would be there without FP8 is `elementwise`, and so is the cast that it does."""

    elementwise: float = 0
    casts: float = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.elementwise + other.elementwise, self.casts + other.casts)


@dataclass(frozen=True)
class Block:
    """What the first forward pass moves is `forward` + `last`; activation checkpointing may repeat only `forward`."""

    forward: Traffic
    last: Traffic
    backward: Traffic


def widths(args) -> tuple[int, int]:
    """Features of all query heads, and of all key (or value) heads."""
    return args.dim, args.dim // args.n_heads * args.n_kv_heads


def compiled(args, b: int, recipe: str | None, fp8_layers: Collection[str]) -> Block:
    """A compiled block: one kernel between two GEMMs, or two where FP8 wants the largest value before the cast.

    The largest value of a whole tensor or of columns is known only when the first kernel is done; the second reads
    the same again and writes FP8, so nothing is written in bf16 that only FP8 products take. A scale of one row needs
    one kernel. Attention has its own kernels, so that its results are read for their largest value as well. The
    stream between attention and feed-forward is not kept: it is the sum of the block's input and wo's output wherever
    it is needed.

    Operands are cast by rows and again by columns, for the transposed products; inputs by columns in the backward
    pass, the least that moves. Where an operand has one scale, a kernel casts both (models/fp8_operands.py) from what
    the first one writes in bf16, inputs in the forward pass: with these, tensorwise moves a tenth more at 8B.
    `rowwise_with_gw_hp` takes no columns: its weight gradients are bf16 products.

    Args:
        args: the model's.
        b: see above.
        recipe: torchao's name of the FP8 recipe.
        fp8_layers: names of a block's layers that run in FP8, as `wq` or, fused, `wqkv`.
    """
    (d, kv), f = widths(args), flops.ffn_dim(args)
    fp8 = {name for layer in fp8_layers for name in _FUSED.get(layer, (layer,))}
    columns = recipe != "rowwise_with_gw_hp"
    by_tensor = recipe == "tensorwise"

    def made(reads: float, low: float, high: float, complete_first: bool) -> Traffic:
        """`low` bytes of FP8 and `high` bytes of bf16, made of `reads` bytes."""
        if not (low and complete_first):
            return Traffic(reads + low + high)
        return Traffic(reads + high, (min(reads, high) or reads) + low)

    def input_of(layers: str, reads: float, features: int) -> Traffic:
        mine = set(layers.split())
        wide = not (columns and mine <= fp8)  # a bf16 product, forward or of grad_weight, takes it
        return made(reads, features * bool(mine & fp8), 2 * features * wide, by_tensor)

    def input_again(layers: str, reads: float, features: int) -> Traffic:
        """By columns, next to a kernel of the backward pass that reads the same; the tensor's scale is kept."""
        if not (columns and fp8 & set(layers.split())):
            return Traffic()
        return Traffic(0, features if by_tensor else reads + features)

    def low(layer: str, features: int) -> int:
        return features * (1 + columns) if layer in fp8 else 0

    def high(layer: str, features: int) -> int:
        return 0 if columns and layer in fp8 else 2 * features

    def from_attention(layer: str, features: int, complete_first: bool, low: int) -> Traffic:
        return Traffic(0, 2 * features * (1 + complete_first) + low) if layer in fp8 else Traffic()

    def gradient_of_stream(layer: str) -> Traffic:
        """The kernel that wrote the stream's gradient has seen the largest values, or has a row's scale."""
        if layer not in fp8:
            return Traffic()
        return Traffic(0, b * d + 2 * d) if columns else Traffic(d)

    second = (b + 2) * d  # reads of what is normed second: the stream and wo's output
    swiglu = input_of("w2", 4 * f, f)
    rope = Traffic(2 * 2 * (d + kv))
    last_sum = Traffic(d * (b + 2 + 2 + b))
    forward = (
        input_of("wq wk wv", b * d, d) + rope + from_attention("wo", d, by_tensor, d) + input_of("w1 w3", second, d)
    )
    # The gradient of a norm's output comes as one matrix of each layer behind it, or of their fused one.
    w13, wqkv = (1, 1) if args.fused_projections else (2, 3)
    product_again = f if columns and "w2" in fp8 else 0
    backward = (
        gradient_of_stream("w2")
        # product's gradient, outputs of w1 and w3; the gradients of both
        + made(6 * f, low("w1", f) + low("w3", f) + product_again, high("w1", f) + high("w3", f), columns)
        + Traffic(d * 2 * w13 + second + 2 * b * d)
        + input_again("w1 w3", second, d)
        + gradient_of_stream("wo")
        + (from_attention("wo", d, not by_tensor, d) if columns else Traffic())
        + made(2 * d, low("wq", d), high("wq", d), columns)
        + made(2 * kv, low("wk", kv), high("wk", kv), columns)
        + from_attention("wv", kv, columns, low("wv", kv))
        + Traffic(d * 2 * wqkv + b * d + 2 * b * d)
        + input_again("wq wk wv", b * d, d)
    )
    if args.fused_projections and not low("wv", kv):
        backward += Traffic(2 * 2 * kv)  # next to the gradients of q and k, which are written in their place
    if columns and "w2" in fp8:  # the backward pass makes the product anew
        return Block(forward, last_sum + swiglu, backward)
    return Block(forward + swiglu, last_sum, backward)


def eager(args, b: int) -> Block:
    """As `compiled`, for one kernel an operator; casts are separate operators, and not in it."""
    (d, kv), f = widths(args), flops.ffn_dim(args)
    # torch's fused RMSNorm: x and its norm; backward x, gradient in and out, and both again for the weight's gradient.
    norms, norms_backward = 2 * 2 * b * d, 2 * 5 * b * d
    # apply_rope: to float32 (2 + 4), a product of complex numbers (4 + 4), to bf16 (4 + 2). Backward the same, and the
    # conjugate of the rotations is made anew, which is small.
    rope = rope_backward = (6 + 8 + 6) * (d + kv)
    swiglu, swiglu_backward = (4 + 6) * f, (6 + 2 * 6) * f  # silu, product
    one_sum = d * (b + 2 + b)
    behind_norms = 2 if args.fused_projections else 5
    gradient_sums = behind_norms * 3 * b * d  # one less than layers behind each norm, and one at each residual sum
    joined = 4 * (d + 2 * kv + 2 * f) if args.fused_projections else 0  # gradients of q, k, v; of w1's and w3's parts
    # Autocast, where the stream is float32: to bf16 for each layer behind a norm and back for its gradient, and bf16
    # gradients for wo and w2. 4 + 2 bytes each; nothing where the stream is bf16.
    to_bf16 = 3 * (b - 2) * d
    return Block(
        Traffic(norms + rope + one_sum + swiglu + behind_norms * to_bf16),
        Traffic(one_sum),
        Traffic(
            norms_backward + rope_backward + swiglu_backward + gradient_sums + joined + (behind_norms + 2) * to_bf16
        ),
    )
