"""What the study of the puzzle says, from planted runs."""

import pytest

from analysis.comparison import compare
from analysis.study import read_study
from extensions.puzzle import tables
from tests.make_runs import metrics_lines, write_run

FIRST = "puzzle_fp8_optimizer_first"
PUZZLE = ["baseline", "puzzle_fp8", FIRST, tables.FROZEN]


def concluded(folder, higher=(FIRST, tables.FROZEN), orphans=("a", "b"), recipes=PUZZLE):
    """Compare one run a recipe, of 10 tensors: the loss of some is `higher`, the optimizer of
    `FIRST` lacks `orphans`."""
    for name in recipes:
        lacks = {"orphans": list(orphans) if name == FIRST else [],
                 "frozen": ["a", "b"] if name == tables.FROZEN else []}  # fmt: skip
        owned = 100 - 10 * sum(map(len, lacks.values()))
        proves = {"parameters": lacks | {"elements_in_optimizer": owned}}
        lines = metrics_lines(shift=1.0 * (name in higher))
        write_run(folder / name, name, lines=lines, proves=proves, parameters=100)
    return compare(read_study(folder))


def test_explained_where_each_follows_what_its_optimizer_owns(tmp_path):
    comparison = concluded(tmp_path)
    first, second, *facts = tables.answer(comparison)
    assert first.startswith("At batch 1 on one device FP8 learns as bf16 does")
    assert "then 2 of them, 20% of all parameters, are never stepped" in second
    assert [fact.partition(" weights")[0] for fact in facts] == [
        "puzzle_fp8: its optimizer lacks 0", f"{FIRST}: its optimizer lacks 2",
    ]  # fmt: skip
    owned = tables.ownership(comparison).loc[FIRST, ["orphans", "frozen", "owned"]]
    assert owned.tolist() == [2, 0, 0.8]


@pytest.mark.parametrize(
    "changed",
    [
        {"higher": [tables.FROZEN]},  # the wrong order costs nothing
        {"higher": PUZZLE[1:]},  # FP8 itself does not learn
        {"orphans": ["a"]},  # not the weights that were frozen
        {"recipes": PUZZLE[:2]},  # without the frozen run and its like
    ],
)
def test_not_explained_otherwise(tmp_path, changed):
    said = tables.answer(concluded(tmp_path, **changed))
    assert said[0].startswith(("These runs do not explain the report", "No answer"))
