"""Studies with known truth: each gets an outcome that is right."""

import json
import random

import pytest

from analysis.comparison import compare
from analysis.report import main
from analysis.study import StudyError, read_study
from tests.analysis.planted import CASES, SOUND, study, write

EVERY = 8  # of the studies that are tested each time; the others are slow
NAMES = [
    name if number % EVERY == 0 else pytest.param(name, marks=pytest.mark.slow)
    for number, name in enumerate(CASES)
]


@pytest.mark.parametrize("name", NAMES)
def test_the_outcome_is_right(name, tmp_path):
    case = write(name, tmp_path)
    try:
        found = compare(read_study(tmp_path / name)).best.outcome
    except StudyError:
        found = "error"
    assert found in case["right"].split(", "), case["truth"]


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_sound_studies_get_a_yes(seed, tmp_path):
    """Of studies in which FP8 is faster by far more than the noise and ends at bf16's loss, at most
    one in ten gets another answer."""
    draw, refused = random.Random(seed), []
    for number in range(10):
        folder = tmp_path / f"sound{seed}_{number}"
        options = {key: draw.choice(values) for key, values in SOUND.items()}
        study(folder, **options)
        found = compare(read_study(folder)).best.outcome
        if found != "yes":
            refused.append((options, found))
    assert len(refused) <= 1, refused


def test_the_answer_is_first_in_the_json(tmp_path):
    write("a05_rowwise_alone", tmp_path)
    file = tmp_path / "report.json"
    assert main([str(tmp_path / "a05_rowwise_alone"), "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    answer = found["answer"]
    assert list(found)[0] == "answer"
    assert answer["outcome"] == "yes" and answer["recipe"] == "rowwise_fp8_compiled"
    assert answer["low"] < answer["ratio"] < answer["high"] and answer["reasons"] == []
