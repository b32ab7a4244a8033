"""Runs whose optimizer keeps its states in FP8 and FP16."""

import pytest

from experiments.config import recipes
from experiments.records.files import read
from experiments.records.run import PROOF, Proof
from experiments.training.plan import plan
from models.errors import InputError
from tests.runs import SMALLEST, TINY, losses_of


def test_a_run_proves_itself_and_resumes_exactly(run_here, tmp_path):
    start = tmp_path / "whole/checkpoint/step-2"
    keys = [*TINY, SMALLEST, "checkpoint.enable=true", "checkpoint.interval=2"]
    resume = [f"checkpoint.initial_load_path={start}", "checkpoint.initial_load_model_only=false"]
    for out, more in ("whole", []), ("resumed", resume):
        command = ["fp8_optimizer", "--overlay", "cpu", "--out", tmp_path / out, *keys, *more]
        assert run_here(*command, "compile.enable=false") == 0
    assert losses_of(tmp_path / "resumed") == losses_of(tmp_path / "whole")[2:]
    for other in "baseline", "float32_optimizer", "fp8_optimizer_fp8_master":
        recipe = recipes.load(other, ["cpu"], [*keys, *resume])
        with pytest.raises(InputError, match="has optimizer.states {'first_moment'"):
            plan(recipe, world_size=1)
    parameters = read(tmp_path / "whole" / PROOF, Proof).parameters
    assert parameters.moved_in_first_step > 0 and not parameters.still_in_first_step
    bytes_of = parameters.bytes_per_parameter
    assert bytes_of == pytest.approx({"weights": 2, "states": 5}, abs=5e-3)
