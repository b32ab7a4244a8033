"""mxfp8_compiled on the stand-in for a GPU of tests/training/test_cuda_path.py, as a B200:
torchao's kernels are compiled for it and launched, and compute nothing."""

import pytest

from tests.runs import attempt_of, proof_of
from tests.training import test_cuda_path
from tests.training.test_cuda_path import stand_in, train  # noqa: F401 - fixtures

pytestmark = test_cuda_path.pytestmark
BLACKWELL = {"CUDA_BLACKWELL": "1"}


@pytest.fixture
def proof_on(train):  # noqa: F811
    """Trains the recipe on a kind of GPU; gives the run's proof."""

    def call(**variables: str):
        run, _ = train("mxfp8_compiled", **variables)
        assert attempt_of(run)["status"] == "completed"
        assert "Traceback" not in (run / "log.txt").read_text()
        return proof_of(run)

    return call


def test_blackwell_multiplies_with_block_scales(proof_on):
    """Three matmuls for each of 28 layers, 64 tokens a pass."""
    proof = proof_on(**BLACKWELL)
    counts = proof.scalings["block_scaled_matmuls"]
    assert not proof.emulated and proof.fp8_flops == proof.fp8_flops_expected
    assert sum(counts.values()) == 3 * len(proof.converted_modules) == 84
    assert counts["64 x 256 x 768"] == 12  # w1 and w3 of 4 blocks, and the input's gradient of w2


def test_hopper_emulates(proof_on):
    proof = proof_on()
    assert proof.emulated and "scalings" not in proof.model_extra
