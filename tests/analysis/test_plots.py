"""What the figures show: drawn values against the frames, looks, labels, unfinished runs, no data,
stable bytes."""

import re
from itertools import combinations

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from analysis import plots
from analysis.comparison import compare
from analysis.losses import TOLERANCE
from analysis.page import FIGURES
from analysis.plots.by_step import thinned
from analysis.plots.style import look
from analysis.study import read_study
from tests.make_runs import metrics_lines, write_run

COMPILED, TENSORWISE = "baseline_compiled", "tensorwise_fp8_compiled"
STEP_S = {"baseline": 0.5, COMPILED: 0.4, "rowwise_fp8_compiled": 0.25, TENSORWISE: 0.2}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Two seeds of the four recipes, seed 1 with a loss 1 higher, tensorwise with a loss 0.25
    higher; a third seed of tensorwise was interrupted with a loss that would show in a mean."""
    folder = tmp_path_factory.mktemp("study")
    for recipe, step_s in STEP_S.items():
        for seed in range(2):
            lines = metrics_lines(step_s=step_s, shift=seed + 0.25 * (recipe == TENSORWISE))
            facts = {"lines": lines, "seed": seed, "parameters": 5_250_000, "compiled": True}
            write_run(folder / recipe / f"seed{seed}", recipe, **facts)
    lines = metrics_lines(last=20, step_s=0.01, shift=90)
    write_run(folder / TENSORWISE / "seed2", TENSORWISE, seed=2, lines=lines, status="interrupted")
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


WRITTEN = {
    "loss": ["tensorwise FP8 ends +0.2500 from compiled bf16's loss: 13 margins",
             "tensorwise FP8 7.85", "(interrupted) 98.05, off the axis"],
    "loss_difference": ["tensorwise FP8 ends +0.2500 from compiled bf16's loss: 13 margins",
                        "margin ± ", "tensorwise FP8 +0.2500, off the axis"],
    "tokens_per_second": ["tensorwise FP8: 2.00 times the tokens/s of compiled bf16",
                     "200 0.80 × | 250 1.00 × | 400 1.60 × | 500 2.00 ×", "MFU 50.0%"],
    "lead": ["tensorwise FP8 is ahead of compiled bf16 from step 11 ", "(interrupted)",
             "5.25 M parameters on 1 GPU"],
    "first_step": ["tensorwise FP8: +0 s to step 1 over compiled bf16",
                   "import | data | compile | other", "5.00 s"],
    "memory": ["tensorwise FP8: 1.00 times the peak memory of compiled bf16",
               "peak reserved memory of a device (GiB)"],
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written(name, figures):
    """The finding first, which readers who cannot see a figure hear."""
    written = written_in(figures[name])
    assert not [text for text in WRITTEN[name] if text not in written], written
    assert figures[name].alternative.startswith(WRITTEN[name][0])


def test_bars_start_at_zero_and_end_at_the_value(figures):
    bars = figures["tokens_per_second"].axes[0].patches
    expected = [(0, 200), (0, 250), (0, 400), (0, 500)]  # of 100 tokens a step
    np.testing.assert_allclose([(bar.get_x(), bar.get_width()) for bar in bars], expected)


def test_no_two_recipes_of_a_study_look_alike():
    looks = [look(recipe) for recipe in [*STEP_S, "rowwise_gw_hp_fp8_compiled", "my_own"]]
    assert len({x.colour for x in looks}) == len({x.name for x in looks}) == len(looks)


def test_loss_difference_is_drawn_over_the_margin(figures, study):
    (axes,) = figures["loss_difference"].axes
    assert axes.patches[0].get_height() == pytest.approx(2 * TOLERANCE * 7.6)
    assert axes.get_ylim()[1] < 0.25  # others are nearer to 0


def test_a_long_study_gives_a_small_page():
    """However many windows there are: 20,000 would make a page of 0.8 MB."""
    points = thinned(pd.Series(range(20_000)))
    assert len(points) == 400 and points.iloc[-1] == 19_999


def test_a_cpu_has_no_utilisation_and_resident_memory(tmp_path):
    write_run(tmp_path / "run", peak_flops=None, hardware={"type": "cpu"})
    comparison = compare(read_study(tmp_path))
    assert written_in(plots.tokens_per_second(comparison)).count("MFU") == 1  # in the note
    assert "peak resident memory of the process (GiB)" in written_in(plots.memory(comparison))


def lead_of(folder, seconds: dict, late: dict):
    """Compare two runs that start late and take so many seconds a step from step 11 on."""
    for recipe, step_s in seconds.items():
        lines = metrics_lines(step_s=step_s, window=10, late=late[recipe])
        write_run(folder / recipe, recipe, lines=lines, warm_up=5.0 + late[recipe])
    return compare(read_study(folder))


def test_lead_with_and_without_the_first_step(tmp_path):
    """FP8 starts 3 s later and gains 0.2 s a step from step 11 on: ahead from step 26."""
    comparison = lead_of(tmp_path, {COMPILED: 0.4, TENSORWISE: 0.2}, {COMPILED: 0, TENSORWISE: 3})
    figure, after = plots.lead(comparison), plots.lead(comparison, False)
    line, _, mark = figure.axes[0].lines
    np.testing.assert_allclose(line.get_ydata()[[0, -1]], [-3, 1])
    np.testing.assert_allclose(after.axes[0].lines[0].get_ydata()[[0, -1]], [0, 4])
    assert mark.get_xydata().tolist() == [[26, 0]] and "| from step 26 |" in written_in(figure)


def test_a_lost_lead_has_another_sign_than_a_won_one(tmp_path):
    """FP8 starts 3 s earlier and takes 0.2 s a step more from step 11 on: ahead until step 25."""
    comparison = lead_of(tmp_path, {COMPILED: 0.2, TENSORWISE: 0.4}, {COMPILED: 3, TENSORWISE: 0})
    figure = plots.lead(comparison)
    mark = figure.axes[0].lines[-1]
    assert mark.get_xydata().tolist() == [[25, 0]] and "| until step 25 |" in written_in(figure)
    assert mark.get_marker() != look(TENSORWISE).marker


def test_a_figure_without_data_says_so(tmp_path):
    write_run(tmp_path / "a", lines=[], status="failed")
    figures = [draw(compare(read_study(tmp_path))) for draw in FIGURES]
    assert all(figure.empty and "no data: " in written_in(figure) for figure in figures)


def test_the_same_frames_give_the_same_bytes(study):
    figure = plots.lead(study)
    svg, png = plots.to_svg(figure), plots.to_png(figure)
    users = {"font.size": 20, "axes.grid": False, "savefig.dpi": 30, "figure.facecolor": "red"}
    with matplotlib.rc_context(users):
        for drawn in (figure, plots.lead(study)):  # saving does not change a figure
            assert (plots.to_svg(drawn), plots.to_png(drawn)) == (svg, png)
    assert "<dc:date>" not in svg


def test_texts_do_not_overlap(figures):
    for name, figure in figures.items():
        words = [text for text in texts_of(figure) if re.search("[a-z]", text.get_text())]
        boxes = [text.get_window_extent().padded(-1) for text in words]
        assert not any(a.overlaps(b) for a, b in combinations(boxes, 2)), name
        assert all(box.x0 > -1 and box.x1 < figure.bbox.x1 + 1 for box in boxes), name
