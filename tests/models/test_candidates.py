"""The fast FP8 layer's recipes train on a GPU as their parents do."""

import math

import pytest
import torch

from experiments.config import recipes
from tests.runs import TINY, lines_of

CANDIDATES = [name for name in recipes.names() if name.startswith("candidate_")]


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", CANDIDATES)
def test_a_candidate_trains_on_a_gpu_as_its_parent_does(name, tmp_path):
    from experiments.run import main

    last = {}
    for recipe in (name, recipes.load(name).base):
        torch.compiler.reset()  # each recipe compiles anew
        assert main([recipe, "--overlay", "cpu", *TINY, "--out", str(tmp_path / recipe)]) == 0
        last[recipe] = lines_of(tmp_path / recipe)[-1]["loss"]
    assert math.isclose(*last.values(), rel_tol=0.01)
