"""Count FLOPs and bytes: pure functions of a model's configuration, the same for every recipe.

`args` is `Sizes`, or a model's arguments: a `Dense` too, with the same attributes.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

GIB = 2**30
ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}  # bytes


def q_dim(args) -> int:
    """Count the features of all query heads: `dim` in a Llama, more or less in others."""
    return args.n_heads * args.head_dim


def kv_dim(args) -> int:
    """Count the features of all key (or value) heads."""
    return args.n_kv_heads * args.head_dim


def embedding_parameters(args) -> int:
    """Count the parameters of the input embedding: 0 if it is tied, so counted as the head."""
    return 0 if args.enable_weight_tying else args.vocab_size * args.dim


def explain_unfit_heads(args) -> str | None:
    """Say why heads cannot share keys and values, or be turned by RoPE; None if they can."""
    if args.n_heads % args.n_kv_heads == 0 and args.head_dim % 2 == 0:
        return None
    return (
        f"model.sizes: n_kv_heads ({args.n_kv_heads}) must divide n_heads "
        f"({args.n_heads}), and a head's features ({args.head_dim}) must be even"
    )


def format_parameters(parameters: float) -> str:
    """Format a number of parameters in words: three digits, in millions or billions: `8.05 B`."""
    return f"{parameters / 1e9:.3g} B" if parameters >= 1e9 else f"{parameters / 1e6:.3g} M"


class Dense:
    """Derive shapes, FLOPs and bytes from a model's sizes, its attributes (see `Sizes`).

    An architecture of another kind has its own formulas in place of these.
    """

    dim: int
    n_layers: int
    hidden_dim: Any  # a whole number, except in `Sizes`
    vocab_size: Any
    if TYPE_CHECKING:  # an architecture may compute these, or have them for all its sizes

        @property
        def head_dim(self) -> int: ...

        @property
        def qk_norm(self) -> bool: ...

    def block_shapes(self) -> dict[str, tuple[int, int]]:
        """Give (out_features, in_features) of a block's linear layers."""
        query_dim = q_dim(self)
        key_dim = kv_dim(self)
        return {
            "attention.wq": (query_dim, self.dim),
            "attention.wk": (key_dim, self.dim),
            "attention.wv": (key_dim, self.dim),
            "feed_forward.w1": (self.hidden_dim, self.dim),
            "feed_forward.w3": (self.hidden_dim, self.dim),
            "attention.wo": (self.dim, query_dim),
            "feed_forward.w2": (self.dim, self.hidden_dim),
        }

    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """Give (out_features, in_features) of every linear layer, by module name."""
        shapes = {}
        for i in range(self.n_layers):
            for name, shape in self.block_shapes().items():
                shapes[f"layers.{i}.{name}"] = shape
        return shapes | {"output": (self.vocab_size, self.dim)}

    def parameters(self) -> int:
        """Count the parameters; a tied embedding is counted once, as the head."""
        linears = sum(n * k for n, k in self.linear_shapes().values())
        norms = (2 * self.n_layers + 1) * self.dim
        norms += 2 * self.n_layers * self.head_dim * self.qk_norm
        return linears + norms + embedding_parameters(self)

    def unused_parameters(self) -> int:
        """Count the parameters unused by a token; a dense model has none."""
        return 0

    def describe(self) -> str:
        """Say how large the model is."""
        return f"{format_parameters(self.parameters())} parameters"

    def flops_per_token(self, seq_len: int, causal: bool = False) -> int:
        """Count FLOPs of forward and backward per token: 6 per weight, input embedding left out,
        plus attention.

        torchtitan's and the published study's formula: 6 N + 12 layers heads head_dim seq_len.
        `causal` halves the attention term, because a causal mask leaves half of it to compute;
        figures made with it carry the word.
        """
        attention = self.n_layers * q_dim(self) * seq_len
        weights = self.parameters() - embedding_parameters(self) - self.unused_parameters()
        return 6 * weights + (6 if causal else 12) * attention

    def saved_features(self, recomputed: bool, in_fp8: bool) -> int:
        """Count the features of a layer kept for the backward pass of a token.

        Of width dim: the inputs of both norms, and their outputs. Of the heads' width: queries,
        keys, values and attention's output; queries and keys before their norms. Of the SwiGLU
        layer's width: the outputs of w1 and w3, silu, their product. Compiled code computes silu
        again (`recomputed`), and in FP8 all that its casts begin with: the norms' outputs and the
        product.
        """
        heads = (2 + self.qk_norm) * (q_dim(self) + kv_dim(self))
        dim_copies = 4 - 2 * in_fp8
        hidden_copies = 4 - recomputed - in_fp8
        return dim_copies * self.dim + heads + hidden_copies * self.hidden_dim


@dataclass(frozen=True)
class Sizes(Dense):
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


def estimate_recipe_memory(config, args, shards: int, passes: int = 1) -> dict[str, float]:
    """Estimate the bytes of a resolved recipe's training on each device, by use.

    Args:
        config: the recipe's `JobConfig`.
        args: its model's arguments.
        shards: as of `estimate_memory`.
        passes: forward passes of a step.
    """
    training = config.training
    return estimate_memory(
        args,
        tokens=training.local_batch_size * training.seq_len,
        shards=shards,
        accumulates=passes > 1,
        itemsize=ITEMSIZE[training.dtype],
        compiled=config.compile.compiles_model,
        recomputes=config.activation_checkpoint.mode == "full",
        in_fp8=config.quantize.linear.float8.recipe_name is not None,
    )


def estimate_memory(
    args,
    tokens: int,
    shards: int,
    accumulates: bool = False,
    itemsize: int = 2,
    compiled: bool = True,
    recomputes: bool = False,
    in_fp8: bool = False,
) -> dict[str, float]:
    """Estimate the bytes of training on each device at the step's fullest moment, by use.

    That is one of two: the beginning of the backward pass, when all activations are kept, or its
    end, when all gradients are there. To within 10 % of what PyTorch's allocator counts.

    Args:
        args: `Sizes`, or a model's arguments.
        tokens: of a device's forward pass.
        shards: devices that FSDP shards parameters, gradients and states over. Activations and
            logits are not sharded.
        accumulates: gradients are there from the step's other forward passes.
        itemsize: bytes of a parameter, a gradient, and of each of AdamW's two states.
        recomputes: a block computes its activations again in the backward pass.
    """
    parameters = args.parameters() * itemsize / shards
    layer_features = args.saved_features(compiled, compiled and in_fp8)
    saved_features = args.n_layers * layer_features
    if recomputes:  # each layer's input, and one layer at a time
        saved_features = args.n_layers * args.dim + layer_features
    # bf16 logits and their gradient; eager, two copies in float32 more
    logits = (4 if compiled else 12) * tokens * args.vocab_size
    head_elements = args.vocab_size * args.dim
    gathered = 0
    # A tied embedding has two gradients, as head and as embedding, until they are added.
    largest_gradient = 2 * head_elements * itemsize * args.enable_weight_tying
    if shards > 1:
        blocks = args.parameters() - embedding_parameters(args) - head_elements
        gathered = 2 * 2 * blocks / args.n_layers  # the one that computes and the next, in bf16
        # The largest gradient, in bf16, in float32, and the shard of their sum.
        largest_gradient = head_elements * (2 + 4 + 4 / shards)
        logits = max(logits + 2 * head_elements, largest_gradient)  # the head's weight is gathered
    backward_start = {
        "gradients": parameters * accumulates,
        "activations": 2 * tokens * saved_features,  # in bf16
        "logits": logits,
        "gathered": gathered,
    }
    backward_end = {"gradients": parameters, "largest gradient": largest_gradient}
    peak_uses = max(backward_start, backward_end, key=lambda uses: sum(uses.values()))
    return {"parameters": parameters, "optimizer": 2 * parameters} | peak_uses


def format_memory_need(needed: float, free: float, total: float = 0) -> str:
    """Say how many bytes are needed, and how many are free, of how many if not of all."""
    need = f"{needed / GIB:.1f} GiB" if needed >= GIB else f"{needed / 2**20:,.0f} MiB"
    finding = f"about {need} of {free / GIB:.1f} GiB"
    return f"{finding} free ({total / GIB:.1f} GiB in all)" if total > free else finding
