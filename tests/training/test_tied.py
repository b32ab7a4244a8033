"""Tied embeddings on two ranks, whose FSDP2 shards the matrix of embedding and head once; and
gradients in FP8."""

import json
import os
import socket
import sys
from contextlib import ExitStack

from experiments.config import recipes
from tests import processes
from tests.make_corpus import words, write_parquet, write_tokenizer

SIZES = "{dim: 64, n_layers: 1, n_heads: 4, n_kv_heads: 2, hidden_dim: 96, vocab_size: 512}"
KEYS = [f"model.sizes={SIZES}", "model.flavor=llama3.2-1B", "training.dtype=float32", "training.steps=4",
        "training.mixed_precision_param=float32", "training.seq_len=32", "training.local_batch_size=1",
        "training.dataset=parquet", "checkpoint.enable=true", "checkpoint.interval=2"]  # fmt: skip


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def test_a_tied_matrix_trains_and_resumes_on_two_ranks(tmp_path):
    """Gradients are one process's to 1e-6 of their norm: float32 rounds to 6e-8, and two ranks add
    up in another order. A matrix that lost one of its two uses would be off by about 1. In FP8 the
    gradient of each rank is rounded by up to 1/16, and on average by less than half of that.
    Training is in FP8, and goes on from a checkpoint bit for bit."""
    write_tokenizer(tmp_path / "tokenizer.json")
    write_parquet(tmp_path / "corpus.parquet", words(200))
    paths = {
        "model.hf_assets_path": "tokenizer.json",
        "training.dataset_path": "corpus.parquet",
        "data.cache_dir": "c",
    }
    recipe = recipes.load(
        "baseline", ["cpu"], [*KEYS, *(f"{key}={tmp_path / name}" for key, name in paths.items())]
    )
    (tmp_path / "recipe.yaml").write_text(recipes.to_yaml(recipe))
    ports = " ".join(map(str, free_ports(4)))
    shared = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "PORTS": ports}
    command = [sys.executable, "-m", "tests.training.tied_ranks", tmp_path]
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(
                processes.started(command, env=shared | {"RANK": rank, "LOCAL_RANK": rank})
            )
            for rank in "01"
        ]
        assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    result = json.loads((tmp_path / "result.json").read_text())
    assert len(result["errors"]) == 11 and max(result["errors"].values()) < 1e-6
    assert all(1e-3 < error < 1 / 32 for error in result["fp8_errors"].values())
    assert len(result["whole"]) == 4 and result["resumed"] == result["whole"][2:]
