"""The tables of the notebook, on planted runs."""

import pytest

from analysis.comparison import COMPILED, compare
from analysis.study import read_study
from extensions.phases.tables import phase_costs
from tests.make_runs import write_run

BF16_THEN_FP8 = "bf16_then_fp8"


def test_what_phases_cost_and_buy(tmp_path):
    """bf16 takes 0.4 s a step after 5 s; the run that switches 0.25 s, and 1.5 s of compiling."""
    write_run(tmp_path / COMPILED, COMPILED, [0.4] * 30)
    bf16 = {"in_fp8": False, "profiled_step": 1, "gemm_flops": {"aten::mm": 1}}
    fp8 = {"in_fp8": True, "profiled_step": 7, "gemm_flops": {"aten::_scaled_mm": 1}}
    proof = {"stretches": {1: bf16, 7: fp8 | {"compile_s": 1.5}}}
    write_run(tmp_path / BF16_THEN_FP8, BF16_THEN_FP8, [0.25] * 30, proof=proof)
    costs = phase_costs(compare(read_study(tmp_path)))
    assert costs.loc[COMPILED].tolist() == [0, 1, 1, 0, 1]
    shares = [0.8, 12.25 / 16.6, 0.25 / 0.4, 1.5, 0.2 + 0.8 * 8777 / 10898]
    assert costs.loc[BF16_THEN_FP8].tolist() == pytest.approx(shares)
