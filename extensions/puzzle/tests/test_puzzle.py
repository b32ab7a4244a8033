"""The one-GPU puzzle: which weights each recipe's optimizer owns, and where losses end."""

from pathlib import Path

import pytest

from analysis.comparison import compare
from analysis.study import read_study
from experiments.config import recipes
from extensions.puzzle import tables
from extensions.puzzle.tables import FROZEN
from tests.runs import TINY

RESULTS = Path(__file__).parent.parent / "results"
STUDY = RESULTS / "one_gpu_puzzle" / "cpu_2026-11-21_torch2.13.0"
OPTIMIZER_FIRST = "puzzle_fp8_optimizer_first"
OPTIMIZER_LAST = "puzzle_fp8_optimizer_last"
BLOCK_LAYERS = [
    *(f"attention.{name}" for name in ("wq", "wk", "wv", "wo")),
    *(f"feed_forward.{name}" for name in ("w1", "w2", "w3")),
]
LINEARS = {f"layers.{block}.{layer}.weight" for block in range(4) for layer in BLOCK_LAYERS}


@pytest.mark.parametrize(
    ("name", "trainable", "orphans", "frozen", "moved"),
    [
        (OPTIMIZER_FIRST, 39, LINEARS, set(), 2),
        # norm weights of 1 in bf16 cannot take so small a step
        (OPTIMIZER_LAST, 39, set(), set(), 30),
        (FROZEN, 11, set(), LINEARS, 2),
    ],
)
def test_which_weights_the_optimizer_owns_and_moves(train, name, trainable, orphans, frozen, moved):
    recipe = recipes.load(name, ["cpu"], [*TINY, "training.steps=1"])
    trainer, _ = train(recipe.config, recipe=recipe)
    [group] = trainer.optimizers.optimizers[0].param_groups
    in_optimizer = set(map(id, group["params"]))
    weights = trainer.model_parts[0].named_parameters()
    not_stepped = {name for name, weight in weights if id(weight) not in in_optimizer}
    assert not_stepped == orphans | frozen
    proof = trainer.proof.record().parameters
    assert (proof.trainable, proof.moved_in_first_step) == (trainable, moved)
    assert set(proof.orphans) == set(proof.still_in_first_step) == orphans
    assert set(proof.frozen) == frozen


def test_tables_of_the_kept_runs():
    comparison = compare(read_study(STUDY))
    rows = tables.final_losses(comparison).loc[[OPTIMIZER_FIRST, OPTIMIZER_LAST, FROZEN]]
    orphans, frozen, minus_bf16, minus_frozen = rows.T.to_numpy().tolist()
    assert (orphans, frozen) == ([28, 0, 0], [0, 0, 28])
    assert minus_bf16 == pytest.approx([1.623, 0.017, 1.623], abs=1e-3)
    assert minus_frozen == pytest.approx([0, -1.606, 0], abs=1e-3)
    learning = tables.select_learning_recipes(comparison).results
    assert learning.keys() == {"puzzle_fp8", OPTIMIZER_LAST}
