"""The one-GPU puzzle: which weights each recipe's optimizer owns, and what a study of it says."""

import pytest

from analysis.comparison import compare
from analysis.study import read_study
from experiments.config import recipes
from experiments.training.plan import plan
from extensions.puzzle import tables
from extensions.puzzle.tables import FIRST, FROZEN
from models.errors import InputError
from tests.make_runs import metrics_lines, write_run
from tests.runs import TINY

BLOCK = ["attention.wq", "attention.wk", "attention.wv", "attention.wo",
         "feed_forward.w1", "feed_forward.w2", "feed_forward.w3"]  # fmt: skip
LINEARS = {f"layers.{k // 7}.{BLOCK[k % 7]}.weight" for k in range(4 * 7)}


@pytest.mark.parametrize(
    ("name", "trainable", "orphans", "frozen", "moved"),
    [
        (FIRST, 39, LINEARS, set(), 2),
        # norm weights of 1 in bf16 cannot take so small a step
        ("puzzle_fp8_optimizer_last", 39, set(), set(), 30),
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


@pytest.mark.parametrize(
    ("name", "override"),
    [(FROZEN, "puzzle.freeze=['layers.*.wq']"), (FIRST, "compile.enable=true")],
)
def test_a_pattern_without_parameters_and_a_compiled_late_conversion_are_refused(name, override):
    with pytest.raises(InputError, match=r"puzzle\."):
        plan(recipes.load(name, ["cpu"], [override]))


# ---- what a study says, from planted runs ----

PUZZLE = ["baseline", "puzzle_fp8", FIRST, FROZEN]


def concluded(folder, higher=(FIRST, FROZEN), orphans=("a", "b"), recipes=PUZZLE):
    """Compare one run a recipe: the loss of some is `higher`, the optimizer of `FIRST` lacks
    `orphans`."""
    for name in recipes:
        lacks = {"orphans": list(orphans) if name == FIRST else [],
                 "frozen": ["a", "b"] if name == FROZEN else []}  # fmt: skip
        lines = metrics_lines(shift=1.0 * (name in higher))
        write_run(folder / name, name, lines=lines, proves={"parameters": lacks})
    return compare(read_study(folder))


def test_explained_where_each_follows_what_its_optimizer_owns(tmp_path):
    comparison = concluded(tmp_path)
    said, *facts = tables.answer(comparison)
    assert said.startswith("At batch 1 on one device FP8 learns as bf16 does")
    assert [fact.partition(" weights")[0] for fact in facts] == [
        "puzzle_fp8: its optimizer lacks 0", f"{FIRST}: its optimizer lacks 2",
    ]  # fmt: skip
    assert tables.ownership(comparison).loc[FIRST, ["orphans", "frozen"]].tolist() == [2, 0]


@pytest.mark.parametrize(
    "changed",
    [
        {"higher": [FROZEN]},  # the wrong order costs nothing
        {"higher": PUZZLE[1:]},  # FP8 itself does not learn
        {"orphans": ["a"]},  # not the weights that were frozen
        {"recipes": PUZZLE[:2]},  # without the frozen run and its like
    ],
)
def test_not_explained_otherwise(tmp_path, changed):
    said = tables.answer(concluded(tmp_path, **changed))
    assert said[0].startswith(("These runs do not explain the report", "No answer"))
