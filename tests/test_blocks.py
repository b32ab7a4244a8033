"""Bytes of a block's kernels and of FP8's casts: against operators' and, where kernels are fused, by hand."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from experiments import recipe as recipes
from models import blocks, llama, roofline
from models.casts import casts_of
from models.fp8_linear import Fp8Linear, Products
from tests.costs import fp8_casts, total, work


class Moved(TorchDispatchMode):
    """Bytes that eager operators read and write, but for matrix products, attention and views."""

    NOT = ("mm", "scaled_dot_product", "view", "permute", "transpose", "aten.t.", "expand", "unsqueeze", "slice",
           "select", "split", "unbind", "detach", "reshape", "ones_like")  # fmt: skip

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        if not any(word in str(operator) for word in self.NOT):
            tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor)]
            self.bytes += sum(t.numel() * t.element_size() for t in tensors)
        return result


@pytest.mark.parametrize("fused", [False, True])
def test_eager_block_moves_the_bytes_of_its_operators(fused):
    args = replace(llama.FLAVORS["cpu"], fused_projections=fused)
    model = llama.Llama(args)
    with torch.no_grad():
        model.init_weights()
    model.to(torch.bfloat16)
    rope = model.freqs_cis
    block = model.layers["0"]
    block.attention_norm = block.ffn_norm = torch.nn.Identity()  # one kernel on a GPU, several here
    x = torch.randn(4, 256, args.dim, dtype=torch.bfloat16, requires_grad=True)
    with Moved() as traffic:
        block(x, rope, None).backward(torch.ones_like(x))
    block = blocks.eager(args, 2)
    expected = sum(traffic.elementwise for traffic in (block.forward, block.last, block.backward))
    norms = (2 * 4 + 2 * 10) * args.dim
    assert traffic.bytes / (4 * 256) == pytest.approx(expected - norms, rel=0.02)


def test_eager_casts_move_the_bytes_of_their_operators():
    layer = Fp8Linear.from_float(torch.nn.Linear(256, 512, bias=False).bfloat16(), Products("rowwise"))
    x = torch.randn(1024, 256, dtype=torch.bfloat16, requires_grad=True)
    with Moved() as traffic:
        layer(x).sum().backward()
    keys = recipes.load("rowwise_fp8_compiled").config.quantize.linear.float8
    casts = casts_of(keys, compiled=False, b=2)
    k, n, t = 256, 512, 1024
    expected = t * k * sum(casts.input) + n * k * sum(casts.weight) + t * n * casts.grad_output
    copies = 2 * (t * k + n * k + t * n)  # made inside of _scaled_mm's wrapper, unseen here
    loss = 2 * t * n + 2 * t * n  # sum, and its gradient made contiguous
    assert traffic.bytes == pytest.approx(expected - copies + loss, rel=0.02)


def test_compiled_block_casts_a_shared_input_once():
    """At most seven weights and four inputs in both passes, and seven gradients once; eager makes six casts a layer."""
    block = llama.Llama(llama.FLAVORS["cpu"]).layers["0"].bfloat16()
    for name, linear in [(name, m) for name, m in block.named_modules() if isinstance(m, torch.nn.Linear)]:
        block.set_submodule(name, Fp8Linear.from_float(linear, Products("tensorwise")))
    assert fp8_casts(block, torch.randn(64, 16, 2).view(torch.int32)) <= 2 * (7 + 4) + 7


D, KV, F, LAYERS, TOKENS = 4096, 1024, 14336, 32, 4096
WEIGHTS = LAYERS * (2 * D * D + 2 * KV * D + 3 * F * D)


@pytest.mark.parametrize(
    ("name", "elementwise", "casts", "of_weights"),
    [
        # Bytes for each of D, KV, F. Forward norm 2 + 2, RoPE 4, norm of a sum 4 + 2, SwiGLU 4 + 2, sum 8; backward
        # SwiGLU 6 + 4, norm 4 + 4 + 4, RoPE 4, norm 6 + 2 + 4
        ("baseline_compiled", (4 + 4 + 6 + 8 + 12 + 4 + 12, 8, 16), (0, 0, 0), 0),
        # ... nothing written in bf16 but by RoPE forward and for the stream; casts: what the first kernel read, and
        # FP8. Attention's output 2 + 2 + 1, the stream's gradients 2 + 2, SwiGLU's gradients and product 6 + 5, inputs
        # again 1, attention's output again 2 + 1, gradients of q and k 2 + 2, of v 2 + 2 + 2
        ("tensorwise_fp8_compiled", (2 + 4 + 4 + 8 + 12 + 2 + 12, 6, 10),
         (3 + 5 + 5 + 2 * 4 + 2 * 1 + 3 + 4, 4 + 6, 5 + 11), 6),
        # ... forward the first kernel casts; the columns of inputs want their largest values first
        ("rowwise_fp8_compiled", (3 + 4 + 5 + 8 + 12 + 2 + 12, 6, 11),
         (3 + 2 * 4 + 5 + 5 + 3 + 4, 4 + 6, 11), 8),
        # ... gradients by rows alone, and all of it in bf16 as well
        ("rowwise_gw_hp_fp8_compiled", (5 + 4 + 7 + 8 + 2 + 12 + 5 + 12, 9, 19), (3, 3, 0), 8),
    ],
)  # fmt: skip
def test_compiled_blocks_bytes_by_hand(name, elementwise, casts, of_weights):
    def of_blocks(bytes_each: tuple) -> int:
        return LAYERS * TOKENS * sum(x * n for x, n in zip(bytes_each, (D, KV, F), strict=True))

    step, vocabulary = work(name), 131_072
    outside = TOKENS * (14 + 10) * D + 2 * vocabulary * D  # the last norm, the embedding, and its gradient once
    assert total(step, "bytes", roofline.ELEMENTWISE) == of_blocks(elementwise) + outside
    assert total(step, "bytes", roofline.CASTS) == of_blocks(casts) + of_weights * WEIGHTS
    assert total(step, "bytes", roofline.LOSS) == TOKENS * vocabulary * 6


def test_fused_projections_have_fewer_gradients_to_add_up():
    """One bf16 matrix behind each norm instead of three and two."""
    before, after = (total(work(name), "bytes", roofline.ELEMENTWISE) for name in
                     ("tensorwise_fp8_compiled", "candidate_fused_projections"))  # fmt: skip
    assert before - after == LAYERS * TOKENS * 2 * 3 * D


def test_a_layer_left_in_bf16_takes_its_operands_in_bf16():
    """The norm for wk and wv 2; gradients of k 2 + 2 instead of 2, 2 + 2; of v nothing instead of 6."""
    before, after = work("tensorwise_fp8_compiled"), work("candidate_bf16_wk_wv")
    parts = (roofline.ELEMENTWISE, roofline.CASTS)
    saved = [total(before, "bytes", part) - total(after, "bytes", part) for part in parts]
    assert saved[0] == -LAYERS * TOKENS * (2 * D + 2 * KV)
    assert saved[1] == LAYERS * TOKENS * (4 + 6) * KV + 6 * LAYERS * 2 * KV * D


def test_a_tied_heads_gradient_is_added_to_the_embeddings():
    """What does not grow with the tokens: one gradient of the vocabulary written, and added to the other."""

    def elementwise(sequence: int) -> float:
        step = work("baseline_compiled", "model.flavor=llama3.2-1B", f"training.seq_len={sequence}")
        return total(step, "bytes", roofline.ELEMENTWISE)

    assert 2 * elementwise(2048) - elementwise(4096) == (1 + 3) * 2 * 128_256 * 2048
