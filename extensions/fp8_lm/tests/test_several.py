"""Two processes that exchange gradients in FP8, with the optimizer's states in FP8."""

import pytest

from tests.runs import SMALL, SMALLEST, losses_of, proof_of

KEYS = [*SMALL, SMALLEST, "training.steps=3", "compile.enable=false"]
KEYS += ["metrics.enable_tensorboard=false", "checkpoint.enable=true", "checkpoint.interval=2"]
KEYS += ["sharded.processes=2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs of all levels, of the same without FP8 gradients, and one that resumes at step 2."""
    forked = pytest.importorskip("extensions.sharded.tests.forked")
    folder = tmp_path_factory.mktemp("runs")
    start = f"checkpoint.initial_load_path={folder}/fp8/checkpoint/step-2"
    runs = {
        "fp8": [],
        "float32": ["fp8_lm.gradients=null"],
        "resumed": [start, "checkpoint.initial_load_model_only=false"],
    }
    forked.train(folder, {name: ("fp8_lm", [*KEYS, *keys]) for name, keys in runs.items()})
    return folder


@pytest.mark.slow
def test_two_processes_resume_bit_for_bit(folder):
    whole = losses_of(folder / "fp8")
    assert len(whole) == 3 and losses_of(folder / "resumed") == whole[2:]


@pytest.mark.slow
def test_gradients_are_rounded_and_nothing_else(folder):
    """The first loss is before the first gradient."""
    fp8 = losses_of(folder / "fp8")
    float32 = losses_of(folder / "float32")
    assert fp8[0] == float32[0]
    assert fp8[1:] != float32[1:] and fp8[1:] == pytest.approx(float32[1:], rel=1e-4)


@pytest.mark.slow
def test_the_proof_has_the_bytes_that_were_sent(folder):
    record = proof_of(folder / "fp8").sharded
    size = record["bytes"]["all-to-all of uint8"]
    assert size == record["reduced_bytes"] == record["reduced_bytes_expected"] > 0
