"""What a run costs by its length."""

import pytest

from analysis.comparison import compare
from analysis.study import read_study
from analysis.table import cost_by_steps
from tests.make_runs import write_study


def test_cost_of_a_run_of_n_steps(tmp_path):
    """Measured within the runs, and 0.1 s a step beyond their 200: 14 s for the first 10 steps,
    then steady."""
    comparison = compare(read_study(write_study(tmp_path, seeds=1)))
    hours = cost_by_steps(comparison, [100, 10_000])
    seconds = (3600 * hours["baseline_compiled"]).to_dict()
    assert seconds == pytest.approx({100: 14 + 90 * 0.1, 10_000: 14 + 999})
