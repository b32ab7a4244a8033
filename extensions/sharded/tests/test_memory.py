"""The bytes of a device of several."""

import pytest

from experiments.config import recipes
from experiments.training.plan import plan


def test_the_estimate_of_memory_is_what_the_allocator_counts():
    """Peak GiB on each of two GPUs, counted as those of tests/training/test_run.py"""
    keys = ["sharded.processes=2", "activation_checkpoint.mode=full"]
    needed = plan(recipes.load("baseline", [], keys)).memory_needed
    assert needed / 2**30 == pytest.approx(34.07, rel=0.02)
