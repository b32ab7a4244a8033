"""Candidates for speed: their recipes and keys do what they say. Fused projections have a file of
their own."""

import math

import pytest
import torch

from experiments.config import recipes, studies
from tests.runs import SMALLEST, TINY, lines_of

ONLY_ON_A_GPU = (
    "cuda_graphs",
    "fast_accumulation",
    "fast_accumulation_tensorwise",
    "fast_rowwise",
    "fast_tensorwise",
    "tuned_pointwise",
)
CANDIDATES = [name for name in recipes.names() if name.startswith("candidate_")]


def test_the_study_of_losses_has_all_that_a_cpu_can_tell_apart():
    missing = set(CANDIDATES) - set(studies.load(["candidates"]).recipes)
    known = {f"candidate_{name}" for name in ONLY_ON_A_GPU}
    assert missing == known, (
        "a candidate goes into recipes/studies/candidates.yaml, or is named in ONLY_ON_A_GPU"
    )


@pytest.mark.parametrize(
    "name, step", [("candidate_cuda_graphs", 2), ("tensorwise_fp8_compiled", 3)]
)
def test_the_proof_is_of_a_step_that_calls_operators(name, step, train):
    config = recipes.load(name, ["cpu"], [*TINY, SMALLEST]).config
    config.compile.enable = False  # to be quick
    with torch._inductor.config.patch({"triton.cudagraphs": None}):
        trainer, _ = train(config, count=4)
        assert torch._inductor.config.triton.cudagraphs == (step == 2)
    assert trainer.proof.record().profiled_step == step


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
