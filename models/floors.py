"""The least time of a training step on one GPU, part by part, from shapes, peaks and memory
bandwidth.

A kernel needs at least its FLOPs over the peak of their precision, and at least its bytes over the
memory bandwidth: the larger of the two is its floor. Kernels run one after another, so the floors
of a step add up.

Matmuls and attention read their operands and write their results. What stands between two of them
is read once and written once, however many kernels do it, so that an eager and a compiled recipe
have the same floor. No floor has: gaps between kernels (`IDLE`), a second look at the same data (as
when the largest value of a tensor must be known before its cast), and communication between GPUs.
"""

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, replace

from models import flops
from models.errors import InputError
from models.gpus import Rates
from models.scalings import SCALINGS

MATMUL_FP8, MATMUL_BF16, ATTENTION = "matmul FP8", "matmul bf16", "attention"
CASTS, ELEMENTWISE = "casts and scales", "norms and element-wise"
LOSS, OPTIMIZER = "loss", "optimizer"
PARTS = (MATMUL_FP8, MATMUL_BF16, ATTENTION, CASTS, ELEMENTWISE, LOSS, OPTIMIZER)
IDLE = "idle"  # the GPU waits: a part of measured steps that no floor predicts


@dataclass(frozen=True)
class Work:
    """Kernels of one part: `flops` on operands of `operand_bytes` each, and `bytes` to and from GPU
    memory."""

    part: str
    bytes: float
    flops: float = 0.0
    operand_bytes: int = 2

    def seconds(self, rates: Rates) -> float:
        """The floor. Raises `InputError` for FP8 on a GPU without FP8 units."""
        peak = rates.fp8 if self.operand_bytes == 1 else rates.bf16
        if peak is None:
            raise InputError(
                "this GPU has no FP8 units: choose a recipe in bf16, as `baseline_compiled`"
            )
        return max(self.flops / peak, self.bytes / rates.bandwidth)


def step_floors(work: list[Work], rates: Rates) -> dict[str, float]:
    """Seconds of every part. Raises `InputError` for FP8 on a GPU without FP8 units."""
    return {part: sum(w.seconds(rates) for w in work if w.part == part) for part in PARTS}


@dataclass(frozen=True)
class Step:
    """What a training step on one GPU computes, besides the sizes of its model."""

    seq_len: int
    rows: float  # of a forward pass
    passes: int = 1  # forward passes (gradient accumulation)
    forwards: int = 1  # how often a block's forward pass is computed: 2 if it is recomputed
    itemsize: int = 2  # bytes of a parameter, its gradient, and, as autocast goes, of the stream
    optimizer_bytes: int = 16  # moved for each parameter; 16 of AdamW in bf16
    fp8_matmuls: int = 3  # in FP8, of the three of a layer that runs in FP8

    @property
    def tokens(self) -> float:
        """Tokens of a forward pass."""
        return self.rows * self.seq_len


def step_of(config, passes: int) -> Step:
    """Read a resolved recipe's `JobConfig`. Raises `InputError` for a setting whose work is not
    known here."""
    training, float8 = config.training, config.quantize.linear.float8
    if training.mixed_precision_param != "bfloat16":
        raise InputError(
            "the roofline knows matmuls in bf16 and FP8: set training.mixed_precision_param to "
            "bfloat16"
        )
    modes = {"none": 1, "full": 2}
    mode = config.activation_checkpoint.mode
    if mode not in modes:
        raise InputError(
            f"activation_checkpoint.mode {mode} has no roofline: set it to none or full"
        )
    if float8.emulate:
        raise InputError(
            "emulated FP8 has no roofline: set quantize.linear.float8.emulate to false"
        )
    scaling = SCALINGS.get(float8.recipe_name)
    if scaling and not scaling.in_torchao:
        raise InputError(f"{scaling.name} FP8 has no roofline: choose tensorwise or rowwise")
    itemsize = flops.ITEMSIZE[training.dtype]
    # The norm reads the gradients; AdamW reads them too, reads and writes states, and writes
    # parameters, which it also reads where none of the states is a master weight.
    times = 3 if any(asdict(config.optimizer.states).values()) else 4
    return Step(
        seq_len=training.seq_len,
        rows=training.local_batch_size,
        passes=passes,
        forwards=modes[mode],
        itemsize=itemsize,
        optimizer_bytes=times * itemsize + 2 * flops.state_bytes(config),
        fp8_matmuls=scaling.matmuls if scaling else 0,
    )


def step_work(step: Step, args, fp8_layers: Collection[str]) -> list[Work]:
    """List what a step has to do. Raises `InputError` for a mixture of experts.

    Args:
        step: what is computed.
        args: the model's arguments.
        fp8_layers: names of the linear layers that run in FP8, as `float8.choose` gives them.
    """
    if flops.has_experts(args):
        attention = [name for name in flops.linear_shapes(args) if ".attention." in name]
        share = flops.share_of_matmuls(args, attention)
        raise InputError(
            "a mixture of experts has no roofline: choose a dense flavor, as qwen3-8B. FP8 leaves "
            f"experts, router and head in bf16 and computes {share:.1%} of the matmuls' FLOPs, so "
            f"that it makes a step at most {flops.most_speed_up(share):.3f} times as fast"
        )
    # Cross entropy reads the bf16 logits forward and backward, and writes their gradient; the head
    # is a linear layer.
    loss = Work(LOSS, step.tokens * args.vocab_size * (2 + 2 + 2))
    one_pass = [*_linears(step, args, fp8_layers), *_attention(step, args)]
    one_pass += [*_elementwise(step, args), loss]
    passes, parameters = step.passes, flops.parameters(args)
    # Gradients are added to those of earlier passes.
    added_up = Work(ELEMENTWISE, 3 * (passes - 1) * step.itemsize * parameters)
    optimizer = Work(OPTIMIZER, step.optimizer_bytes * parameters)
    all_passes = [replace(w, bytes=passes * w.bytes, flops=passes * w.flops) for w in one_pass]
    return [*all_passes, added_up, optimizer]


def _linears(step: Step, args, fp8_layers: Collection[str]) -> Iterator[Work]:
    """The three matmuls of each linear layer, and the casts of its operands that no other kernel
    does in passing."""
    t, b = step.tokens, step.itemsize
    for name, (n, k) in flops.linear_shapes(args).items():
        layer, fp8 = name.rpartition(".")[2], name in fp8_layers
        # No gradient needs the output of w2 or of the head: their forward pass is not repeated.
        forwards = 1 if layer in ("w2", "output") else step.forwards
        yield from forwards * [_matmul(t, n, k, fp8)]  # output = input x weight
        yield _matmul(t, k, n, fp8)  # gradient of the input = gradient x weight
        yield _matmul(n, k, t, fp8 and step.fp8_matmuls == 3)  # of the weight = gradient x input
        # A weight becomes bf16, or FP8 as it is and transposed (1 + 1); a bf16 gradient becomes one
        # in float32.
        copies = int(fp8 or b > 2) + int(b > 2)
        yield Work(CASTS, copies * (b + 2) * n * k)
        if fp8:
            of_input, of_gradient = _LONE_CASTS.get(layer, (0, 0))
            yield Work(CASTS, t * (of_input * k + of_gradient * n))


# Bytes per token and feature of a layer's input and of its output's gradient, where no norm, RoPE
# or SwiGLU makes them. Attention gives the input of wo and the gradient of wv: read bf16, write FP8
# as it is and transposed. The gradients of wo and w2 are the residual stream's, which is written
# anyway: FP8 comes on top.
_LONE_CASTS = {"wo": (2 + 2, 2), "wv": (0, 2 + 2), "w2": (0, 2)}


def _matmul(m: int, n: int, k: int, fp8: bool) -> Work:
    """(m, k) by (k, n), with a bf16 result."""
    part, size = (MATMUL_FP8, 1) if fp8 else (MATMUL_BF16, 2)
    return Work(part, size * (m * k + k * n) + 2 * m * n, 2 * m * n * k, size)


def _attention(step: Step, args) -> Iterator[Work]:
    """Flash attention with a causal mask, which leaves half of the matmuls to compute.

    Forward two matmuls (scores, output), 4 T seq dim FLOPs without a mask; backward five (scores
    again, and the gradients of v, the probabilities, q and k), 2.5 times as many.
    """
    t, q, kv, layers = step.tokens, flops.q_dim(args), flops.kv_dim(args), args.n_layers
    forward = 4 * t * step.seq_len * q / 2
    once = Work(ATTENTION, layers * 2 * t * (2 * q + 2 * kv), layers * forward)
    yield from step.forwards * [once]
    # reads q, k, v, the output and its gradient; writes the gradients of q, k, v
    yield Work(ATTENTION, layers * 2 * t * (4 * q + 4 * kv), layers * 2.5 * forward)


def _elementwise(step: Step, args) -> Iterator[Work]:
    """Norms, residual sums, RoPE, SwiGLU and the embedding, in bytes per token.

    A feature of the residual stream has `b` bytes, of results and operands of matmuls 2, in FP8 as
    well: an operand is written as it is and transposed, 1 + 1.
    """
    t, b, d, f = step.tokens, step.itemsize, args.dim, args.hidden_dim
    rotated = flops.q_dim(args) + flops.kv_dim(args)
    # RoPE has the norms of queries and keys with it, which read their inputs again backward.
    rope = 2 * 2 * rotated
    # A sum and norm reads the stream and a matmul's result, and writes the sum and an operand.
    sum_and_norm = 2 * (b + 2) * d
    # SwiGLU reads two results and writes an operand.
    forward = 2 * sum_and_norm + rope + 2 * (2 * f + f)
    # Each layer behind a norm gives a gradient of its input; also read: the stream and its
    # gradient, which is written.
    behind_norms = 2 if args.fused_projections else 5
    backward = behind_norms * 2 * d + 2 * (3 * b * d) + rope + 2 * rotated * args.qk_norm
    # SwiGLU reads a gradient and both results, and writes both gradients.
    backward += 2 * (f + 2 * f) + 2 * (2 * f)
    # Recomputation ends before w2: no result to read, no sum to write.
    repeated = (step.forwards - 1) * (forward - (b + 2) * d)
    yield Work(ELEMENTWISE, args.n_layers * t * (forward + repeated + backward))
    # The embedding is read and written, and normed for the first block; backward the last norm and
    # a whole matrix of zeros with some rows. Under a tied head that matrix is added to the head's
    # gradient (3).
    yield Work(ELEMENTWISE, t * d * ((2 * b + 2) + (3 * b + 2)))
    yield Work(ELEMENTWISE, args.vocab_size * d * b * (1 + 3 * args.enable_weight_tying))
