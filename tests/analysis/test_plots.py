"""What the figures show: the finding, drawn values, looks, no data, stable bytes."""

import re
from itertools import combinations

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from analysis import plots
from analysis.comparison import compare
from analysis.losses import MARGIN_SHARE
from analysis.plots import FIGURES
from analysis.plots.by_step import thin_out
from analysis.plots.style import find_look
from analysis.study import read_study
from tests.analysis import planted
from tests.make_runs import write_run

COMPILED, TENSORWISE = "baseline_compiled", "tensorwise_fp8_compiled"
CHANGES = [
    {"warm_up": 5.0, "losses": {"to": 9.0}},
    {"losses": {"to": 7.1, "steps": [21, 30]}},
    {"runs": ["*/1"], "losses": {"plus": 1.0}},
    {"runs": ["T/*"], "seconds": {"to": 0.2}, "losses": {"plus": 0.25}},
    {"runs": ["R/*"], "seconds": {"to": 0.25}},
    {"runs": ["C/*"], "seconds": {"to": 0.4}},
    {"runs": ["B/*"], "seconds": {"to": 0.5}},
    {"seconds": {"to": 1.0, "steps": [1, 10]}},
    {"runs": ["[BCR]/2"], "absent": True},
    {"runs": ["T/2"], "made": 20, "status": "interrupted", "losses": {"to": 98.05}},
]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Two seeds of the four recipes, seed 1 with a loss 1 higher, tensorwise with a loss 0.25
    higher; a third seed of tensorwise was interrupted with a loss that would show in a mean."""
    folder = tmp_path_factory.mktemp("study")
    planted.study(folder, "BCRT", steps=30, start_spread=0.0, changes=CHANGES)
    return compare(read_study(folder))


@pytest.fixture(scope="module")
def figures(study):
    """Every figure of the page, and the documentation's."""
    return {draw.__name__: draw(study) for draw in (*FIGURES, plots.summary)}


def texts_of(figure) -> list[Text]:
    return [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]


def written_in(figure) -> str:
    """Everything written in a figure, on one line."""
    return " | ".join(" ".join(text.get_text().split()) for text in texts_of(figure))


FINDINGS = {
    "loss": "ends at 7.850, compiled bf16 ends at 7.600",
    "loss_difference": "is off the axis (+0.25)",
    "tokens_per_second": "2.00 times",
    "lead": "from step 11 ",
    "first_step": "+0 s",
    "memory": "1.00 times",
}


@pytest.mark.parametrize("name", FINDINGS)
def test_a_figure_says_its_finding(name, figures):
    """Readers who cannot see the figure hear it first."""
    said = figures[name].alternative
    assert said.startswith("tensorwise FP8") and FINDINGS[name] in said
    assert FINDINGS[name] in written_in(figures[name])


def test_runs_that_were_not_completed_are_marked(figures):
    assert "(interrupted) 98.050, off the axis" in written_in(figures["loss"])


def test_bars_start_at_zero_and_end_at_the_value(figures):
    bars = figures["tokens_per_second"].axes[0].patches
    expected = [(0, 8192), (0, 10240), (0, 16384), (0, 20480)]  # of 4,096 tokens a step
    np.testing.assert_allclose([(bar.get_x(), bar.get_width()) for bar in bars], expected)


def test_a_note_explains_only_what_is_drawn(tmp_path):
    changes = [{"hardware": {"type": "cpu", "name": "a CPU"}, "peak_flops": None}]
    planted.study(tmp_path, "CRT", [0], steps=30, changes=changes)
    note = plots.tokens_per_second(compare(read_study(tmp_path))).alternative
    assert "tensorwise" in note and "Marks" not in note and "MFU" not in note


def test_no_two_recipes_of_a_study_look_alike():
    recipes = ["baseline", COMPILED, "rowwise_fp8_compiled", TENSORWISE, "my_own"]
    looks = [find_look(recipe) for recipe in recipes]
    assert len({x.colour for x in looks}) == len({x.name for x in looks}) == len(looks)


def test_loss_difference_is_drawn_over_the_margin(figures, study):
    (axes,) = figures["loss_difference"].axes
    assert axes.patches[0].get_height() == pytest.approx(2 * MARGIN_SHARE * 7.6)
    assert axes.get_ylim()[1] < 0.25  # others are nearer to 0


def test_a_long_study_gives_a_small_page():
    """However many intervals there are: 20,000 would make a page of 0.8 MB."""
    points = thin_out(pd.Series(range(20_000)))
    assert len(points) == 400 and points.iloc[-1] == 19_999


@pytest.mark.parametrize(
    ("slower", "later", "leads", "sign"),
    [
        (COMPILED, TENSORWISE, [-3, 1], "from step 26"),
        (TENSORWISE, COMPILED, [3, -1], "until step 25"),
    ],
)
def test_a_lead_is_drawn_from_the_start(tmp_path, slower, later, leads, sign):
    """One starts 3 s later and gains 0.2 s a step from step 11 on. A lost lead has another mark
    than a won one."""
    for recipe in (COMPILED, TENSORWISE):
        seconds = [1.0] * 10 + [0.4 if recipe == slower else 0.2] * 20
        warm_up = 8.0 if recipe == later else 5.0
        write_run(tmp_path / recipe, recipe, seconds, warm_up=warm_up, log={"every": 10})
    figure = plots.lead(compare(read_study(tmp_path)))
    line, *_, mark = figure.axes[0].lines
    assert line.get_ydata()[[0, -1]] == pytest.approx(leads)
    assert mark.get_xydata().tolist() == [[int(sign[-2:]), 0]] and sign in written_in(figure)
    assert (mark.get_marker() == find_look(TENSORWISE).marker) == (later == TENSORWISE)


def test_a_figure_without_data_says_so(tmp_path):
    write_run(tmp_path / "a", status="failed", lose=["metrics.jsonl"])
    figures = [draw(compare(read_study(tmp_path))) for draw in FIGURES]
    assert all(figure.is_empty and "no data: " in written_in(figure) for figure in figures)


def test_the_same_frames_give_the_same_bytes(study):
    figure = plots.lead(study)
    drawn = plots.to_svg(figure), plots.to_png(figure)
    with matplotlib.rc_context({"font.size": 20, "axes.grid": False, "savefig.dpi": 30}):
        again = plots.lead(study)
        assert (plots.to_svg(again), plots.to_png(again)) == drawn
    assert "<dc:date>" not in drawn[0]


def test_texts_do_not_overlap(figures):
    for name, figure in figures.items():
        words = [text for text in texts_of(figure) if re.search("[a-z]", text.get_text())]
        boxes = [text.get_window_extent().padded(-1) for text in words]
        assert not any(a.overlaps(b) for a, b in combinations(boxes, 2)), name
        assert all(box.x0 > -1 and box.x1 < figure.bbox.x1 + 1 for box in boxes), name
