"""The tables of the notebook, from the kept runs."""

from pathlib import Path

import pytest

from analysis.comparison import compare
from analysis.study import read_study
from extensions.fp8_lm import tables

RESULTS = Path(__file__).parent.parent / "results"


def test_optimizer_states_and_what_they_do_to_the_loss():
    study = read_study(RESULTS / "precision_decoupling" / "cpu_2026-11-22_torch2.13.0")
    table = tables.optimizer_states(compare(study))
    assert table.loc["baseline"].tolist()[:4] == ["bfloat16", "bfloat16", "bfloat16", "none"]
    *dtypes, size, loss, difference, paper = table.loc["fp8_optimizer"]
    assert [*dtypes, paper] == ["bfloat16", "E4M3", "float16", "float16", "equal"]
    assert (size, loss, difference) == pytest.approx((7, 5.2315, 0.0009), abs=2e-4)


def test_levels_count_what_is_sent_compared_to_bf16():
    study = read_study(RESULTS / "fp8_lm" / "cpu_2026-11-23_torch2.13.0")
    row = tables.levels(compare(study)).loc["fp8_lm", :"sent, to bf16"]
    assert row.tolist() == [12.591616, 5.3274, "-55%"]


def test_a_figure_shows_the_losses_that_end_far_above():
    study = read_study(RESULTS / "precision_decoupling" / "cpu_2026-11-22_torch2.13.0")
    comparison = compare(study)
    near = tables.select_recipes(comparison)
    far = comparison.results.keys() - near.results.keys()
    assert far == {"fp8_optimizer_fp8_master", "fp8_optimizer_fp8_second_moment"}
    axes = tables.final_loss_rows(comparison).axes[0]
    assert len(axes.get_yticks()) == len(comparison.results)
    low, high = axes.get_xlim()
    assert all(low < value < high for line in axes.lines[1:] for value in line.get_xdata())
