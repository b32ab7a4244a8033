"""What the notebook says of planted runs."""

from analysis.comparison import COMPILED, compare
from analysis.study import read_study
from extensions.sharded import tables
from extensions.sharded.tables import COMBINED, COMPUTE, EACH
from tests.make_runs import write_run


def test_what_rungs_send_is_read_from_their_proofs(tmp_path):
    sent = {"gathered_bytes": 20_000_000, "gathered_bytes_expected": 21_000_000}
    sent |= {"reduced_bytes": 30_000_000, "all_reduces": 7}
    sent["nccl"] = {"seconds": 0.5, "exposed_seconds": 0.125}
    for rung in COMPILED, COMBINED:
        write_run(tmp_path / rung, rung, proof={"sharded": sent}, world_size=2)
    found = tables.ladder_bytes(compare(read_study(tmp_path)))
    assert found.loc[COMBINED].tolist() == [20, 21, 30, 7, 500, 125, 1.5]


def test_rungs_are_compared_bit_for_bit(tmp_path):
    for rung, last in ((COMPUTE, 1.0), (EACH, 1.0), (COMBINED, 1.0 + 1e-15)):
        write_run(tmp_path / rung, rung, losses=[1.0] * 29 + [last], log={"every": 1})
    combined, each = sorted(tables.same_numbers(compare(read_study(tmp_path))))
    assert "29 of 30" in combined and "30 of 30" in each
