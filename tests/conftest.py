"""Shared by all tests. experiments.device comes first: it gives torchtitan its CPU device."""

import logging
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


@pytest.fixture(autouse=True)
def logging_as_before():
    """A command under test sets up logging to streams that are gone after it."""
    root = logging.getLogger()
    before = root.handlers[:]
    yield
    root.handlers = before
