"""FP8 for a part of a run's steps: the same numbers as runs that stop and go on in the other
precision. Compiled layers that switch are in tests/models/test_float8.py."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments.config import recipes
from experiments.config.rules import fp8_steps
from experiments.records.files import read
from experiments.records.run import PROOF, TIMING, Proof, Timing
from experiments.training import trainer
from experiments.training.plan import plan
from experiments.training.run_directory import identity
from tests.runs import SMALLEST, TINY, kill, losses_of

FP8, FLOAT8 = "tensorwise_fp8_compiled", "quantize.linear.float8"
CORPUS = SimpleNamespace(path=Path("corpus"))
EAGER = ["compile.enable=false"]


def phase(first: int | str, last: int | str) -> list[str]:
    return [f"{FLOAT8}.first_step={first}", f"{FLOAT8}.last_step={last}"]


@pytest.fixture
def losses(run_here, tmp_path):
    """Trains a recipe in this process up to a step, of which it keeps a checkpoint; its losses, one
    a step."""

    def train(
        out: str, recipe: str, steps: int, keys: list[str], after: str | None = None
    ) -> list[float]:
        """`after` names the run whose last checkpoint this one begins with."""
        keys = [*TINY, SMALLEST, *keys, f"training.steps={steps}", "checkpoint.enable=true"]
        keys += ["lr_scheduler.warmup_steps=2"]
        if after:
            [start] = (tmp_path / after / "checkpoint").iterdir()
            keys.append(f"checkpoint.initial_load_path={start}")
            keys.append("checkpoint.initial_load_model_only=false")
        assert run_here(recipe, "--overlay", "cpu", "--out", tmp_path / out, *keys) == 0
        return losses_of(tmp_path / out)

    return train


def test_a_switch_is_what_checkpoint_and_relaunch_is(losses, tmp_path):
    """bf16, FP8 and bf16 again, two steps each; the run is interrupted and goes on in the phase of
    its step."""
    out, keys = tmp_path / "switched", [*EAGER, *phase(3, 4)]
    losses("switched", FP8, 5, keys)
    switches = read(out / TIMING, Timing).switches
    assert {step: switch.in_fp8 for step, switch in switches.items()} == {"3": True, "5": False}
    kill(out)
    switched = losses("switched", FP8, 6, keys)

    parts = losses("first", "baseline", 2, EAGER)
    assert losses("never", FP8, 2, keys) == parts
    parts += losses("second", FP8, 4, EAGER, after="first")
    parts += losses("third", "baseline", 6, EAGER, after="second")
    assert switched == parts

    proof = read(out / PROOF, Proof)
    phases = {first: (phase.in_fp8, phase.profiled_step) for first, phase in proof.phases.items()}
    assert phases == {"1": (False, 2), "3": (True, 4), "5": (False, 6)}  # of both attempts
    assert proof.profiled_step == 4


def test_a_checkpoint_is_of_its_phases():
    """The length of a run may change, unless its last step in FP8 depends on it."""
    short, long = (
        identity(plan(recipes.load("fp8_then_bf16", ["cpu"], [f"training.steps={steps}"])), CORPUS)
        for steps in (60, 100)
    )
    assert (short.pop(f"{FLOAT8}.last_step"), long.pop(f"{FLOAT8}.last_step")) == (54, 90)
    assert short == long


def test_rates_leave_out_the_steps_after_a_switch(train, monkeypatch):
    """The one that compiles, the next, and the profiled one; here without the ten at the start of
    the process.

    FP8's ranges are due in steps 2 and 7, the latter in bf16.
    """
    monkeypatch.setattr(trainer, "NOT_STEADY_STEPS", 0)
    keys = [*TINY, SMALLEST, *EAGER, *phase(2, 6), "training.steps=7"]
    config = recipes.load(FP8, ["cpu"], [*keys, "metrics.fp8_ranges_every=5"]).config
    _, windows = train(config, 7)
    assert [window.step for window in windows if not window.not_steady] == [5, 6]
    assert [window.step for window in windows if window.fp8_ranges] == [2]


@pytest.mark.parametrize(
    ("name", "overlay", "steps"),
    [
        ("bf16_then_fp8", [], range(101, 1001)),
        ("fp8_then_bf16", [], range(1, 901)),
        ("bf16_fp8_bf16", ["cpu"], range(11, 55)),
        (FP8, ["cpu"], range(1, 61)),
        ("baseline", ["cpu"], range(0)),
    ],
)
def test_steps_in_fp8(name, overlay, steps):
    assert fp8_steps(recipes.load(name, overlay).config) == steps
