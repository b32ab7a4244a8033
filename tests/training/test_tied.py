"""Tied embeddings on two ranks, whose FSDP2 shards the matrix of embedding and head once; and
gradients in FP8."""

import json
import sys

from tests import processes

TIED = [
    "model.flavor=llama3.2-1B",
    "model.sizes={dim: 64, n_layers: 1, n_heads: 4, n_kv_heads: 2, hidden_dim: 96}",
    "model.sizes.vocab_size=4096",
    "training.dtype=float32",
    "training.mixed_precision_param=float32",
    "compile.enable=false",
]


def test_gradients_of_two_ranks_are_those_of_one(tmp_path):
    """float32 rounds to 6e-8 of the norm, and two ranks add up in another order. A matrix that lost
    one of its two uses would be off by about 1. In FP8 the gradient of each rank is rounded by up
    to 1/16, and on average by less than half of that."""
    result = tmp_path / "result.json"
    processes.run([sys.executable, "-m", "tests.training.tied_ranks", result])
    errors = json.loads(result.read_text())
    assert len(errors["float32"]) == 11 and max(errors["float32"].values()) < 1e-6
    assert all(1e-3 < error < 1 / 32 for error in errors["float8"].values())
