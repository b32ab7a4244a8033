"""The least time that a training step takes on one GPU, by part, from shapes, peaks and bandwidth.

A kernel needs at least its FLOPs over the peak of their precision and its bytes over the memory bandwidth; the larger
is its floor. Kernels run one after another, so floors add up. Not in it: gaps between kernels (`IDLE`), communication,
and what a kernel reads from memory a second time.

Eager: each operator reads its operands and writes its result. Compiled: what stands between two GEMMs is one kernel, or
two for FP8 (models/blocks.py). There a profile cannot tell casts from what they are fused with as the floors do: set
the sum of these two parts beside the floors'.

`python -m experiments.roofline NAME --gpu h200` prints it for a recipe.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from models import blocks, flops
from models.casts import casts_of
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
    one_pass = [*_linears(config, args, fp8_layers), *_attention(config, args), *_elementwise(config, args, fp8_layers)]
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


def _linears(config, args, fp8_layers: Collection[str]) -> Iterator[Work]:
    """The three GEMMs of each linear layer, and what makes their operands."""
    t, b, keys = _tokens(config), _itemsize(config), config.quantize.linear.float8
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
        yield Work(CASTS, n * k * (forwards * casts.weight[0] + casts.weight[1]))
        if not (block and compiled):  # those of compiled blocks are in _elementwise
            yield Work(CASTS, t * n * casts.grad_output + t * k * (forwards * casts.input[0] + casts.input[1]))


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
    t, (q, kv) = _tokens(config), blocks.widths(args)
    forward = 4 * t * config.training.seq_len * q / 2
    forwards = _forwards(config)
    yield Work(ATTENTION, args.n_layers * forwards * 2 * t * (2 * q + 2 * kv), args.n_layers * forwards * forward)
    # reads q, k, v, the output and its gradient; writes the gradients of q, k, v
    yield Work(ATTENTION, args.n_layers * 2 * t * (4 * q + 4 * kv), args.n_layers * 2.5 * forward)


def _elementwise(config, args, fp8_layers: Collection[str]) -> Iterator[Work]:
    """Norms, RoPE, SwiGLU, residual sums, and casts between them if compiled; the eager embedding and last norm."""
    t, d, b = _tokens(config), args.dim, _itemsize(config)
    if _compiled(config):
        in_block = {name.rpartition(".")[2] for name in fp8_layers if "." in name}
        block = blocks.compiled(args, b, config.quantize.linear.float8.recipe_name, in_block)
    else:
        block = blocks.eager(args, b)
    last_sums = 1 if _stops_early(config) else _forwards(config)
    for traffic, times in ((block.forward, _forwards(config)), (block.last, last_sums), (block.backward, 1)):
        yield Work(ELEMENTWISE, args.n_layers * t * times * traffic.elementwise)
        yield Work(CASTS, args.n_layers * t * times * traffic.casts)
    yield Work(ELEMENTWISE, t * d * (2 * b + 5 * b))  # the last norm, as in blocks.eager
    # The embedding copies rows; its gradient is a whole matrix of zeros to which rows are added. A tied head's
    # gradient is added to that (3).
    yield Work(ELEMENTWISE, t * d * 5 * b + args.vocab_size * d * b * (4 if args.enable_weight_tying else 1))


def _loss(config, args) -> Work:
    """Cross entropy from bf16 logits and back to their gradient; the head is a linear layer and not in it.

    Compiled: the logits read once forward, once backward, and their gradient written. Eager: to float32 (2 + 4),
    log-softmax (4 + 4), its gradient filled with zeros (4), through log-softmax (4 + 4 + 4), to bf16 (4 + 2).
    """
    return Work(LOSS, _tokens(config) * args.vocab_size * (2 + 2 + 2 if _compiled(config, "loss") else 36))


def _optimizer(config, parameters: int) -> Work:
    """Gradient norm (1 read), clipping (read, write), AdamW.

    In one kernel AdamW reads parameter, gradient and both moments, and writes all but the gradient; for bf16 parameters
    it clips as it reads (models/fused_adamw.py). As foreach or a loop each operation is a pass: decay (2), first moment
    (3), second (2, then 3), its root (2), correction (2), epsilon (2), step (4). Clipping apart multiplies even where
    the norm is small enough.

    Moments of 8 bits and of FP8 are compiled to two kernels, since the largest value of a block comes first: one reads
    gradient and moments, the other all of it and writes. Those of 8 bits go from one to the other in float32 (4 + 4).
    """
    keys, b = config.optimizer, _itemsize(config)
    moment = flops.moment_bytes(keys, b)
    if keys.name in ("AdamW8bit", "AdamWFp8"):
        adamw = 4 * b + 6 * moment + (2 * (4 + 4) if keys.name == "AdamW8bit" else 0)
    elif keys.implementation == "fused" or keys.from_torchao:
        adamw = 3 * b + 4 * moment
    else:
        adamw = 20 * b
    clips = keys.implementation == "fused" and not keys.from_torchao and config.training.dtype == "bfloat16"
    return Work(OPTIMIZER, parameters * (b + (0 if clips else 2 * b) + adamw))
