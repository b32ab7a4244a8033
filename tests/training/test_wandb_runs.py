"""Curves of Weights & Biases: a stand-in takes the place of the package wandb."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from unittest.mock import Mock

import pytest

from experiments import run, study
from tests.runs import SMALLEST, TINY

ON = "metrics.enable_wandb=true"
KEYS = ["--overlay", "cpu", *TINY, SMALLEST, ON]


@pytest.fixture
def wandb(monkeypatch, tmp_path):
    """The package, for a user without a key; HOME is an empty folder."""
    package = ModuleType("wandb")
    package.__spec__ = ModuleSpec("wandb", None)
    package.init, package.log, package.finish, package.run = Mock(), Mock(), Mock(), Mock()
    monkeypatch.setitem(sys.modules, "wandb", package)
    for name in ("API_KEY", "MODE", "PROJECT", "BASE_URL", "IDENTITY_TOKEN_FILE", "RUN_NAME"):
        monkeypatch.delenv(f"WANDB_{name}", raising=False)
    monkeypatch.delenv("WANDB_RUN_GROUP", raising=False)
    monkeypatch.delenv("NETRC", raising=False)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return package


@pytest.mark.parametrize("command", [run.main, study.main])
def test_without_the_package_nothing_begins(command, wandb, monkeypatch, fails, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    message = fails(command, "baseline", *KEYS, "--out", tmp_path / "out")
    assert "-m pip install wandb" in message and message.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", [run.main, study.main])
def test_without_a_key_nothing_begins(command, wandb, fails, tmp_path):
    (tmp_path / "home/.netrc").write_text("machine example.org login user password secret\n")
    message = fails(command, "baseline", *KEYS, "--out", tmp_path / "out")
    assert "WANDB_API_KEY" in message and message.count("\n") == 1
    assert not (tmp_path / "out").exists() and not wandb.init.called


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("WANDB_API_KEY", "a key"),
        ("WANDB_MODE", "offline"),
        ("WANDB_MODE", "disabled"),
        ("NETRC", None),
    ],
)
def test_a_key_is_found_and_without_sending_none_is_needed(
    variable, value, wandb, monkeypatch, capsys, tmp_path
):
    file = tmp_path / "keys"
    file.write_text("machine api.wandb.ai login user password secret\n")
    monkeypatch.setenv(variable, value or str(file))
    assert run.main(["baseline", *KEYS, "--dry-run"]) == 0


def test_a_run_is_named_by_study_recipe_and_seed(wandb, monkeypatch, run_here, tmp_path):
    monkeypatch.setenv("WANDB_API_KEY", "a key")
    out = tmp_path / "three_seeds/baseline/seed2"
    out.mkdir(parents=True)
    (tmp_path / "three_seeds/study.yaml").touch()
    assert run_here("baseline", *KEYS, "--seed", 2, "--out", out) == 0
    chosen = wandb.init.call_args.kwargs
    assert (chosen["name"], chosen["group"]) == ("three_seeds/baseline/seed2", "three_seeds")
    assert chosen["project"] == "fp8-recipes" and chosen["config"]["debug"]["seed"] == 2
    assert [call.kwargs["step"] for call in wandb.log.call_args_list] == [1, 2, 3, 4]
    assert all("loss_metrics/global_avg_loss" in call.args[0] for call in wandb.log.call_args_list)
    assert wandb.finish.called


def test_names_that_the_user_chose_stay(wandb, monkeypatch, run_here, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    assert run_here("baseline", *KEYS, "--out", tmp_path / "run") == 0
    chosen = wandb.init.call_args.kwargs
    assert (chosen["project"], chosen["name"], chosen["group"]) == ("mine", "baseline/seed0", None)
