"""The one-GPU puzzle: which weights each recipe's optimizer owns, and what is still refused."""

import pytest

from experiments.config import recipes
from experiments.training.plan import plan
from models.errors import InputError
from tests.runs import TINY

BLOCK = ["attention.wq", "attention.wk", "attention.wv", "attention.wo",
         "feed_forward.w1", "feed_forward.w2", "feed_forward.w3"]  # fmt: skip
LINEARS = {f"layers.{k // 7}.{BLOCK[k % 7]}.weight" for k in range(4 * 7)}


@pytest.mark.parametrize(
    ("name", "trainable", "orphans", "frozen", "moved"),
    [
        ("puzzle_fp8_optimizer_first", 39, LINEARS, set(), 2),
        # norm weights of 1 in bf16 cannot take so small a step
        ("puzzle_fp8_optimizer_last", 39, set(), set(), 30),
        ("puzzle_bf16_frozen", 11, set(), LINEARS, 2),
    ],
)
def test_which_weights_the_optimizer_owns_and_moves(train, name, trainable, orphans, frozen, moved):
    recipe = recipes.load(name, ["cpu"], [*TINY, "training.steps=1"])
    trainer, _ = train(recipe.config, recipe=recipe)
    [group] = trainer.optimizers.optimizers[0].param_groups
    owned = set(map(id, group["params"]))
    weights = trainer.model_parts[0].named_parameters()
    assert {name for name, weight in weights if id(weight) not in owned} == orphans | frozen
    proof = trainer.proof.record().parameters
    assert (proof.trainable, proof.moved_in_first_step) == (trainable, moved)
    assert set(proof.orphans) == set(proof.still_in_first_step) == orphans
    assert set(proof.frozen) == frozen


def test_a_pattern_that_matches_nothing_is_refused():
    recipe = recipes.load("puzzle_bf16_frozen", ["cpu"], ["puzzle.freeze=['layers.*.wq']"])
    with pytest.raises(InputError, match="puzzle.freeze"):
        plan(recipe)


def test_a_late_conversion_finds_no_compiled_blocks():
    with pytest.raises(InputError, match="puzzle.optimizer"):
        recipes.load("puzzle_fp8_optimizer_first", ["cpu"], ["compile.enable=true"])
