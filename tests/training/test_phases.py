"""FP8 for a part of a run's steps: the same numbers as runs that stop and go on in the other
precision."""

import json

import pytest

from experiments.config import recipes
from experiments.config.phases import fp8_steps
from experiments.training import trainer
from models.errors import InputError
from tests.runs import TINY, losses_of, manifest_of

FP8, FLOAT8 = "tensorwise_fp8_compiled", "quantize.linear.float8"
EAGER, COMPILED = ["compile.enable=false"], []


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
        keys = [
            *TINY,
            *keys,
            f"training.steps={steps}",
            "lr_scheduler.warmup_steps=2",
            "checkpoint.enable=true",
        ]
        if after:
            [start] = (tmp_path / after / "checkpoint").iterdir()
            keys += [
                f"checkpoint.initial_load_path={start}",
                "checkpoint.initial_load_model_only=false",
            ]
        assert run_here(recipe, "--overlay", "cpu", "--out", tmp_path / out, *keys) == 0
        return losses_of(tmp_path / out)

    return train


# ---- the same numbers ----


def test_a_switch_is_what_checkpoint_and_relaunch_is(losses, tmp_path):
    """bf16, FP8 and bf16 again, two steps each; the run is interrupted and goes on in the phase of
    its step."""
    out, keys = tmp_path / "switched", [*EAGER, *phase(3, 4)]
    losses("switched", FP8, 5, keys)
    first_attempt = json.loads((out / "timing.json").read_text())
    (out / "manifest.json").write_text(json.dumps(manifest_of(out) | {"status": "running"}))
    switched = losses("switched", FP8, 6, keys)

    parts = losses("first", "baseline", 2, EAGER)
    parts += losses("second", FP8, 4, EAGER, after="first")
    parts += losses("third", "baseline", 6, EAGER, after="second")
    assert switched == parts

    assert {step: switch["in_fp8"] for step, switch in first_attempt["switches"].items()} == {
        "3": True,
        "5": False,
    }
    proof = json.loads((out / "proof.json").read_text())
    assert {first: phase["in_fp8"] for first, phase in proof["phases"].items()} == {
        "1": False,
        "3": True,
        "5": False,
    }
    assert [phase["profiled_step"] for phase in proof["phases"].values()] == [
        2,
        4,
        6,
    ]  # both attempts'
    assert proof["profiled_step"] == 4


def test_never_and_always(losses):
    baseline, never = (
        losses(*run) for run in (("a", "baseline", 2, EAGER), ("b", FP8, 2, [*EAGER, *phase(3, 9)]))
    )
    fp8, always = (
        losses(*run) for run in (("c", FP8, 2, EAGER), ("d", FP8, 2, [*EAGER, *phase(1, 2)]))
    )
    assert never == baseline != fp8 == always


@pytest.mark.slow
def test_compiled_too(losses, tmp_path):
    switched = losses("switched", FP8, 5, [*COMPILED, *phase(3, 4)])
    assert losses("first", "baseline_compiled", 2, COMPILED) == switched[:2]
    assert losses("second", FP8, 4, COMPILED, after="first") == switched[2:4]
    switches = json.loads((tmp_path / "switched/timing.json").read_text())["switches"]
    assert switches["3"]["compile_s"] > 0 and switches["5"]["compile_s"] == 0


def test_a_checkpoint_is_of_its_phases(monkeypatch):
    """The length of a run may change, unless its last step in FP8 depends on it."""
    monkeypatch.setattr(trainer.dist, "get_world_size", lambda: 1)

    def differing(*keys: str) -> dict:
        one, other = (
            trainer._identity(
                recipes.load("fp8_then_bf16", ["cpu"], [*keys, length]).config, "corpus"
            )
            for length in ("training.steps=60", "training.steps=100")
        )
        return {key: (one[key], other[key]) for key in one if one[key] != other[key]}

    assert differing() == {f"{FLOAT8}.last_step": (54, 90)}
    assert not differing(f"{FLOAT8}.last_step=54")


def test_rates_leave_out_the_steps_after_a_switch(train, monkeypatch):
    """The one that compiles, the next, and the profiled one; here without the ten at the start of
    the process.

    FP8's ranges are due in steps 2 and 7, the latter in bf16.
    """
    monkeypatch.setattr(trainer, "NOT_STEADY_STEPS", 0)
    keys = [*TINY, *EAGER, *phase(2, 6), "training.steps=7", "metrics.fp8_ranges_every=5"]
    _, windows = train(recipes.load(FP8, ["cpu"], keys).config, 7)
    assert [window.step for window in windows if not window.not_steady] == [5, 6]
    assert [window.step for window in windows if window.fp8_ranges] == [2]


# ---- the keys ----


@pytest.mark.parametrize(
    ("name", "overlay", "steps"),
    [
        ("bf16_then_fp8", [], range(101, 1001)),
        ("fp8_then_bf16", [], range(1, 901)),
        ("bf16_fp8_bf16", [], range(101, 901)),
        ("bf16_fp8_bf16", ["cpu"], range(11, 55)),
        (FP8, ["cpu"], range(1, 61)),
        ("baseline", ["cpu"], range(0)),
    ],
)
def test_steps_in_fp8(name, overlay, steps):
    assert fp8_steps(recipes.load(name, overlay).config) == steps


@pytest.mark.parametrize(
    ("name", "keys", "sentence"),
    [
        (
            "bf16_then_fp8",
            ["first_step=later"],
            "first_step: should be 'after_warmup'",
        ),
        (
            "bf16_then_fp8",
            ["last_step=0"],
            "last_step: should be 'before_last_tenth'",
        ),
        ("bf16_then_fp8", ["first_step=1.5"], "first_step: should be 'after_warmup'"),
        (
            "bf16_then_fp8",
            ["last_step=10"],
            "last_step: is step 10, before first_step, which is 11: FP8 would never",
        ),
        ("baseline", ["first_step=5"], "recipe_name: is null, so there is no FP8 to switch"),
        (
            "bf16_then_fp8",
            ["enable_fsdp_float8_all_gather=true"],
            "gathers weights in FP8, of which bf16 steps cannot",
        ),
    ],
)
def test_what_phases_cannot_be(name, keys, sentence):
    with pytest.raises(InputError, match=sentence):
        recipes.load(name, ["cpu"], [f"{FLOAT8}.{key}" for key in keys])


def test_cuda_graphs_would_hide_what_a_phase_does():
    with pytest.raises(InputError, match="leaves nothing to prove a later phase by"):
        recipes.load("bf16_then_fp8", ["cpu"], ["compile.cuda_graphs=true"])
