"""Precision decoupling: the table, and the figures with and without a diverged loss."""

import pytest
import yaml

from analysis import decoupling, plots
from analysis.comparison import compare
from tests.make_runs import metrics_lines, write_run

STATES = {"first_moment": "float8_e4m3fn", "second_moment": "float16", "master_weights": "float16"}


@pytest.fixture
def study(tmp_path):
    """The baseline, states in 16 bits and less, and a loss that jumps to 100 after 10 steps."""
    none, last = dict.fromkeys(STATES), "fp8_optimizer_fp8_second_moment"
    for recipe, shift, states in (
        ("float32_optimizer", 0, none),
        ("fp8_optimizer", 0.05, STATES),
        (last, 100, STATES),
    ):
        lines = metrics_lines()
        for line in lines:
            line["losses"] = [
                loss + shift * (shift < 1 or line["step"] > 10) for loss in line["losses"]
            ]
            line["loss"] = line["losses"][0]
        kept = {"bytes_per_parameter": {"weights": 2.0, "states": 5.5}}
        path = write_run(tmp_path / recipe, recipe, lines=lines, proves={"parameters": kept})
        keys = yaml.safe_load((path / "recipe.yaml").read_text())
        keys["training"]["dtype"], keys["optimizer"] = "bfloat16", {"states": states}
        (path / "recipe.yaml").write_text(yaml.safe_dump(keys))
    return compare(tmp_path, baseline="float32_optimizer")


def test_the_table_has_dtypes_bytes_and_losses(study):
    table = decoupling.states(study)
    row, reference = table.loc["fp8_optimizer"], table.loc["float32_optimizer"]
    assert list(row[["parameters", "first moment", "master weights", "FP8-LM"]]) == [
        "bfloat16",
        "E4M3",
        "float16",
        "equal",
    ]
    assert list(reference[["second moment", "master weights", "difference"]]) == [
        "bfloat16",
        "none",
        0,
    ]
    assert row["bytes"] == 7.5 and row["difference"] == pytest.approx(0.05)


def test_a_diverged_loss_is_in_the_figure_and_not_in_that_of_small_differences(study):
    assert set(decoupling.near(study)) == {"fp8_optimizer"} < set(study.differences)
    (axes,) = plots.loss(study.frames.runs, study.frames.windows, True).axes
    assert axes.get_yscale() == "log" and max(line.get_ydata().max() for line in axes.lines) > 100
