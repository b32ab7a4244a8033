"""A whole study as a user runs it, and what its run directories hold."""

import pytest

from experiments import study
from experiments.config.recipes import FOUR_RECIPES
from experiments.records.run import METRICS, RUN_RECORD, RunRecord, read_log
from tests.runs import SMALL, call, losses_of

pytestmark = pytest.mark.slow

STEPS = 11  # more than the 10 that settle


@pytest.fixture(scope="module")
def four_way(tmp_path_factory):
    """(directory, what was printed) of the four-way study on a CPU, with one layer.

    Inductor's code, which takes a minute, is that of tests/training/test_gradients.py.
    """
    out = tmp_path_factory.mktemp("studies") / "four_way"
    keys = [*SMALL, f"training.steps={STEPS}", "model.sizes={n_layers: 1}"]
    keys += ["compile.backend=aot_eager"]
    code, printed = call(study.main, "four_way", "--overlay", "cpu", "--out", out, *keys)
    assert code == 0, printed
    return out, printed


@pytest.fixture(scope="module")
def runs(four_way):
    """The directory of each recipe's run."""
    return {recipe: four_way[0] / recipe / "seed0" for recipe in FOUR_RECIPES}


def test_every_run_is_in_the_table_and_its_records_are_complete(four_way, runs):
    out, printed = four_way
    assert printed.count("completed at step") == 4 and "no FP8 units" in printed
    assert str(out / "report.html") in printed and (out / "report.html").stat().st_size > 10_000
    for recipe, run in runs.items():
        assert f" {recipe} " in printed
        log, record = read_log(run / METRICS), RunRecord.read(run / RUN_RECORD)
        timing = record.last_attempt.timing
        assert [interval.not_steady for interval in log] == [[n + 1] for n in range(10)] + [[]]
        assert timing.time_to_first_step_s == pytest.approx(sum(timing.startup.values()))
        assert len(record.proof.converted_modules) == (7 if "fp8" in recipe else 0)
        assert record.proof.parameters.in_optimizer == 12


def test_losses(runs):
    """Before the first update only rounding differs: by less than FP8's 3 bits could hide."""
    bf16 = losses_of(runs["baseline"])
    assert bf16[-1] < bf16[0] - 0.05
    for recipe, first, rest in [
        ("baseline_compiled", 1e-3, 0.01),
        ("rowwise_fp8_compiled", 0.02, 0.05),
        ("tensorwise_fp8_compiled", 0.02, 0.05),
    ]:
        losses = losses_of(runs[recipe])
        assert losses[0] == pytest.approx(bf16[0], abs=first)
        assert losses == pytest.approx(bf16, abs=rest)


def test_a_runs_recipe_runs_again_with_the_same_losses(runs, tmp_path, run_here):
    assert run_here(runs["baseline"] / "recipe.yaml", "--out", tmp_path) == 0
    assert losses_of(tmp_path) == losses_of(runs["baseline"])
