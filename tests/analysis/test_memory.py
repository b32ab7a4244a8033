"""A lead is not promised where the GPU's memory was short, which slows steps."""

import pytest

from analysis.comparison import compare
from analysis.study import read_study
from tests.analysis.planted import study


@pytest.mark.parametrize(
    ("recipe", "short", "is_told"),
    [
        ("T", [*range(11, 400)], True),
        ("C", [*range(11, 400)], True),
        ("T", [*range(1, 11)], False),  # before the first steady step
        ("C", [500], False),  # one step of a thousand
    ],
)
def test_steps_short_of_memory_contradict_a_lead(recipe, short, is_told, tmp_path):
    changes = [{"runs": [f"{recipe}/*"], "log": {"short": short}}]
    best = compare(read_study(study(tmp_path, changes=changes))).best
    assert any("memory was short" in caveat for caveat in best.speed.caveats) == is_told
    assert (best.outcome == "yes") != is_told
