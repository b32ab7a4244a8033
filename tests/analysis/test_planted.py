"""Studies with known truth: each gets an outcome that is right."""

import random

import pytest

from analysis.comparison import compare
from analysis.study import StudyError, read_study
from tests.analysis.planted import CASES, USUAL, study

EVERY = 8  # of the studies that are tested each time; the others are slow
CASES = [
    pytest.param(name, case, id=name, marks=pytest.mark.slow if number % EVERY else ())
    for number, (name, case) in enumerate(CASES.items())
]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_the_outcome_is_right(name, case, tmp_path):
    words = {word: value for word, value in case.items() if word not in ("truth", "right")}
    try:
        found = compare(read_study(study(tmp_path / name, **words))).best.outcome
    except StudyError:
        found = "error"
    assert found in case["right"], case["truth"]


def test_sound_studies_get_a_yes(tmp_path):
    """Of studies in which FP8 is faster by far more than the noise and ends at bf16's loss, at most
    one in ten gets another answer."""
    draw, refused = random.Random(1), []
    for number in range(10):
        words = {word: draw.choice(values) for word, values in USUAL["sound"].items()}
        found = compare(read_study(study(tmp_path / f"sound{number}", **words))).best.outcome
        if found != "yes":
            refused.append((words, found))
    assert len(refused) <= 1, refused
