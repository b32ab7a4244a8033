"""The sizes of models that models/flops.py has no class for: an FFN without a gate, and experts."""

from dataclasses import dataclass

from models.flops import Sizes


@dataclass(frozen=True)
class UngatedSizes(Sizes):
    """The sizes of a dense model whose FFN has two matrices, as GPT-2's: no gate `w3`."""

    def block_shapes(self) -> dict[str, tuple[int, int]]:
        """Give (out_features, in_features) of a block's linear layers."""
        layer_shapes = super().block_shapes()
        del layer_shapes["feed_forward.w3"]
        return layer_shapes


@dataclass(frozen=True)
class ExpertSizes(Sizes):
    """The sizes of a mixture of experts; `hidden_dim` is the width of one expert.

    A token meets `n_active` of `n_experts`, and the shared expert where there is one.
    """

    n_experts: int = 0
    n_active: int = 0
    shared_dim: int = 0  # width of the shared expert

    def block_shapes(self) -> dict[str, tuple[int, int]]:
        """Give (out_features, in_features) of a block's linear layers without its experts."""
        layer_shapes = super().block_shapes()
        for layer_name in ("w1", "w2", "w3"):
            del layer_shapes[f"feed_forward.{layer_name}"]
        return layer_shapes | {"moe.router.gate": (self.n_experts, self.dim)}

    def count_expert_parameters(self, n_experts: int) -> int:
        """Count the parameters of so many experts of each block, and of the shared one."""
        expert_width = n_experts * self.hidden_dim + self.shared_dim
        return self.n_layers * 3 * self.dim * expert_width

    def parameters(self) -> int:
        """Count the parameters, all experts included."""
        return super().parameters() + self.count_expert_parameters(self.n_experts)

    def saved_features(self, recomputed: bool, in_fp8: bool) -> int:
        """Count the features of a layer that are kept for a token's backward pass.

        Experts stay in bf16. Each that a token meets also keeps its input, and in float32 its
        output, for the product with the router's score.
        """
        one_expert = super().saved_features(recomputed, False)
        other_widths = (self.n_active - 1) * self.hidden_dim + self.shared_dim
        return one_expert + (4 - recomputed) * other_widths + 3 * self.n_active * self.dim

    def bound_speedup(self) -> float:
        """Bound FP8's speed over bf16's while experts, router and head stay in bf16.

        Attention's linear layers take a share of the FLOPs of a token's linear layers, and at best
        half as long in FP8.
        """
        *layer_shapes, (vocab_size, dim) = self.linear_shapes().values()
        router_weights = self.n_layers * self.n_experts * self.dim
        layer_weights = sum(n * k for n, k in layer_shapes)
        active_weights = (
            layer_weights + vocab_size * dim + self.count_expert_parameters(self.n_active)
        )
        return 1 / (1 - (layer_weights - router_weights) / active_weights / 2)
