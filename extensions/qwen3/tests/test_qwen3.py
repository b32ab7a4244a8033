"""Qwen3: Hugging Face's logits, its layers in FP8, and sizes that a recipe gives."""

from dataclasses import replace

import pytest
import torch

from experiments.config import recipes
from extensions.qwen3.architecture import FLAVORS, Qwen3
from models.architectures import build_model
from tests.training.test_gradients import compare_gradients

TOKENS = torch.arange(128).view(2, 64) * 37 % 512


def compute_logits(tied: bool) -> torch.Tensor:
    """Compute logits (2, 64, 512) of a model whose weights come from a formula; its norms are not
    1."""
    sizes = {"n_layers": 2, "vocab_size": 512, "max_seq_len": 64, "enable_weight_tying": tied}
    model = Qwen3(replace(FLAVORS["qwen3-cpu"], **sizes))
    with torch.no_grad():
        model.init_weights()
        for number, (name, parameter) in enumerate(model.named_parameters()):
            squares = torch.arange(parameter.numel()) ** 2
            values = (squares * (7 + number) % 10007 / 10007 - 0.5).view_as(parameter)
            if "norm" in name:
                parameter.copy_(1 + values)
            else:
                parameter.copy_(values / 8)
        return model(TOKENS)


# Logits of transformers 5.23.0 with these weights, by torchtitan's Qwen3StateDictAdapter
RECORDED = {
    False: [-0.12079, 0.06429, 0.04344, -0.11730],
    True: [0.32750, 0.03915, 1.47207, -0.11436],
}


@pytest.mark.parametrize("tied", RECORDED)
def test_logits_are_those_that_hugging_faces_model_gave(tied):
    logits = compute_logits(tied)[1, -1, :4]
    torch.testing.assert_close(logits, torch.tensor(RECORDED[tied]), rtol=0, atol=1e-4)


# By hand: parameters; those that a token uses, without the input embedding; and attention's FLOPs
# per token and position, 12 layers heads head_dim.
@pytest.mark.parametrize(
    ("flavor", "parameters", "without_embedding", "attention"),
    [
        ("qwen3-0.6B", 596_049_920, 596_049_920, 688_128),  # dim 1024; heads 16 x 128
        ("qwen3-30B-A3B", 30_532_122_624, 3_041_867_776, 2_359_296),
    ],
)
def test_parameters_and_flops(flavor, parameters, without_embedding, attention):
    args = FLAVORS[flavor]
    assert args.parameters() == parameters
    assert args.flops_per_token(4096) == 6 * without_embedding + 4096 * attention


@pytest.mark.slow
def test_its_compiled_graph_has_the_gradients_of_eager_code(train):
    """tests/training/test_gradients.py has the code that inductor makes of such a graph."""
    keys = ["model.flavor=qwen3-cpu", "compile.backend=aot_eager"]
    compare_gradients(train, "tensorwise_fp8_compiled", *keys)


def test_sizes_of_a_recipe_do_not_change_a_heads_size():
    keys = ["model.flavor=qwen3-cpu", "model.sizes={dim: 96, n_heads: 6, n_kv_heads: 3}"]
    with torch.device("meta"):
        model = build_model(recipes.load("baseline", [], keys).config)
    assert model.layers["2"].attention.wk.weight.shape == (3 * 64, 96)
