"""Recipes with AdamW's states in 8 and 16 bits: the memory that they take."""

import pytest

from experiments.config import recipes
from experiments.training.plan import plan
from tests.runs import TINY


def test_memory_counts_the_bytes_of_the_states():
    """5 bytes a parameter, where bf16 moments take 4."""
    paper = plan(recipes.load("fp8_optimizer"))
    bf16 = plan(recipes.load("baseline_compiled"))
    assert paper.memory_needed - bf16.memory_needed == paper.args.parameters()


def test_a_run_steps_its_parameters_by_these_states(train):
    keys = [*TINY, "training.steps=1", "compile.enable=false"]
    recipe = recipes.load("fp8_optimizer", ["cpu"], keys)
    trainer, _ = train(recipe.config, recipe=recipe)
    parameters = trainer.proof.record().parameters
    assert parameters.moved_in_first_step > 0 and not parameters.still_in_first_step
    assert parameters.bytes_per_parameter == pytest.approx({"weights": 2, "states": 5}, abs=5e-3)
