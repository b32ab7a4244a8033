"""What the notebook says of planted runs."""

import pytest

from analysis.comparison import COMPILED, compare
from analysis.study import read_study
from extensions.phases.tables import phase_costs
from tests.make_runs import stretches, write_run

PART = "bf16_then_fp8"


def test_what_phases_cost_and_buy(tmp_path):
    """bf16 takes 0.4 s a step; the run of both 0.25 s, and 1.5 s of compiling."""
    write_run(tmp_path / COMPILED, COMPILED, 0.4)
    both = {"stretches": stretches({1: False, 7: True}, compile_s=1.5)}
    write_run(tmp_path / PART, PART, 0.25, float8="tensorwise", proves=both)
    costs = phase_costs(compare(read_study(tmp_path)))
    assert costs.loc[COMPILED].tolist() == [0, 1, 1, 0, 1]
    shares = [0.8, 19 / 22, 14 / 17, 1.5, 0.2 + 0.8 * 8777 / 10898]
    assert costs.loc[PART].tolist() == pytest.approx(shares)
