"""What the figures show: drawn values against the frames, looks, labels, unfinished runs, no data,
stable bytes."""

from dataclasses import replace
from itertools import combinations

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from analysis import load, plots
from analysis.comparison import compare
from analysis.plots.style import look
from tests.make_runs import metrics_lines, write_published, write_run

STEP_S = {
    "baseline": 0.5,
    "baseline_compiled": 0.4,
    "rowwise_fp8_compiled": 0.25,
    "tensorwise_fp8_compiled": 0.2,
}
TENSORWISE = "tensorwise_fp8_compiled"
DIFFERENCE = pd.DataFrame(
    {"step": [10, 20, 30], "difference": [0.1, 0.2, -0.1], "low": [0, 0, -0.2], "high": 0.3}
)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Two seeds of the four recipes, seed 1 with a loss 1 higher; a third of tensorwise was
    interrupted with a loss that would show in a mean."""
    folder = tmp_path_factory.mktemp("study")
    for recipe, step_s in STEP_S.items():
        share, lines = 0.75 * ("fp8" in recipe), metrics_lines(step_s=step_s)
        write_run(folder / recipe / "seed0", recipe, lines=lines, fp8_share=share)
        lines = [line | {"loss": line["loss"] + 1} for line in lines]
        write_run(folder / recipe / "seed1", recipe, seed=1, lines=lines, fp8_share=share)
    lines = [line | {"loss": 99.0} for line in metrics_lines(last=20, step_s=0.01)]
    write_run(folder / TENSORWISE / "seed2", TENSORWISE, seed=2, lines=lines, status="interrupted")
    return compare(folder)


@pytest.fixture(scope="module")
def figures(study):
    """Every figure of the page, and the README's."""
    runs, windows = study.frames.runs, study.frames.windows
    differences = {recipe: DIFFERENCE for recipe in STEP_S if recipe != "baseline"}
    published = {"baseline": 1234.5, TENSORWISE: 650.0}
    return {
        "loss": plots.loss(runs, windows),
        "loss_difference": plots.loss_difference(differences, 0.25, "baseline"),
        "tokens_per_s": plots.tokens_per_s(study.rates, published),
        "mfu": plots.mfu(runs),
        "step_time": plots.step_time(runs, study.steps),
        "wall_after_warm_up": plots.wall_after_warm_up(runs, windows),
        "lead": plots.lead(study),
        "warm_up": plots.warm_up(runs),
        "memory": plots.memory(runs),
        "summary": plots.summary(study),
    }


def texts_of(axes) -> list:
    legend = axes.get_legend().get_texts() if axes.get_legend() else []
    return [text for text in (*axes.texts, *axes.get_yticklabels(), *legend) if text.get_text()]


def written_in(figure) -> str:
    """Everything written in a figure, on one line."""
    found = []
    for axes in figure.axes:
        found += [text.get_text() for text in texts_of(axes)]
        found += [axes.get_title("left"), axes.get_xlabel(), axes.get_ylabel()]
    return " | ".join(" ".join(text.split()) for text in found)


def line_of(figure, style="-"):
    """The line by step of the tensorwise recipe."""
    drawn = [line for line in figure.axes[0].lines if line.get_color() == look(TENSORWISE).colour]
    (line,) = (x for x in drawn if len(x.get_xdata()) > 2 and x.get_linestyle() == style)
    return line


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("loss", ["loss (nats per token)", "(interrupted)"]),
        ("loss_difference", ["margin ± 0.25", "loss − loss of baseline (nats per token)"]),
        ("tokens_per_s", ["tokens/s", "500 ◇ published 650", "200 ◇ published 1,23"]),
        ("mfu", ["50.0 % of bf16 peak", "25.0 % of FP8 peak", "Peak: made up."]),
        ("step_time", ["time of a steady step (ms)", "200 ms 40 steps"]),
        ("wall_after_warm_up", ["wall time since the end of step 1 (s)", "(interrupted)"]),
        ("lead", ["lead over baseline compiled", "ahead | behind", "(interrupted)"]),
        ("warm_up", ["the clock starts with the process", "import", "5.00 s"]),
        ("memory", ["peak reserved memory of a device (GiB)"]),
        ("summary", ["Loss", "Speed", "Lead in wall time", "Model FLOPs utilisation"]),
    ],
)
def test_what_is_written(figures, name, expected):
    written = written_in(figures[name])
    assert not [text for text in expected if text not in written], written


@pytest.mark.parametrize(
    ("name", "widths"),
    [
        ("tokens_per_s", [200, 250, 400, 500]),  # 100 tokens a step
        ("memory", [30 / 1024] * 4),
        ("mfu", [20, 10, 20, 25, 12.5, 25, 40, 20, 25, 50, 25, 31.25]),
    ],
)
def test_bars_start_at_zero_and_end_at_the_value(figures, name, widths):
    axes = figures[name].axes[0]
    bars = sorted(axes.patches, key=lambda bar: bar.get_y())
    assert [bar.get_width() for bar in bars] == pytest.approx(widths)
    assert axes.get_xlim()[0] == 0


def test_a_recipe_looks_the_same_in_all_figures(figures):
    looks = [look(recipe) for recipe in [*STEP_S, "rowwise_gw_hp_fp8_compiled", "my_own"]]
    assert len({x.colour for x in looks}) == len({x.marker for x in looks}) == 6
    for name in figures.keys() - {"warm_up"}:  # its colours are phases
        for axes in figures[name].axes:
            drawn = {to_hex(line.get_color()).upper() for line in axes.lines}
            drawn |= {to_hex(patch.get_facecolor()).upper() for patch in axes.patches}
            assert {look(recipe).colour for recipe in STEP_S if "_" in recipe} <= drawn, name


def test_loss_is_smoothed_and_averaged_over_completed_seeds_in_a_band(figures):
    line = line_of(figures["loss"])
    np.testing.assert_allclose(line.get_xdata(), range(2, 30))
    assert line.get_ydata()[-1] == pytest.approx(7.6)  # of steps 28 to 30 and seeds 0 and 1
    band = figures["loss"].axes[0].collections[0].get_paths()[0].vertices
    at_end = band[band[:, 0] == 29, 1]
    assert (at_end.min(), at_end.max()) == pytest.approx((7.1, 8.1))
    assert line_of(figures["loss"], "--").get_ydata()[-2] == 99


def test_loss_difference_is_drawn_over_the_margin(figures):
    line = line_of(figures["loss_difference"])
    np.testing.assert_allclose(line.get_ydata(), DIFFERENCE["difference"])
    (margin,) = figures["loss_difference"].axes[0].patches
    assert (margin.get_y(), margin.get_height()) == (-0.25, 0.5)


def test_a_cpu_has_one_peak_and_resident_memory(tmp_path):
    peak = {"bf16": 1e9, "fp8": None, "source": "measured: a GEMM"}
    write_run(tmp_path / "run", peak_flops=peak, hardware={"type": "cpu"})
    runs = load.load(tmp_path).runs
    figure = plots.mfu(runs)
    assert len(figure.axes[0].patches) == 1 and "measured: a GEMM" in written_in(figure)
    assert "peak resident memory of the process (GiB)" in written_in(plots.memory(runs))


def test_step_time_shows_outliers_of_steady_steps(study):
    steps = study.steps.copy()
    of_recipe = steps["recipe"] == TENSORWISE
    steps.loc[of_recipe & (steps["step"] == 25), "seconds"] = 3.5
    steps.loc[of_recipe & (steps["step"] == 5), "seconds"] = 77.0  # not a steady step
    (axes,) = plots.step_time(study.frames.runs, steps).axes
    assert max(line.get_xdata().max() for line in axes.lines if len(line.get_xdata())) == 3500


@pytest.mark.parametrize("window", [1, 10])
def test_wall_time_and_lead(tmp_path, window):
    """FP8 starts 3 s later and gains 0.2 s a step from step 11 on: ahead from step 26."""
    for recipe, step_s, late in (("baseline_compiled", 0.4, 0.0), (TENSORWISE, 0.2, 3.0)):
        lines = metrics_lines(step_s=step_s, window=window)
        lines = [line | {"elapsed_s": line["elapsed_s"] + late} for line in lines]
        write_run(tmp_path / recipe, recipe, lines=lines, warm_up=5.0 + late)
    comparison = compare(tmp_path)
    frames, figure = comparison.frames, plots.lead(comparison)
    after = line_of(plots.wall_after_warm_up(frames.runs, frames.windows)).get_xydata()
    np.testing.assert_allclose(after[[0, -1]], [(window, window - 1), (30, 9 + 20 * 0.2)])
    np.testing.assert_allclose(line_of(figure).get_ydata()[[0, -1]], [-3, 1])
    mark = figure.axes[0].lines[-1]
    assert mark.get_xydata().tolist() == [[26, 0]] and mark.get_marker() == look(TENSORWISE).marker
    assert "Ahead: tensorwise FP8 compiled from step 26." in written_in(figure)


def test_other_programs_clocks_start_with_training(tmp_path):
    for recipe, seconds in (("baseline", 2.5), (TENSORWISE, 2.0)):
        write_published(tmp_path / f"{recipe}.jsonl", seconds=[30.0, *[seconds] * 40])
    comparison = compare(tmp_path)
    for figure in (plots.lead(comparison), plots.warm_up(comparison.frames.runs)):
        assert "starts with training, not with the process" in written_in(figure)


def test_warm_up_is_stacked_by_phase(study):
    phases = {"import": 4.0, "distributed": 0.1, "first_step": 1.9, "compile": 30.0, "data": 0.2,
              "model_build": 3.8}  # fmt: skip
    runs = study.frames.runs.query("run == 'baseline/seed0'").assign(warm_up_s=50.0)
    (axes,) = plots.warm_up(runs.assign(phases=[phases])).axes
    stacked = [(bar.get_x(), bar.get_width()) for bar in axes.patches]
    expected = [(0, 4), (4, 3.8), (7.8, 30), (37.8, 1.9), (39.7, 10.3)]
    np.testing.assert_allclose(stacked, expected)
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["import", "model build", "compile", "first step", "other"]


def test_a_figure_without_data_says_so(study):
    failed, windows = study.frames.runs.assign(status="failed"), study.frames.windows[:0]
    empty = replace(study, frames=load.Frames(failed, windows, []), rates={})
    drawn = [
        plots.wall_after_warm_up(failed, windows),
        plots.warm_up(failed),
        plots.memory(failed),
        plots.step_time(failed, study.steps),
        plots.loss_difference({}, None, "baseline"),
    ]
    assert [written_in(figure).count("no data: ") for figure in drawn] == [1] * 5
    assert written_in(plots.summary(empty)).count("no data: ") == 4


def test_the_same_frames_give_the_same_bytes(study):
    figure = plots.lead(study)
    svg, png = plots.to_svg(figure), plots.to_png(figure)
    users = {"font.size": 20, "axes.grid": False, "savefig.dpi": 30, "figure.facecolor": "red"}
    with matplotlib.rc_context(users):
        for drawn in (figure, plots.lead(study)):  # saving does not change a figure
            assert (plots.to_svg(drawn), plots.to_png(drawn)) == (svg, png)
    assert "<dc:date>" not in svg and png.startswith(b"\x89PNG")


def test_texts_do_not_overlap(figures):
    for name, figure in figures.items():
        for axes in figure.axes:
            boxes = [(text, text.get_window_extent().padded(-1)) for text in texts_of(axes)]
            for (a, box), (b, other) in combinations(boxes, 2):
                assert not box.overlaps(other), (name, a, b)
            outside = [text for text, box in boxes if box.x0 < -1 or box.x1 > figure.bbox.x1 + 1]
            assert not outside, name
