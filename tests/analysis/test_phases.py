"""What steps in bf16 cost and buy: the table and the figure."""

import json

import pytest

from analysis import answer, phases, plots
from analysis.comparison import compare
from analysis.plots.style import look
from tests.make_runs import metrics_lines, write_run
from tests.make_runs import phases as in_phases

FP8, PART = "tensorwise_fp8_compiled", "bf16_then_fp8"
# recipe, seconds a step, by the first of its 30 steps whether a phase is in FP8, what is added to
# the loss
RUNS = [
    ("baseline_compiled", 0.4, {1: False}, 0),
    (FP8, 0.2, {1: True}, 0.2),
    (PART, 0.25, {1: False, 7: True}, 0.1),
]


@pytest.fixture
def study(tmp_path):
    """bf16 takes 0.4 s a step, FP8 0.2 s; the run of both 0.25 s, and 3 s of compiling. Seed k has
    a loss k higher."""
    for recipe, step_s, precisions, shift in RUNS:
        for seed in range(3):
            lines = metrics_lines(step_s=step_s)
            for line in lines:
                line["losses"] = [loss + seed + shift for loss in line["losses"]]
            proves = {"phases": in_phases(precisions)}
            path = write_run(tmp_path / f"{recipe}{seed}", recipe, seed=seed, lines=lines, fp8_share=0.8,
                             float8="tensorwise" if shift else None, proves=proves)  # fmt: skip
            timing = json.loads((path / "timing.json").read_text())
            switches = {"7": {"in_fp8": True, "compile_s": 3.0}} if len(precisions) > 1 else {}
            (path / "timing.json").write_text(json.dumps(timing | {"switches": switches}))
    return compare(tmp_path)


def test_costs(study):
    part, bf16 = phases.costs(study).loc[PART], phases.costs(study).loc["baseline_compiled"]
    assert list(bf16) == [0, 1, 1, 0, 1]
    wall = {
        recipe: 4 + 10 + 20 * step_s
        for recipe, step_s in (("baseline_compiled", 0.4), (PART, 0.25))
    }
    assert part["wall time"] == pytest.approx(wall[PART] / wall["baseline_compiled"])
    assert part["compiling at switches, s"] == 3
    assert part["at GH200's published speeds"] == pytest.approx(0.2 + 0.8 * 8800 / 10945)
    assert study.proof == pytest.approx({FP8: 0.8, PART: 0.64})  # over all steps


def test_the_sentence_on_speed_says_how_many_steps_are_in_fp8(study):
    claims = [sentence for sentence in answer.details(study) if "times the tokens/s" in sentence]
    assert [claim.split(" has ")[0] for claim in claims] == [
        FP8,
        f"{PART} (in FP8 in 80% of its steps)",
    ]


def test_a_point_is_at_its_wall_time_and_loss(study):
    (axes,) = plots.trade(study).axes
    points = {line.get_color(): line for line in axes.lines if line.get_marker() != "None"}
    for recipe, step_s, loss in ("baseline_compiled", 0.4, 0), (FP8, 0.2, 0.2), (PART, 0.25, 0.1):
        (x,), (y,) = points[look(recipe).colour].get_data()
        assert (x, y) == pytest.approx(((14 + 20 * step_s) / (14 + 20 * 0.4), loss))
