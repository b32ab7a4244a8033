"""What the study of the puzzle says, from planted runs."""

import re

import pytest

from analysis.comparison import compare
from analysis.study import read_study
from extensions.puzzle import tables
from tests.make_runs import metrics_lines, write_run

FIRST = "puzzle_fp8_optimizer_first"
HIGHER = {FIRST: 1.0, tables.FROZEN: 1.0}
ORPHANS = {FIRST: ["a", "b"]}
PUZZLE = ["baseline", "puzzle_fp8", "puzzle_fp8_optimizer_last", *HIGHER]


def concluded(folder, higher=HIGHER, orphans=ORPHANS, recipes=PUZZLE):
    """The answer from one run a recipe: its loss is that much higher, its optimizer lacks those of
    10 tensors."""
    for name in recipes:
        lost, frozen = orphans.get(name, []), ["a", "b"] if name == tables.FROZEN else []
        owned = {"elements_in_optimizer": 10 * (10 - len(lost + frozen))}
        proves = {"parameters": owned | {"orphans": lost, "frozen": frozen}}
        lines = metrics_lines(shift=higher.get(name, 0))
        write_run(folder / name, name, lines=lines, proves=proves, parameters=100)
    comparison = compare(read_study(folder))
    return tables.answer(comparison), comparison


def test_explained_where_each_follows_what_its_optimizer_owns(tmp_path):
    (first, second, *facts), comparison = concluded(tmp_path)
    assert first.startswith("At batch 1 on one device FP8 learns as bf16 does")
    assert "then 2 of them, 20% of all parameters, are never stepped" in second
    lacks = dict(re.match("(.*): its optimizer lacks (.) ", fact).groups() for fact in facts)
    assert lacks == {"puzzle_fp8": "0", "puzzle_fp8_optimizer_last": "0", FIRST: "2"}
    owned = tables.ownership(comparison).loc[FIRST, ["orphans", "frozen", "owned"]]
    assert owned.tolist() == [2, 0, 0.8]


@pytest.mark.parametrize(
    "changed",
    [
        {"higher": {tables.FROZEN: 1.0}},  # the wrong order costs nothing
        {"higher": HIGHER | {"puzzle_fp8": 1.0}},  # FP8 itself does not learn
        {"orphans": {FIRST: ["a"]}},  # not the weights that were frozen
        {"recipes": PUZZLE[:3]},  # without the frozen run and its like
    ],
)
def test_not_explained_otherwise(tmp_path, changed):
    said, _ = concluded(tmp_path, **changed)
    assert said[0].startswith(("These runs do not explain the report", "No answer"))
