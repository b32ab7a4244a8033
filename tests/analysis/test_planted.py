"""Studies with known truth: each gets an outcome that is right."""

import json
import random

import pytest

from analysis.comparison import compare
from analysis.report import main
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


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_sound_studies_get_a_yes(seed, tmp_path):
    """Of studies in which FP8 is faster by far more than the noise and ends at bf16's loss, at most
    one in ten gets another answer."""
    draw, refused = random.Random(seed), []
    for number in range(10):
        words = {word: draw.choice(values) for word, values in USUAL["sound"].items()}
        found = compare(read_study(study(tmp_path / f"sound{seed}_{number}", **words))).best.outcome
        if found != "yes":
            refused.append((words, found))
    assert len(refused) <= 1, refused


def test_the_answer_is_first_in_the_json(tmp_path):
    file, folder = tmp_path / "report.json", study(tmp_path / "sound", recipes="BCR", steps=200)
    assert main([str(folder), "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    answer = found["answer"]
    assert list(found)[0] == "answer"
    assert answer["outcome"] == "yes" and answer["recipe"] == "rowwise_fp8_compiled"
    assert answer["low"] < answer["ratio"] < answer["high"] and answer["reasons"] == []
