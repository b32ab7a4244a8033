"""Shared by all tests. experiments.device comes first: it gives torchtitan its CPU device."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from experiments import device  # noqa: F401

ROOT = Path(__file__).resolve().parent.parent
TINY = ["training.steps=4", "training.seq_len=64", "training.local_batch_size=1"]


def pytest_collection_modifyitems(items):
    """GPU tests skip themselves where there is none."""
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


@pytest.fixture(scope="session")
def token_cache(tmp_path_factory) -> str:
    """Override that points runs at one cache of prepared tokens, inside the repository's own if that is there."""
    return f"data.cache_dir={ROOT / '.cache' / 'data'}"


@pytest.fixture(scope="session")
def cli(token_cache):
    """`cli("experiments.run", "baseline", …)`: the command as a user types it, in a process of its own."""

    def call(module: str, *args: str, env: dict | None = None, **kwargs) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-m", module, *map(str, args)],
            cwd=ROOT, capture_output=True, text=True, timeout=300, env={**os.environ, **(env or {})}, **kwargs,
        )  # fmt: skip

    return call
