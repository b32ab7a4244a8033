"""FLOPs and bytes: pure functions of a model's configuration, the same for every recipe.

`args` is `Sizes`, or a model's arguments with the same attributes; a mixture of experts also has
`moe_enabled`, `moe_inter_dim` (width of an expert), `moe_args.num_experts` and `moe_args.top_k`.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """The sizes of a dense model."""

    dim: int
    n_layers: int
    n_heads: float
    n_kv_heads: float
    head_dim: int
    hidden_dim: float  # of the SwiGLU layer
    vocab_size: float
    enable_weight_tying: bool = False  # the head is the embedding
    qk_norm: bool = False  # queries and keys are normed


ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}  # bytes


def q_dim(args) -> int:
    """Features of all query heads: `dim` in a Llama, more or less in others."""
    return args.n_heads * args.head_dim


def kv_dim(args) -> int:
    """Features of all key (or value) heads."""
    return args.n_kv_heads * args.head_dim


def linear_shapes(args) -> dict[str, tuple[int, int]]:
    """(out_features, in_features) of every linear layer, by module name."""
    dim, q, kv, ffn = args.dim, q_dim(args), kv_dim(args), args.hidden_dim
    block = {"attention.wq": (q, dim), "attention.wk": (kv, dim), "attention.wv": (kv, dim)}
    if has_experts(args):
        block["moe.router.gate"] = (args.moe_args.num_experts, dim)
    else:
        block |= {"feed_forward.w1": (ffn, dim), "feed_forward.w3": (ffn, dim)}
    block["attention.wo"] = (dim, q)
    if not has_experts(args):
        block["feed_forward.w2"] = (dim, ffn)
    shapes = {}
    for i in range(args.n_layers):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in block.items()}
    return shapes | {"output": (args.vocab_size, dim)}


def has_experts(args) -> bool:
    """Whether each block has experts, of which a token meets some, in place of one SwiGLU layer."""
    return getattr(args, "moe_enabled", False)  # a Llama's arguments have no word for it


def expert_parameters(args, active: bool = False) -> int:
    """Parameters of a block's experts, three matrices each: of all, or of the `active` ones that a
    token meets."""
    if not has_experts(args):
        return 0
    experts = args.moe_args.top_k if active else args.moe_args.num_experts
    return experts * 3 * args.dim * args.moe_inter_dim


def embedding(args) -> int:
    """Parameters of the input embedding; 0 of a tied one, which is the head."""
    return 0 if args.enable_weight_tying else args.vocab_size * args.dim


def parameters(args, active: bool = False) -> int:
    """Number of parameters, or of the `active` ones of a token; a tied embedding is counted once,
    as the head."""
    linears = sum(n * k for n, k in linear_shapes(args).values())
    norms = (2 * args.n_layers + 1) * args.dim + 2 * args.n_layers * args.head_dim * args.qk_norm
    return linears + args.n_layers * expert_parameters(args, active) + norms + embedding(args)


def share_of_matmuls(args, layers: Collection[str]) -> float:
    """The part of the FLOPs of linear layers and active experts that is done by `layers`, by their
    module names."""
    shapes = {name: n * k for name, (n, k) in linear_shapes(args).items()}
    everything = sum(shapes.values()) + args.n_layers * expert_parameters(args, active=True)
    return sum(map(shapes.get, layers)) / everything


def most_speed_up(fp8_share: float) -> float:
    """Of matmuls of which FP8 computes a share, in half the time; casts and all that is no matmul
    are left out."""
    return 1 / (1 - fp8_share / 2)


def flops_per_token(args, seq_len: int, causal: bool = False) -> int:
    """FLOPs of forward and backward per token: 6 per weight, input embedding left out, plus
    attention.

    torchtitan's and the published study's formula: 6 N + 12 layers heads head_dim seq_len. Of
    experts N has the active ones. `causal` halves the attention term, because a causal mask leaves
    half of it to compute; figures made with it carry the word.
    """
    attention = 12 * args.n_layers * q_dim(args) * seq_len
    if causal:
        attention //= 2
    return 6 * (parameters(args, active=True) - embedding(args)) + attention


def fsdp_bytes(
    shapes: Mapping[str, Sequence[int]],
    shards: int,
    fp8: Collection[str] = (),
    gathered: int = 2,
    reshard: str = "default",
    gradient_bytes: Callable[[int], int] = lambda n: 4 * n,
) -> tuple[int, int]:
    """Bytes that one forward and backward pass all-gathers and reduce-scatters: of whole weights,
    of whole gradients.

    The embedding and the blocks are gathered twice, since FSDP2 frees them after their forward
    pass; the last norm and the head, whose backward pass follows at once, are gathered once, and an
    embedding that is the head with them.

    Args:
        shapes: of the parameters, by name, unsharded. FSDP2 pads rows to a multiple of `shards`.
        fp8: names of those that are cast to FP8 before they are gathered.
        gathered: bytes of an element of the other weights.
        reshard: torchtitan's `parallelism.fsdp_reshard_after_forward`; always and never make
        exceptions.
        gradient_bytes: in which n gradients are sent; by default float32's.
    """
    weights, reduced = 0, Counter()
    apart = ("layers.", "tok_embeddings.") if "output.weight" in shapes else ("layers.",)
    for name, (rows, *columns) in shapes.items():
        elements = -(-rows // shards) * shards * math.prod(columns)
        freed = reshard == "always" or reshard == "default" and name.startswith(apart)
        weights += elements * (1 if name in fp8 else gathered) * (2 if freed else 1)
        together = ".".join(name.split(".")[:2]) if name.startswith(apart) else "norm and head"
        reduced[together] += elements // shards
    return weights, shards * sum(map(gradient_bytes, reduced.values()))


# Bytes per logit while the loss is computed: bf16 logits and their gradient; eager two float32
# copies more.
_LOSS_COMPILED, _LOSS_EAGER = 4, 12


def memory_by_use(config, args, shards: int) -> dict[str, float]:
    """Estimate the bytes that training needs on each device at the step's fullest moment, by use.

    That is one of two: the beginning of the backward pass, when all activations are kept, or its
    end, when all gradients are there. To within 10 % of what PyTorch's allocator counts.

    Args:
        config: a resolved recipe's `JobConfig`.
        args: its model's arguments.
        shards: devices that FSDP shards parameters, gradients and states over. Activations and
            logits are not sharded.
    """
    training, n = config.training, parameters(args)
    tokens = training.local_batch_size * training.seq_len
    per_parameter = ITEMSIZE[training.dtype]
    head = args.vocab_size * args.dim
    gradients = n * per_parameter / shards
    accumulates = training.global_batch_size > training.local_batch_size * shards
    reduced = gathered = tied = 0
    if shards == 1 and args.enable_weight_tying:
        # Its gradients as head and as embedding, while their sum is written.
        tied = 2 * head * per_parameter
    if shards > 1:
        # The largest gradient, in bf16, in float32, and the shard of their sum.
        reduced = head * (2 + 4 + 4 / shards)
        gathered = 2 * 2 * _block(args)  # the block that computes and the next, in bf16
    loss = _LOSS_COMPILED if config.compile.enable else _LOSS_EAGER
    logits = loss * tokens * args.vocab_size
    if shards > 1:
        logits = max(logits + 2 * head, reduced)  # the head's weight is gathered
    begin = {
        "gradients": gradients if accumulates else 0,
        # in bf16
        "activations": 2 * tokens * _kept_features(config, args)
        + _kept_casts(config, args, shards),
        "logits": logits,
        "gathered": gathered,
    }
    end = {"gradients": gradients + tied, "activations": 0, "logits": 0, "gathered": reduced}
    fullest = max(begin, end, key=lambda uses: sum(uses.values()))
    stay = {
        "parameters": n * per_parameter / shards,
        "optimizer": n * 2 * per_parameter / shards,
    }
    return stay | fullest


def _kept_casts(config, args, shards: int) -> int:
    """Bytes in FP8 that the fast layer keeps for the backward pass (models/fast_float8.py).

    It keeps the inputs of linear layers, once for those that share one; and, where each process has
    whole weights and computes nothing again, the weights of all blocks.
    """
    float8, training = config.quantize.linear.float8, config.training
    if (float8.implementation, float8.recipe_name) != ("fast", "tensorwise") or float8.emulate:
        return 0
    width = 0 if has_experts(args) else args.hidden_dim  # experts stay in bf16
    inputs = 2 * args.dim + q_dim(args) + width
    tokens = training.local_batch_size * training.seq_len
    if config.activation_checkpoint.mode != "none":
        return tokens * inputs  # of one layer at a time
    weights = _block(args) - expert_parameters(args) if shards == 1 else 0
    return args.n_layers * (tokens * inputs + weights)


def memory_finding(needed: float, available: float) -> str:
    """Say how many bytes are needed of how many."""
    return f"about {needed / 2**30:.1f} GiB of {available / 2**30:.0f} GiB"


def _block(args) -> int:
    """Parameters of a block's matrices."""
    shapes = linear_shapes(args).items()
    linears = sum(n * k for name, (n, k) in shapes if name.startswith("layers.0."))
    return linears + expert_parameters(args)


def _kept_features(config, args) -> int:
    """Features of all layers that are kept for the backward pass of a token.

    Of width dim: the inputs of both norms, and their outputs. Of the heads' width: queries, keys,
    values and attention's output; queries and keys before their norms. Of the SwiGLU layer's width:
    the outputs of w1 and w3, silu, their product; once for each expert that a token meets, which
    also keeps its input, and in float32 its output, for the product with the router's score.
    Compiled code computes silu again, and in FP8 all that its casts begin with: the norms' outputs
    and the product.
    """
    recomputed = config.compile.enable
    in_fp8 = recomputed and config.quantize.linear.float8.recipe_name is not None
    heads = 2 * (q_dim(args) + kv_dim(args)) + (q_dim(args) + kv_dim(args)) * args.qk_norm
    experts, width = 1, args.hidden_dim
    if has_experts(args):
        experts, width = args.moe_args.top_k, args.moe_inter_dim
        in_fp8 = False  # experts stay in bf16
    of_dim, of_width = 4 - 2 * in_fp8, 4 - recomputed - in_fp8
    layer = of_dim * args.dim + heads + of_width * experts * width
    layer += 3 * experts * args.dim * has_experts(args)
    if config.activation_checkpoint.mode == "full":  # each layer's input, and one layer at a time
        return args.n_layers * args.dim + layer
    return args.n_layers * layer
