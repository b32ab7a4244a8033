"""What the notebook says of planted runs."""

import pytest

from analysis.comparison import COMPILED, compare
from analysis.study import read_study
from extensions.phases.tables import phase_costs
from tests.make_runs import stretches, write_run

FP8, PART = "tensorwise_fp8_compiled", "bf16_then_fp8"


def test_what_phases_cost_and_buy(tmp_path):
    """bf16 takes 0.4 s a step, FP8 0.2 s; the run of both 0.25 s, and 1.5 s of compiling."""
    planted = {COMPILED: (0.4, {1: False}), FP8: (0.2, {1: True})}
    planted[PART] = (0.25, {1: False, 7: True})
    for recipe, (step_s, phases) in planted.items():
        proves = {"stretches": stretches(phases, compile_s=1.5 * (recipe == PART))}
        float8 = None if recipe == COMPILED else "tensorwise"
        write_run(tmp_path / recipe, recipe, step_s, float8=float8, proves=proves)
    comparison = compare(read_study(tmp_path))
    costs = phase_costs(comparison)
    assert costs.loc[COMPILED].tolist() == [0, 1, 1, 0, 1]
    shares = [0.8, 19 / 22, 14 / 17, 1.5, 0.2 + 0.8 * 8777 / 10898]
    assert costs.loc[PART].tolist() == pytest.approx(shares)
