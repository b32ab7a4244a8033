"""Shared by all tests. experiments.device comes first: it gives torchtitan its CPU device."""

import logging
import os
import signal
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers and what they start share the cores
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
def process_as_before():
    """A command under test sets up logging to streams that are gone after it, environment variables and signals."""
    root, environment = logging.getLogger(), dict(os.environ)
    handlers, mask = root.handlers[:], signal.pthread_sigmask(signal.SIG_BLOCK, [])
    answers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    root.handlers = handlers
    os.environ.clear()
    os.environ.update(environment)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for number, answer in answers.items():
        signal.signal(number, answer)
