"""The tables and figures of single studies, from planted runs."""

import pytest

from analysis import studies
from analysis.comparison import compare
from analysis.study import read_study
from models import llama
from tests.make_runs import write_study

# ---- four_way ----


def test_cost_of_a_run_of_n_steps(tmp_path):
    """Measured within the runs, and 0.1 s a step beyond their 200: 14 s for the first 10 steps,
    then steady."""
    comparison = compare(read_study(write_study(tmp_path, seeds=1)))
    hours = studies.cost_by_steps(comparison, [100, 10_000])
    seconds = (3600 * hours["baseline_compiled"]).to_dict()
    assert seconds == pytest.approx({100: 14 + 90 * 0.1, 10_000: 14 + 999})


# ---- the benchmark on B200 ----


def test_the_benchmarks_figures_are_recomputed():
    assert studies.b200_tflops()["TFLOP/s"].tolist() == [345, 531]
    assert studies.b200_lengths()[8192].tolist() == [0.77, 0.83, 0.25]
    for name, args in studies.B200_MODELS.items():
        assert args.parameters() == llama.FLAVORS[name].parameters()
