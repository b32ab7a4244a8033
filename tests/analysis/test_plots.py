"""What the figures show: drawn values against the frames, looks, labels, unfinished runs, no data,
stable bytes."""

import json
import shutil
from dataclasses import replace
from itertools import combinations

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text

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


def write_study(folder, seeds=(0,), window=1, **changes):
    """The four recipes; seed k has a loss k higher. `changes`: manifest entries by recipe."""
    for recipe, step_s in STEP_S.items():
        for seed in seeds:
            lines = metrics_lines(step_s=step_s, window=window)
            lines = [line | {"loss": line["loss"] + seed} for line in lines]
            fp8 = 0.75 if "fp8" in recipe else 0.0
            write_run(folder / recipe / f"seed{seed}", recipe, seed=seed, lines=lines, fp8_share=fp8,
                      **changes.get(recipe, {}))  # fmt: skip
    return compare(folder)


@pytest.fixture(scope="module")
def one_seed(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def three_seeds(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("three"), seeds=(0, 1, 2))


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """Three seeds, of which tensorwise's last was interrupted with a loss and a time that would
    show in a mean."""
    folder = tmp_path_factory.mktemp("interrupted")
    write_study(folder, seeds=(0, 1))
    lines = [line | {"loss": 99.0} for line in metrics_lines(last=20, step_s=0.01)]
    write_run(folder / TENSORWISE / "seed2", TENSORWISE, seed=2, lines=lines, status="interrupted")
    return compare(folder)


@pytest.fixture(scope="module")
def figures(interrupted):
    """Every figure, of a study with an interrupted run."""
    runs, windows = interrupted.frames.runs, interrupted.frames.windows
    return {
        "loss": plots.loss(runs, windows),
        "loss_difference": plots.loss_difference(
            {r: DIFFERENCE for r in STEP_S if r != "baseline"}, 0.3, "baseline"
        ),
        "tokens_per_s": plots.tokens_per_s(runs, interrupted.rates),
        "mfu": plots.mfu(runs),
        "step_time": plots.step_time(runs, interrupted.steps),
        "wall_after_warm_up": plots.wall_after_warm_up(runs, windows),
        "lead": plots.lead(interrupted),
        "warm_up": plots.warm_up(runs),
        "memory": plots.memory(runs),
        "summary": plots.summary(interrupted),
    }


def legend_of(axes) -> list[Text]:
    return axes.get_legend().get_texts() if axes.get_legend() else []


def texts(figure) -> str:
    """Everything written in a figure, on one line."""
    found = []
    for axes in figure.axes:
        found += [
            text.get_text() for text in (*axes.texts, *axes.get_yticklabels(), *legend_of(axes))
        ]
        found += [axes.get_title("left"), axes.get_xlabel(), axes.get_ylabel()]
    return " | ".join(" ".join(text.split()) for text in found)


def lines_of(figure, recipe, **properties):
    """The lines with more than two points in a recipe's colour, with all of `properties`."""
    (axes,) = figure.axes
    mine = [
        line
        for line in axes.lines
        if line.get_color() == look(recipe).colour and len(line.get_xdata()) > 2
    ]
    return [
        line
        for line in mine
        if all(getattr(line, f"get_{k}")() == v for k, v in properties.items())
    ]


def bars(figure):
    """(y, width, colour) of the bars, from the top."""
    found = [
        (p.get_y() + p.get_height() / 2, p.get_width(), to_hex(p.get_facecolor()))
        for p in figure.axes[0].patches
    ]
    return sorted(found)


def test_a_recipe_looks_the_same_in_all_figures(figures):
    looks = {recipe: look(recipe) for recipe in [*STEP_S, "rowwise_gw_hp_fp8_compiled", "my_own"]}
    assert (
        len({x.colour for x in looks.values()})
        == len({x.marker for x in looks.values()})
        == len(looks)
    )
    for name, figure in figures.items():
        if name == "warm_up":  # its colours are phases
            continue
        for axes in figure.axes:
            drawn = {to_hex(line.get_color()).upper() for line in axes.lines}
            drawn |= {to_hex(patch.get_facecolor()).upper() for patch in axes.patches}
            expected = {
                looks[recipe].colour
                for recipe in STEP_S
                if name != "loss_difference" or recipe != "baseline"
            }
            assert expected <= drawn, name
            markers = {str(line.get_marker()) for line in axes.lines} - {"", "None", "d", "|"}
            assert markers <= {x.marker for x in looks.values()}, name


def test_loss_is_drawn_smoothed_and_of_several_seeds_as_their_mean_in_a_band_of_all(
    one_seed, three_seeds
):
    single, several = (
        plots.loss(study.frames.runs, study.frames.windows) for study in (one_seed, three_seeds)
    )
    for figure, final_loss in (
        (single, 7.1),
        (several, 8.1),
    ):  # of steps 28 to 30; of seeds 0, 1 and 2
        (line,) = lines_of(figure, TENSORWISE)
        np.testing.assert_allclose(line.get_xdata(), range(2, 30))
        assert line.get_ydata()[-1] == pytest.approx(final_loss)
        assert "loss (nats per token)" in texts(figure) and "tensorwise FP8 compiled" in texts(
            figure
        )
    assert not single.axes[0].collections and "range of 3 seeds" in texts(several)
    band = several.axes[0].collections[0].get_paths()[0].vertices
    at_end = band[band[:, 0] == line.get_xdata()[-1], 1]
    assert (at_end.min(), at_end.max()) == pytest.approx((7.1, 9.1))


def test_loss_difference_has_zero_line_margin_and_band():
    figure = plots.loss_difference({TENSORWISE: DIFFERENCE}, 0.25, "baseline")
    (line,) = lines_of(figure, TENSORWISE)
    np.testing.assert_allclose(line.get_ydata(), DIFFERENCE["difference"])
    assert "margin ± 0.25" in texts(figure) and "loss − loss of baseline (nats per token)" in texts(
        figure
    )
    (margin,) = figure.axes[0].patches
    assert (margin.get_y(), margin.get_height()) == (-0.25, 0.5)
    assert any(list(line.get_ydata()) == [0, 0] for line in figure.axes[0].lines)
    assert "Bands: 90% interval over the seeds, as in the verdict" in texts(figure)
    single = plots.loss_difference({TENSORWISE: DIFFERENCE.assign(low=np.nan)}, None, "baseline")
    assert "One seed: no interval" in texts(single) and "margin" not in texts(single)


def test_bars_start_at_zero_and_end_at_the_value(three_seeds):
    runs, rates = three_seeds.frames.runs, three_seeds.rates
    figure = plots.tokens_per_s(runs, rates, {"baseline": 1234.5, TENSORWISE: 650.0})
    assert [width for _, width, _ in bars(figure)] == pytest.approx(
        [200, 250, 400, 500]
    )  # 100 tokens a step
    (axes,) = figure.axes
    assert axes.get_xlim()[0] == 0 and axes.get_xlabel() == "tokens/s"
    published = [line for line in axes.lines if line.get_marker() == "d"]
    assert [line.get_xdata()[0] for line in published] == [1234.5, 650.0]
    assert all(line.get_markerfacecolor() == "white" for line in published)
    assert "500 ◇ published 650" in texts(figure) and "200 ◇ published 1,23" in texts(figure)
    memory = plots.memory(runs)
    assert [width for _, width, _ in bars(memory)] == pytest.approx([30 / 1024] * 4)
    assert memory.axes[0].get_xlim()[0] == 0
    assert memory.axes[0].get_xlabel() == "peak reserved memory of a device (GiB)"


def test_mfu_over_each_peak_that_applies(one_seed, tmp_path):
    figure = plots.mfu(one_seed.frames.runs)
    row = one_seed.frames.runs.set_index("recipe").loc[TENSORWISE]
    widths = [width for _, width, _ in bars(figure)][-3:]
    assert widths == pytest.approx(
        [100 * row[f"mfu_{peak}_peak"] for peak in ("bf16", "fp8", "mixed")]
    )
    assert "50.0 % of bf16 peak" in texts(figure) and "25.0 % of FP8 peak" in texts(figure)
    assert (
        figure.axes[0].get_xlabel() == "MFU (% of the datasheet peak)"
        and figure.axes[0].get_xlim()[0] == 0
    )
    peak = {"bf16": 1e9, "fp8": None, "source": "measured: a GEMM"}
    cpu = write_study(tmp_path, **{recipe: {"peak_flops": peak} for recipe in STEP_S})
    figure = plots.mfu(cpu.frames.runs)
    assert len(bars(figure)) == 4 and "FP8 peak" not in texts(figure)
    assert figure.axes[
        0
    ].get_xlabel() == "MFU (% of the measured peak)" and "Peak: measured: a GEMM" in texts(figure)


def test_step_time_shows_outliers(one_seed):
    steps = one_seed.steps.copy()
    steps.loc[(steps["recipe"] == TENSORWISE) & (steps["step"] == 25), "seconds"] = 3.5
    steps.loc[(steps["recipe"] == TENSORWISE) & (steps["step"] == 5), "seconds"] = (
        77.0  # not a steady step
    )
    figure = plots.step_time(one_seed.frames.runs, steps)
    drawn = np.concatenate([np.atleast_1d(line.get_xdata()) for line in figure.axes[0].lines])
    assert 3500 in drawn and drawn.max() == 3500
    assert "time of a steady step (ms)" in texts(figure) and "200 ms" in texts(figure)


@pytest.mark.parametrize("window", [1, 10])
def test_wall_time_and_lead(tmp_path, window):
    """FP8 starts 3 s later and gains 0.2 s a step on the compiled baseline from step 11 on: ahead
    from step 26."""
    write_study(tmp_path, window=window)
    shutil.rmtree(tmp_path / TENSORWISE)
    late = [
        line | {"elapsed_s": line["elapsed_s"] + 3.0}
        for line in metrics_lines(step_s=0.2, window=window)
    ]
    write_run(tmp_path / TENSORWISE / "seed0", TENSORWISE, lines=late, warm_up=8.0)
    comparison = compare(tmp_path)
    (after,) = lines_of(
        plots.wall_after_warm_up(comparison.frames.runs, comparison.frames.windows), TENSORWISE
    )
    assert (after.get_xdata()[0], after.get_ydata()[0]) == pytest.approx(
        (window, 1.0 * (window - 1))
    )
    assert (after.get_xdata()[-1], after.get_ydata()[-1]) == pytest.approx((30, 9 * 1.0 + 20 * 0.2))
    figure = plots.lead(comparison)
    (line,) = lines_of(figure, TENSORWISE)
    assert (line.get_ydata()[0], line.get_ydata()[-1]) == pytest.approx((-3.0, -3.0 + 20 * 0.2))
    marks = [m for m in figure.axes[0].lines if str(m.get_marker()) == look(TENSORWISE).marker]
    assert [(m.get_xdata()[0], m.get_ydata()[0]) for m in marks] == [(26, 0)]
    written = texts(figure)
    assert "tensorwise FP8 compiled from step 26. The clock starts with the process." in written
    assert "lead over baseline compiled" in written and "ahead | behind | " in written


def test_the_lead_says_that_other_programs_clocks_start_with_training(tmp_path):
    for recipe, seconds in (("baseline", 2.5), (TENSORWISE, 2.0)):
        write_published(tmp_path / f"{recipe}.jsonl", seconds=[30.0, *[seconds] * 40])
    comparison = compare(tmp_path)
    for figure in (plots.lead(comparison), plots.warm_up(comparison.frames.runs)):
        assert "starts with training, not with the process" in texts(figure).lower()


def test_warm_up_is_stacked_by_phase(tmp_path):
    phases = {
        "import": 4.0,
        "distributed": 0.1,
        "first_step": 1.9,
        "compile": 30.0,
        "data": 0.2,
        "model_build": 3.8,
    }
    write_run(tmp_path / "run", TENSORWISE)
    timing = {"warm_up_s": 40.0, "phases": phases, "compile_cache": "cold"}
    (tmp_path / "run" / "timing.json").write_text(json.dumps(timing))
    figure = plots.warm_up(load.load(tmp_path / "run").runs)
    stacked = [(p.get_x(), p.get_width()) for p in figure.axes[0].patches]
    expected = [(0, 4), (4, 3.8), (7.8, 30), (37.8, 1.9), (39.7, 0.3)]
    np.testing.assert_allclose(stacked, expected)
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert legend == ["import", "model build", "compile", "first step", "other"]
    assert "40.0 s" in texts(figure) and "Other: distributed, data" in texts(figure)


def test_a_run_that_is_not_completed_is_dashed_and_never_averaged(figures):
    for name in ("loss", "wall_after_warm_up", "lead", "summary"):
        assert "tensorwise FP8 compiled (interrupted)" in texts(figures[name]), name
    (dashed,) = lines_of(figures["loss"], TENSORWISE, linestyle="--")
    assert set(dashed.get_ydata()) == {99.0}
    assert (
        max(line.get_ydata().max() for line in lines_of(figures["loss"], TENSORWISE, linestyle="-"))
        < 12
    )
    assert [width for _, width, _ in bars(figures["tokens_per_s"])] == pytest.approx(
        [200, 250, 400, 500]
    )


def test_a_figure_without_data_says_why(one_seed):
    frames = one_seed.frames
    runs, windows = frames.runs.assign(status="failed"), frames.windows[:0]
    empty = replace(one_seed, frames=load.Frames(runs, windows, []), rates={})
    for figure, why in (
        (plots.loss(runs, windows), "no log window has loss"),
        (plots.wall_after_warm_up(runs, windows), "no log window has seconds"),
        (plots.lead(empty), "no log window has elapsed_s"),
        (
            plots.lead(replace(empty, frames=load.Frames(runs, frames.windows, []))),
            "no completed run of baseline",
        ),
        (plots.tokens_per_s(runs, {}), "no completed run has tokens_per_s"),
        (plots.mfu(frames.runs.assign(mfu_bf16_peak=np.nan)), "no completed run has mfu_bf16_peak"),
        (plots.warm_up(runs), "no completed run has warm_up_s"),
        (plots.memory(runs), "no completed run has peak_memory_bytes"),
        (
            plots.step_time(frames.runs, one_seed.steps.query("step <= 10")),
            "no run has steady steps: train 30 or more",
        ),
        (
            plots.loss_difference({}, 0.1, "baseline"),
            "no recipe has a loss at the same step and seed as baseline",
        ),
    ):
        assert "no data" in texts(figure) and why in texts(figure)
    assert texts(plots.summary(empty)).count("no data") == 4


def test_the_same_frames_give_the_same_bytes(three_seeds):
    figure = plots.lead(three_seeds)
    svg, png = plots.to_svg(figure), plots.to_png(figure)
    assert (plots.to_svg(figure), plots.to_png(figure)) == (
        svg,
        png,
    )  # saving does not change a figure
    with matplotlib.rc_context(
        {"font.size": 20, "axes.grid": False, "savefig.dpi": 30, "figure.facecolor": "red"}
    ):
        again = plots.lead(three_seeds)
        assert plots.to_svg(again) == svg and plots.to_png(again) == png
    assert "<dc:date>" not in svg and png.startswith(b"\x89PNG")


def test_texts_do_not_overlap(figures):
    for name, figure in figures.items():
        for axes in figure.axes:
            written = [
                text
                for text in (*axes.texts, *axes.get_yticklabels(), *legend_of(axes))
                if text.get_text()
            ]
            boxes = [(text.get_text(), Text.get_window_extent(text).padded(-1)) for text in written]
            for (a, box), (b, other) in combinations(boxes, 2):
                assert not box.overlaps(other), f"{name}: {a!r} over {b!r}"
            assert all(
                figure.bbox.padded(1).containsx(x) for _, box in boxes for x in (box.x0, box.x1)
            ), name
