"""The table of the notebook, from planted runs."""

import pytest
import yaml

from analysis import plots
from analysis.comparison import compare
from analysis.study import read_study
from experiments.records.run import RECIPE
from extensions.fp8_lm import tables
from tests.make_runs import metrics_lines, write_run


def test_optimizer_states_with_a_loss_that_jumps_to_100(tmp_path):
    states = {"first_moment": "float8_e4m3fn", "second_moment": None, "master_weights": "float16"}
    keys = {"training": {"dtype": "bfloat16"}, "fp8_lm": {"states": states}}
    kept = {"parameters": {"bytes_per_parameter": {"weights": 2.0, "states": 5.5}}}
    jump = metrics_lines(last=10) + metrics_lines(shift=100)[10:]
    logs = {"float32_optimizer": metrics_lines(), "fp8_optimizer": metrics_lines(shift=0.05)}
    for recipe, lines in (logs | {"fp8_optimizer_fp8_second_moment": jump}).items():
        path = write_run(tmp_path / recipe, recipe, lines=lines, proves=kept)
        (path / RECIPE).write_text(yaml.safe_dump(keys))
    comparison = compare(read_study(tmp_path), "float32_optimizer")
    row = tables.optimizer_states(comparison).loc["fp8_optimizer"].drop("final loss").tolist()
    above = pytest.approx(0.05)
    assert row == ["bfloat16", "E4M3", "bfloat16", "float16", 7.5, above, "equal"]
    (axes,) = plots.loss_difference(comparison).axes
    diverged, *_ = axes.get_legend().get_texts()
    assert diverged.get_text().endswith(", off the axis") and axes.get_ylim()[1] < 0.1
