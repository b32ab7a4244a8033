"""The one-GPU puzzle: which weights each recipe's optimizer owns, and where losses end."""

from pathlib import Path

import pytest

from analysis.comparison import compare
from analysis.study import read_study
from experiments.config import recipes
from extensions.puzzle import tables
from extensions.puzzle.tables import FROZEN
from tests.runs import TINY

KEPT = Path(__file__).parent.parent / "results" / "one_gpu_puzzle" / "cpu_2026-11-21_torch2.13.0"
FIRST, LAST = "puzzle_fp8_optimizer_first", "puzzle_fp8_optimizer_last"
BLOCK = ["attention.wq", "attention.wk", "attention.wv", "attention.wo",
         "feed_forward.w1", "feed_forward.w2", "feed_forward.w3"]  # fmt: skip
LINEARS = {f"layers.{k // 7}.{BLOCK[k % 7]}.weight" for k in range(4 * 7)}


@pytest.mark.parametrize(
    ("name", "trainable", "orphans", "frozen", "moved"),
    [
        (FIRST, 39, LINEARS, set(), 2),
        # norm weights of 1 in bf16 cannot take so small a step
        (LAST, 39, set(), set(), 30),
        (FROZEN, 11, set(), LINEARS, 2),
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


def test_tables_of_the_kept_runs():
    comparison = compare(read_study(KEPT))
    ends = tables.ends(comparison).loc[[FIRST, LAST, FROZEN]]
    orphans, frozen, from_bf16, from_frozen = ends.T.to_numpy().tolist()
    assert (orphans, frozen) == ([28, 0, 0], [0, 0, 28])
    assert from_bf16 == pytest.approx([1.623, 0.017, 1.623], abs=1e-3)
    assert from_frozen == pytest.approx([0, -1.606, 0], abs=1e-3)
