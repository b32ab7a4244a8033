"""Runs whose optimizer keeps its states in FP8 and FP16."""

import json

import pytest

from experiments.config import recipes
from experiments.training.plan import plan
from models.errors import InputError
from tests.runs import TINY, losses_of


def test_a_run_proves_itself_and_resumes_exactly(run_here, tmp_path):
    keys = [*TINY, "training.steps=5", "lr_scheduler.warmup_steps=2", "compile.enable=false"]
    keys += ["checkpoint.enable=true", "checkpoint.interval=2", "metrics.enable_tensorboard=false"]
    start = [
        "checkpoint.initial_load_model_only=false",
        f"checkpoint.initial_load_path={tmp_path}/whole/checkpoint/step-2",
    ]
    for out, more in ("whole", []), ("resumed", start):
        assert (
            run_here("fp8_optimizer", "--overlay", "cpu", "--out", tmp_path / out, *keys, *more)
            == 0
        )
    assert losses_of(tmp_path / "resumed") == losses_of(tmp_path / "whole")[2:]
    for other in "baseline", "float32_optimizer", "fp8_optimizer_fp8_master":
        with pytest.raises(
            InputError, match="has optimizer.states {'first_moment': 'float8_e4m3fn', .* to true"
        ):
            plan(recipes.load(other, ["cpu"], [*keys, *start]), world_size=1)
    proof = json.loads((tmp_path / "whole/proof.json").read_text())["parameters"]
    assert proof["moved_in_first_step"] > 0 and not proof["still_in_first_step"]
    assert {kind: round(count, 2) for kind, count in proof["bytes_per_parameter"].items()} == {
        "weights": 2,
        "states": 5,
    }
