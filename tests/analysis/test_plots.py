"""What the figures show: drawn values against the frames, looks, labels, unfinished runs, no data,
stable bytes."""

from dataclasses import replace
from itertools import combinations

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex

from analysis import load, plots
from analysis.comparison import compare
from analysis.page import FIGURES
from analysis.plots.style import look
from tests.make_runs import metrics_lines, write_published, write_run

STEP_S = {
    "baseline": 0.5,
    "baseline_compiled": 0.4,
    "rowwise_fp8_compiled": 0.25,
    "tensorwise_fp8_compiled": 0.2,
}
TENSORWISE = "tensorwise_fp8_compiled"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Two seeds of the four recipes, seed 1 with a loss 1 higher, tensorwise with a loss 0.25
    higher; a third seed of tensorwise was interrupted with a loss that would show in a mean."""
    folder = tmp_path_factory.mktemp("study")
    for recipe, step_s in STEP_S.items():
        for seed in range(2):
            lines = metrics_lines(step_s=step_s, shift=seed + 0.25 * (recipe == TENSORWISE))
            facts = {"lines": lines, "seed": seed, "parameters": 5_700_000}
            write_run(folder / recipe / f"seed{seed}", recipe, **facts)
    lines = metrics_lines(last=20, step_s=0.01)
    lines = [line | {"loss": 99.0, "losses": [99.0]} for line in lines]
    write_run(folder / TENSORWISE / "seed2", TENSORWISE, seed=2, lines=lines, status="interrupted")
    return compare(folder)


@pytest.fixture(scope="module")
def figures(study):
    """Every figure of the page, and the documentation's."""
    return {draw.__name__: draw(study) for draw in (*FIGURES, plots.summary)}


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
        ("loss", ["tensorwise FP8 7.85", "(interrupted) 99, off the axis"]),
        (
            "loss_difference",
            ["margin ± ", "tensorwise FP8 +0.2500", "loss − loss of compiled bf16"],
        ),
        (
            "tokens_per_s",
            ["200 0.80 × | 250 | 400 1.60 × | 500 2.00 ×", "tensorwise FP8 MFU 50.0%"],
        ),
        (
            "lead",
            ["lead over compiled bf16", "ahead | behind", "(interrupted)", "0.00570 B parameters"],
        ),
        ("warm_up", ["The clock starts with the process", "import", "5.00 s"]),
        ("memory", ["peak reserved memory of a device (GiB)", "1.00 ×"]),
    ],
)
def test_what_is_written(figures, name, expected):
    written = written_in(figures[name])
    assert not [text for text in expected if text not in written], written


def test_titles_are_findings(figures):
    titles = {name: figure.axes[0].get_title("left") for name, figure in figures.items()}
    found = {name: " ".join(title.split()) for name, title in titles.items()}
    opponent = "compiled bf16"
    assert found == {
        "lead": f"tensorwise FP8 is ahead of {opponent} from step 11",
        "tokens_per_s": f"tensorwise FP8: 2.00 times the tokens/s of {opponent}",
        "loss_difference": "tensorwise FP8 ends 0.25 above compiled bf16, 13.2 margins",
        "loss": "tensorwise FP8: final loss 0.25 above compiled bf16",
        "warm_up": f"tensorwise FP8: +0 s to step 1 over {opponent}",
        "memory": f"tensorwise FP8: 1.00 times the peak memory of {opponent}",
        "summary": "tensorwise FP8 ends 0.25 above compiled bf16, 13.2 margins",
    }
    assert figures["lead"].alternative.startswith(f"{found['lead']}. 0.00570 B parameters")


def test_bars_start_at_zero_and_end_at_the_value(figures):
    (axes,) = figures["tokens_per_s"].axes
    bars = sorted(axes.patches, key=lambda bar: bar.get_y())
    widths = [bar.get_width() for bar in bars]
    assert sorted(widths) == pytest.approx([200, 250, 400, 500])  # 100 tokens a step
    assert axes.get_xlim()[0] == 0


def test_a_recipe_looks_the_same_in_all_figures(figures):
    looks = [look(recipe) for recipe in [*STEP_S, "rowwise_gw_hp_fp8_compiled", "my_own"]]
    assert len({x.colour for x in looks}) == len({x.name for x in looks}) == 6
    for name in ("lead", "loss_difference", "memory", "tokens_per_s"):
        (axes,) = figures[name].axes
        drawn = {to_hex(artist.get_edgecolor()) for artist in axes.patches}
        drawn |= {line.get_color() for line in axes.lines}
        assert look(TENSORWISE).colour in drawn, name


def test_equal_losses_are_one_band_and_an_unfinished_run_leaves_the_axis(figures):
    axes, line = figures["loss"].axes[0], line_of(figures["loss"])
    np.testing.assert_allclose(line.get_xdata(), range(2, 30))
    assert line.get_ydata()[-1] == pytest.approx(7.85)  # of steps 28 to 30 and seeds 0 and 1
    band = axes.collections[1].get_paths()[0].vertices
    at_end = band[band[:, 0] == 29, 1]
    assert (at_end.min(), at_end.max()) == pytest.approx((7.35, 8.35))
    names = [text.get_text().splitlines()[:-1] for text in axes.get_legend().get_texts()]
    assert names[-1] == ["eager bf16", "compiled bf16", "rowwise FP8"]
    assert axes.get_ylim()[1] < 99 == line_of(figures["loss"], "--").get_ydata()[-2]


def test_loss_difference_is_drawn_over_the_margin(figures, study):
    line = line_of(figures["loss_difference"])
    np.testing.assert_allclose(line.get_ydata(), 0.25)
    (margin,) = figures["loss_difference"].axes[0].patches
    assert margin.get_height() == pytest.approx(2 * study.margin)
    assert figures["loss_difference"].axes[0].get_ylim()[1] < 0.25  # others are nearer to 0


def test_a_cpu_has_no_utilisation_and_resident_memory(tmp_path):
    write_run(tmp_path / "run", peak_flops=None, hardware={"type": "cpu"})
    comparison = compare(tmp_path)
    assert "MFU " not in written_in(plots.tokens_per_s(comparison)).split("By the mean")[0]
    assert "peak resident memory of the process (GiB)" in written_in(plots.memory(comparison))


@pytest.mark.parametrize("window", [1, 10])
def test_lead_with_and_without_the_first_step(tmp_path, window):
    """FP8 starts 3 s later and gains 0.2 s a step from step 11 on: ahead from step 26."""
    for recipe, step_s, late in (("baseline_compiled", 0.4, 0.0), (TENSORWISE, 0.2, 3.0)):
        lines = metrics_lines(step_s=step_s, window=window, late=late)
        write_run(tmp_path / recipe, recipe, lines=lines, warm_up=5.0 + late)
    comparison = compare(tmp_path)
    figure, after = plots.lead(comparison), plots.lead(comparison, False)
    np.testing.assert_allclose(line_of(figure).get_ydata()[[0, -1]], [-3, 1])
    np.testing.assert_allclose(line_of(after).get_ydata()[[0, -1]], [0, 4])
    mark = figure.axes[0].lines[-1]
    assert mark.get_xydata().tolist() == [[26, 0]]
    assert "tensorwise FP8 is ahead of compiled bf16 from step 26" in written_in(figure)
    assert "| step 26 |" in written_in(figure) and "is 4 s ahead" in written_in(after)


def test_other_programs_clocks_start_with_training(tmp_path):
    for recipe, seconds in (("baseline", 2.5), (TENSORWISE, 2.0)):
        write_published(tmp_path / f"{recipe}.jsonl", seconds=[30.0, *[seconds] * 40])
    comparison = compare(tmp_path)
    for figure in (plots.lead(comparison), plots.warm_up(comparison)):
        assert "starts with training, not with the process" in written_in(figure)


def test_warm_up_is_stacked_by_phase(study):
    phases = {"import": 4.0, "distributed": 0.1, "compile": 30.0, "data": 0.2, "first_step": 1.9}
    runs = study.frames.runs.query("run == 'baseline/seed0'").assign(warm_up_s=50.0)
    frames = load.Frames(runs.assign(phases=[phases]), study.frames.windows, study.frames.steps, [])
    (axes,) = plots.warm_up(replace(study, frames=frames)).axes
    stacked = [(bar.get_x(), bar.get_width()) for bar in axes.patches]
    np.testing.assert_allclose(stacked, [(0, 4), (4, 0.2), (4.2, 30), (34.2, 15.8)])
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["import", "data", "compile", "other"]


def test_a_figure_without_data_says_so(tmp_path):
    write_run(tmp_path / "a", lines=[], status="failed")
    comparison = compare(tmp_path)
    for draw in FIGURES:
        assert draw(comparison).empty and "no data: " in written_in(draw(comparison)), draw
    assert written_in(plots.summary(comparison)).count("no data: ") == 4


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
