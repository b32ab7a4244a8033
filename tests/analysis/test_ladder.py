"""The ladder to FP8 all-gather: what is read from runs, and the prediction."""

import math

import pandas as pd
import pytest

from analysis import ladder, prediction
from analysis.comparison import COMPILED, compare
from analysis.ladder import COMBINED, COMPUTE, EACH
from analysis.plots import allgather_ladder
from analysis.table import notes, rows_of
from models.gpus import GPUS
from tests.make_runs import write_run


@pytest.fixture
def runs(tmp_path):
    """Of three rungs, of two ranks; the last one's losses are others."""
    for rung, gathered in ((COMPILED, 40e6), (COMPUTE, 40e6), (COMBINED, 20e6)):
        sent = {"shards": 2, "replicas": 1, "table": [], "gathered_bytes": int(gathered),
                "gathered_bytes_expected": int(gathered), "reduced_bytes": 30_000_000,
                "reduced_bytes_expected": 30_000_000, "all_reduces": 7,
                "nccl": {"seconds": 0.5, "exposed_seconds": 0.125}}  # fmt: skip
        float8 = None if rung == COMPILED else "tensorwise"
        write_run(tmp_path / rung / "seed0", rung, float8=float8, world_size=2,
                  proves={"collectives": sent})  # fmt: skip
    return compare(tmp_path)


def test_what_rungs_send_is_read_from_their_proofs(runs):
    found = ladder.sent(runs.frames.runs)
    assert found["gathered"].to_dict() == {COMPILED: 40.0, COMPUTE: 40.0, COMBINED: 20.0}
    assert found.loc[COMBINED, ["closed_form", "all_reduces", "NCCL, exposed ms"]].tolist() == [
        20.0,
        7,
        125.0,
    ]
    [line] = [note for note in notes(rows_of(runs)) if note.startswith("Sent among the ranks")]
    assert f"gathered 20.0 MB, reduced 30.0 MB ({COMBINED} seed 0)" in line
    texts = [text.get_text() for axes in allgather_ladder(runs).axes for text in axes.texts]
    assert "20.0, 30.0\n7 all-reduces" in texts and any("◇ 1.50" in text for text in texts)


def test_rungs_are_compared_bit_for_bit():
    def log(recipe, *losses):
        return [
            {"recipe": recipe, "seed": 0, "step": k, "losses": (x,), "grad_norm": 1.0}
            for k, x in enumerate(losses)
        ]

    windows = pd.DataFrame(
        log(COMPUTE, 2.0, 1.0) + log(EACH, 2.0, 1.0) + log(COMBINED, 2.0, math.nextafter(1.0, 2))
    )
    each, combined = ladder.same_numbers(windows)
    assert "2 of 2" in each and "1 of 2" in combined


def test_bandwidth_of_a_node_and_between_nodes():
    links = GPUS["gh200"].links
    assert links.bus_bandwidth(4) == 450e9 and links.bus_bandwidth(8) == 4 * 25e9


def test_prediction_exposes_what_a_slow_network_cannot_hide():
    """70 B on 128 GPUs: 856 M weights a block in bf16 need 17 ms at 100 GB/s, and their gradients
    34 ms."""
    table = prediction.table()
    fast, slow = (table.loc[f"70 B on 128 {gpu}"] for gpu in ("H100", "GH200"))
    assert (fast["sent beside nothing, ms"] < 20).all()
    assert (
        slow.loc[COMPUTE, "sent beside nothing, ms"]
        > slow.loc[COMBINED, "sent beside nothing, ms"]
        > 1000
    )
    assert slow.loc[COMBINED, "predicted"] > 1.2 * slow.loc[COMPUTE, "predicted"]
    assert table.loc["70 B on 128 H100", "published"].dropna().tolist() == [1.40, 1.50]
