"""The least time that a training step takes on one GPU, by part, from shapes, peaks and bandwidth.

A kernel needs at least its FLOPs over the peak of their precision and its bytes over the memory bandwidth; the larger
is its floor. Kernels run one after another, so floors add up. Not in it: gaps between kernels (`IDLE`), communication,
and what a kernel reads from memory a second time.

Eager: each operator reads its operands and writes its result. Compiled: what stands between two GEMMs is one kernel.

`python -m models.roofline NAME --gpu h200` prints it for a recipe (see experiments/roofline.py).
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from models import flops
from models.casts import casts_of, once_a_step
from models.errors import InputError
from models.gpus import Rates

MATMUL_FP8, MATMUL_BF16, ATTENTION, CASTS, ELEMENTWISE, LOSS, OPTIMIZER = PARTS = (
    "matmul FP8", "matmul bf16", "attention", "casts and scales", "norms and element-wise", "loss", "optimizer",
)  # fmt: skip
IDLE = "idle"  # the GPU waits: a part of measured steps that no floor predicts


@dataclass(frozen=True)
class Work:
    """Kernels of one part: `flops` on operands of `operand_bytes` each, and `bytes` to and from GPU memory."""

    part: str
    bytes: float
    flops: float = 0.0
    operand_bytes: int = 2

    def seconds(self, rates: Rates) -> float:
        """The floor. Raises `InputError` for FP8 on a GPU without FP8 units."""
        peak = rates.fp8 if self.operand_bytes == 1 else rates.bf16
        if peak is None:
            raise InputError("this GPU has no FP8 units: choose a recipe in bf16, as `baseline_compiled`")
        return max(self.flops / peak, self.bytes / rates.bandwidth)


def floors(work: list[Work], rates: Rates) -> dict[str, float]:
    """Seconds of every part. Raises `InputError` for FP8 on a GPU without FP8 units."""
    return {part: sum(w.seconds(rates) for w in work if w.part == part) for part in PARTS}


def step_work(config, args, fp8_layers: Collection[str]) -> list[Work]:
    """What one optimizer step of a recipe has to do.

    Args:
        config: a resolved recipe's `JobConfig`.
        args: its model's arguments.
        fp8_layers: names of the linear layers that run in FP8, as `float8.choose_modules` gives them.

    Raises:
        InputError: for a setting whose work is not known here.
    """
    _check(config)
    passes = _passes(config)
    one_pass = [*_linears(config, args, fp8_layers), *_attention(config, args), *_elementwise(config, args)]
    one_pass.append(_loss(config, args))
    work = [replace(w, bytes=passes * w.bytes, flops=passes * w.flops) for w in one_pass]
    parameter_bytes = _itemsize(config) * flops.parameters(args)
    return [
        *work,
        Work(ELEMENTWISE, 3 * (passes - 1) * parameter_bytes),  # gradients added to those of earlier passes
        _optimizer(config, flops.parameters(args)),
    ]


def _check(config) -> None:
    if config.training.mixed_precision_param != "bfloat16":
        raise InputError("the roofline knows products of bf16 and FP8: set training.mixed_precision_param to bfloat16")
    if config.activation_checkpoint.mode not in ("none", "full"):
        raise InputError(
            f"activation_checkpoint.mode {config.activation_checkpoint.mode} has no roofline: set it to none or full"
        )
    if config.quantize.linear.float8.emulate:
        raise InputError("emulated FP8 has no roofline: set quantize.linear.float8.emulate to false")


def _itemsize(config) -> int:
    """Bytes of a parameter, its gradient, each Adam moment, and, as autocast goes, of the residual stream."""
    return {"bfloat16": 2, "float32": 4}[config.training.dtype]


def _tokens(config) -> int:
    """Tokens of a forward pass."""
    return config.training.local_batch_size * config.training.seq_len


def _passes(config) -> int:
    """Forward passes of a step (gradient accumulation); torchtitan's global batch size of -1 means one."""
    return max(1, config.training.global_batch_size // config.training.local_batch_size)


def tokens_per_step(config) -> int:
    """Tokens of one optimizer step on one GPU."""
    return _passes(config) * _tokens(config)


def _forwards(config) -> int:
    """How often a block's forward pass is computed: full activation checkpointing does it again in the backward."""
    return 2 if config.activation_checkpoint.mode == "full" else 1


def _stops_early(config) -> bool:
    """Whether the second forward pass ends before w2, whose output no gradient needs: the compiler sees that."""
    return _compiled(config) or config.activation_checkpoint.early_stop


def _compiled(config, component: str = "model") -> bool:
    return config.compile.enable and component in config.compile.components


# ---- linear layers ----


_SHARE_INPUT = {"wq": "qkv", "wk": "qkv", "wv": "qkv", "w1": "w13", "w3": "w13"}  # compiled, it is cast once for them


def _linears(config, args, fp8_layers: Collection[str]) -> Iterator[Work]:
    """The three GEMMs of each linear layer, and what makes their operands."""
    t, b, keys, cast_inputs = _tokens(config), _itemsize(config), config.quantize.linear.float8, set()
    for name, (n, k) in flops.linear_shapes(args).items():
        block, _, short = name.rpartition(".")
        compiled = _compiled(config) and (block != "" or config.compile.scope == "model")  # by blocks: not the head
        forwards = _forwards(config) if block and not (short == "w2" and _stops_early(config)) else 1
        fp8 = name in fp8_layers
        grad_weight_fp8 = fp8 and keys.recipe_name != "rowwise_with_gw_hp"
        yield from [_gemm(2 * t * n * k, t * k + n * k, t * n, fp8)] * forwards  # output = input x weight
        yield _gemm(2 * t * n * k, t * n + n * k, t * k, fp8)  # grad_input = grad_output x weight
        yield _gemm(2 * t * n * k, t * n + t * k, n * k, grad_weight_fp8)  # grad_weight = grad_output x input
        # Autocast's bf16 copies of float32 weights (4 + 2; FP8 casts from float32), float32 ones of their gradients.
        yield Work(CASTS, 3 * (b - 2) * n * k * (1 if fp8 else 2))
        if not fp8:
            continue
        casts = casts_of(keys, compiled, b)
        if keys.cast_weights_once:  # at the start of the step, in one compiled cast for all layers
            casts = replace(casts, weight=once_a_step(_compiled(config), b, _passes(config)))
        yield Work(CASTS, n * k * (forwards * casts.weight[0] + casts.weight[1] + casts.grad_weight))
        yield Work(CASTS, t * n * casts.grad_output + t * k * casts.grad_input)
        source = block, _SHARE_INPUT.get(short, short)
        if not compiled or source not in cast_inputs:
            yield Work(CASTS, t * k * (forwards * casts.input[0] + casts.input[1]))
        cast_inputs.add(source)


def _gemm(gemm_flops: int, operands: int, result: int, fp8: bool) -> Work:
    """A matrix product; `operands` and `result` are numbers of elements, and results are bf16."""
    size = 1 if fp8 else 2
    return Work(MATMUL_FP8 if fp8 else MATMUL_BF16, size * operands + 2 * result, gemm_flops, size)


# ---- everything else ----


def _attention(config, args) -> Iterator[Work]:
    """Flash attention with a causal mask, which leaves half of the products to compute.

    Forward two products (scores, output), 4 T seq dim FLOPs with no mask; backward five (scores again, and the
    gradients of v, the probabilities, q and k), 2.5 times as many.
    """
    t, (q, kv) = _tokens(config), _widths(args)
    forward = 4 * t * config.training.seq_len * q / 2
    forwards = _forwards(config)
    yield Work(ATTENTION, args.n_layers * forwards * 2 * t * (2 * q + 2 * kv), args.n_layers * forwards * forward)
    # reads q, k, v, the output and its gradient; writes the gradients of q, k, v
    yield Work(ATTENTION, args.n_layers * 2 * t * (4 * q + 4 * kv), args.n_layers * 2.5 * forward)


def _widths(args) -> tuple[int, int]:
    """Features of all query heads, and of all key (or value) heads."""
    return args.dim, args.dim // args.n_heads * (args.n_kv_heads or args.n_heads)


def _elementwise(config, args) -> Iterator[Work]:
    """Norms, RoPE, SwiGLU, residual sums; and the embedding and the last norm, which run eager."""
    t, d, b = _tokens(config), args.dim, _itemsize(config)
    forward, last_sum, backward = (_compiled_block if _compiled(config) else _eager_block)(args, b)
    forwards = _forwards(config)
    last_sums = 1 if _stops_early(config) else forwards
    yield Work(ELEMENTWISE, args.n_layers * t * (forwards * forward + last_sums * last_sum + backward))
    yield Work(ELEMENTWISE, t * d * (2 * b + 5 * b))  # the last norm, as in _eager_block
    # The embedding copies rows; its gradient is a whole matrix of zeros to which rows are added. A tied head's
    # gradient is added to that (3).
    yield Work(ELEMENTWISE, t * d * 5 * b + args.vocab_size * d * b * (4 if args.enable_weight_tying else 1))


def _compiled_block(args, b: int) -> tuple[int, int, int]:
    """Bytes per token of a compiled block: forward without its last sum, that sum, backward.

    The residual stream has `b` bytes, all else is bf16. The stream between attention and feed-forward is not kept: it
    is the sum of the block's input and wo's output wherever it is needed.
    """
    (d, kv), f = _widths(args), flops.ffn_dim(args)
    norms = d * (b + 2) + d * (b + 2 + 2)  # of x, of x + wo's output
    rope = 2 * 2 * (d + kv)
    swiglu = (2 + 2 + 2) * f
    last_sum = d * (b + 2 + 2 + b)
    # The gradient of a norm's output comes as one matrix of each layer behind it (w1, w3; wq, wk, wv), then the norm's
    # input, then the stream's gradient read and written.
    w13, wqkv = (1, 1) if args.fused_projections else (2, 3)
    norms_backward = d * (2 * w13 + (b + 2) + 2 * b) + d * (2 * wqkv + b + 2 * b)
    swiglu_backward = (3 + 2) * 2 * f  # product's gradient, outputs of w1 and w3; the gradients of both
    return norms + rope + swiglu, last_sum, norms_backward + rope + swiglu_backward


def _eager_block(args, b: int) -> tuple[int, int, int]:
    """As `_compiled_block`, for one kernel an operator."""
    (d, kv), f = _widths(args), flops.ffn_dim(args)
    # torch's fused RMSNorm: x and its norm; backward x, gradient in and out, and both again for the weight's gradient.
    norms, norms_backward = 2 * 2 * b * d, 2 * 5 * b * d
    # apply_rope: to float32 (2 + 4), four products of half the features (8/2 each), a difference and a sum (12/2 each),
    # stack (4 + 4), to bf16 (4 + 2). Backward the same with two sums of gradients, and a sign (8/2).
    rope, rope_backward = (6 + 16 + 12 + 8 + 6) * (d + kv), (6 + 16 + 12 + 8 + 6 + 4) * (d + kv)
    swiglu, swiglu_backward = (4 + 6) * f, (6 + 2 * 6) * f  # silu, product
    one_sum = d * (b + 2 + b)
    behind_norms = 2 if args.fused_projections else 5
    gradient_sums = behind_norms * 3 * b * d  # one less than layers behind each norm, and one at each residual sum
    joined = 4 * (d + 2 * kv + 2 * f) if args.fused_projections else 0  # gradients of q, k, v; of w1's and w3's parts
    # Autocast, where the stream is float32: to bf16 for each layer behind a norm and back for its gradient, and bf16
    # gradients for wo and w2. 4 + 2 bytes each; nothing where the stream is bf16.
    to_bf16 = 3 * (b - 2) * d
    return (
        norms + rope + one_sum + swiglu + behind_norms * to_bf16,
        one_sum,
        norms_backward + rope_backward + swiglu_backward + gradient_sums + joined + (behind_norms + 2) * to_bf16,
    )


def _loss(config, args) -> Work:
    """Cross entropy from bf16 logits and back to their gradient; the head is a linear layer and not in it.

    Compiled: the logits read once forward, once backward, and their gradient written. Eager: to float32 (2 + 4),
    log-softmax (4 + 4), its gradient filled with zeros (4), through log-softmax (4 + 4 + 4), to bf16 (4 + 2).
    """
    return Work(LOSS, _tokens(config) * args.vocab_size * (2 + 2 + 2 if _compiled(config, "loss") else 36))


def _optimizer(config, parameters: int) -> Work:
    """Gradient norm (1 read), clipping (read, write), AdamW.

    In one kernel AdamW reads parameter, gradient and both moments, and writes all but the gradient; if it clips, that
    too. As foreach or a loop each operation is a pass: decay (2), first moment (3), second (2, then 3), its root (2),
    correction (2), epsilon (2), step (4). Clipping multiplies even where the norm is small enough.
    """
    keys, b = config.optimizer, _itemsize(config)
    one_kernel = keys.implementation == "fused" or keys.from_torchao
    adamw = 3 * b + 4 * flops.moment_bytes(keys, b) if one_kernel else 20 * b
    return Work(OPTIMIZER, parameters * (b + (1 if keys.fused_clipping else 2) * b + adamw))


if __name__ == "__main__":
    import sys

    from experiments.roofline import main  # reading a recipe is the work of experiments; as a module this needs none

    sys.exit(main())
