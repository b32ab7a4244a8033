"""The tables and figures of single studies, from planted runs."""

import pytest

from analysis import plots, studies
from analysis.comparison import COMPILED, compare
from analysis.studies import COMBINED, COMPUTE, EACH
from analysis.study import read_study
from models import llama
from tests.make_runs import metrics_lines, write_run, write_study

# ---- allgather_ladder ----


def test_what_rungs_send_is_read_from_their_proofs(tmp_path):
    sizes = dict.fromkeys(["reduced_bytes", "reduced_bytes_expected"], 30_000_000)
    sizes |= {"shards": 2, "replicas": 1, "table": [], "all_reduces": 7}
    sizes["nccl"] = {"seconds": 0.5, "exposed_seconds": 0.125}
    for rung, gathered in ((COMPILED, 40_000_000), (COMBINED, 20_000_000)):
        sent = sizes | {"gathered_bytes": gathered, "gathered_bytes_expected": gathered}
        float8 = None if rung == COMPILED else "tensorwise"
        write_run(tmp_path / rung, rung, float8=float8, proves={"sharded": sent}, world_size=2)
    comparison = compare(read_study(tmp_path))
    found = studies.ladder_bytes(comparison).loc[[COMPILED, COMBINED]]
    assert found.to_numpy().tolist() == [[40, 40, 30, 7, 500, 125], [20, 20, 30, 7, 500, 125]]
    published, measured, sent = (
        [text.get_text() for text in axes.texts] for axes in plots.allgather_ladder(comparison).axes
    )
    assert "1.50 ×" in published and "1.50 ×" not in " ".join(measured)
    assert "20.0 gathered\n30.0 reduced\n7 all-reduces" in sent


def test_rungs_are_compared_bit_for_bit(tmp_path):
    for rung, more in ((COMPUTE, 0.0), (EACH, 0.0), (COMBINED, 1e-15)):
        lines = metrics_lines()
        lines[1]["loss"] += more
        write_run(tmp_path / rung, rung, lines=lines)
    each, combined = studies.same_numbers(compare(read_study(tmp_path)))
    assert "30 of 30" in each and "29 of 30" in combined


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
