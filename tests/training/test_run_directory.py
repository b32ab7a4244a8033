"""The run directory: who may write into it, and what a start that fails or is killed leaves."""

import errno
import os
from contextlib import suppress
from unittest.mock import Mock, patch

import pytest

from experiments.config import recipes
from experiments.records.run import Environment, Manifest
from experiments.run import main
from experiments.training import run_directory
from experiments.training.plan import open_data, plan, to_yaml
from experiments.training.run_directory import RunDirectory
from models import device
from models.errors import InputError

PLAN, _ = open_data(plan(recipes.load("baseline", ["cpu"])))
RECIPE = recipes.to_yaml(PLAN.recipe)
WINDOW = (
    '{"step":1,"elapsed_s":5.0,"loss":8.0,"losses":[8.0],"grad_norm":1.0,"lr":0.1,"tokens_per_s":9.0,'
    '"valid_tokens_per_s":9.0,"step_s":[1.0],"data_wait_s":[0.0],"not_steady":[1],'
    '"peak_memory_bytes":1}\n'
)


@pytest.fixture
def claim(tmp_path):
    """Start an attempt in the test's folder."""
    return lambda planned=PLAN: RunDirectory(tmp_path, planned)


@pytest.fixture
def unfinished(tmp_path, claim):
    """The directory of an interrupted run with a line of metrics."""
    claim().finish("interrupted")
    (tmp_path / "metrics.jsonl").write_text(WINDOW)
    return tmp_path


def contents(path) -> dict:
    return {str(p.relative_to(path)): p.read_text() for p in path.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("existing", "key"),
    [
        ({"thesis.tex": "all of it"}, "holds no unfinished run"),
        ({"recipe.yaml": RECIPE.replace("lr: 0.001", "lr: 0.002")}, "another recipe"),
        ({"recipe.yaml": "a: [1"}, "holds a damaged record"),
        ({"recipe.yaml": "a"}, "holds a damaged record"),
        ({"manifest.json": '{"layout_version": 4, "sta'}, "holds a damaged record"),
        ({"manifest.json": '{"layout_version": 3}'}, "manifest.json: layout_version"),
    ],
)
def test_directories_that_are_refused_stay_as_they_are(tmp_path, claim, fails, existing, key):
    for name, text in existing.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=key):
        claim()
    assert contents(tmp_path).items() <= (existing | {".lock": ""}).items()
    errors = fails(main, "baseline", "--overlay", "cpu", "--out", tmp_path)
    assert key in errors and "choose another --out" in errors


def test_runs_that_are_completed_or_in_use_are_refused(unfinished, claim):
    directory = claim()
    with pytest.raises(InputError, match="is being written by another run that is alive"):
        claim()
    directory.finish("completed")
    with pytest.raises(InputError, match="holds a completed run"):
        claim()


@pytest.mark.parametrize(("length", "passes"), [(256, 999), (128, 1)])
def test_a_plan_is_read_again_only_for_the_recipe_that_it_was_made_of(tmp_path, length, passes):
    """The file's plan has 999 forward passes; whoever edits a key gets a plan anew."""
    path = tmp_path / "recipe.yaml"
    text = to_yaml(PLAN).replace("passes: 1", "passes: 999")
    path.write_text(text.replace("seq_len: 256", f"seq_len: {length}"))
    assert plan(recipes.load(str(path))).passes == passes


def test_what_a_run_says_of_itself(tmp_path):
    """The environment file stands once in the folder of a study, or else in the run's own."""
    (tmp_path / "study/recipe").mkdir(parents=True)
    (tmp_path / "study/study.yaml").touch()
    for run, folder in ("alone", "alone"), ("study/recipe/seed0", "study"):
        RunDirectory(tmp_path / run, PLAN).finish("failed", "for a reason")
        manifest = Manifest.model_validate_json((tmp_path / run / "manifest.json").read_text())
        assert (manifest.status, manifest.error) == ("failed", "for a reason")
        assert manifest.end >= manifest.start and manifest.data == PLAN.token_file.path.name
        content = (tmp_path / folder / manifest.environment).read_text()
        environment = Environment.model_validate_json(content)
        assert manifest.packages.items() <= environment.packages.items()
        assert (manifest.git.changes is None) == (environment.diff is None)
    assert not list((tmp_path / "study/recipe").glob("*/environment-*"))


@pytest.mark.parametrize(
    ("nvidia_smi", "said"),
    [
        ("echo 580.65.06, GPU-1, [N/A], N/A", ("580.65.06", "GPU-1", None, None)),
        ("echo Failed to initialize NVML; exit 18", (None,) * 4),
    ],
)
def test_whatever_nvidia_smi_says_a_run_starts(
    nvidia_smi, said, claim, tmp_path, tmp_path_factory, monkeypatch
):
    program = tmp_path_factory.mktemp("bin") / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{nvidia_smi}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    for name, value in {"name": "NVIDIA H200", "memory_bytes": 2**37, "peak": None}.items():
        monkeypatch.setattr(device, name, lambda value=value: value)
    monkeypatch.setattr(device, "TYPE", "cuda")
    claim()
    text = (tmp_path / "manifest.json").read_text()
    hardware = Manifest.model_validate_json(text).hardware
    found = hardware.driver, hardware.uuid, hardware.sm_clock_max_mhz, hardware.power_limit_w
    assert found == said


def test_a_full_disk_at_the_start_changes_nothing(unfinished, claim):
    before = contents(unfinished)
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    with (
        patch.object(run_directory.files, "write_whole", full),
        pytest.raises(InputError, match="left on device: make room"),
    ):
        claim()
    assert contents(unfinished) == before
    assert claim().manifest.attempt == 2


def test_a_start_that_is_killed_loses_no_attempt(unfinished, claim):
    child = os.fork()
    if not child:
        run_directory._git = lambda *_: os._exit(7)
        with suppress(Exception):
            claim()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    third = claim()
    assert third.manifest.attempt == 2
    assert (unfinished / "attempt1/metrics.jsonl").read_text() == WINDOW
    third.take_over(0)
    assert not (unfinished / "metrics.jsonl").exists()
    third.take_over(1)
    assert (unfinished / "metrics.jsonl").read_text() == WINDOW


def test_a_lost_manifest_keeps_no_run_from_going_on(unfinished, claim):
    (unfinished / "proof.json").write_text("{}")
    (unfinished / "manifest.json").unlink()
    second = claim()
    assert second.manifest.attempt == 2
    second.take_over(1)
    assert (unfinished / "metrics.jsonl").read_text() == WINDOW
    assert contents(unfinished / "attempt1") == {"metrics.jsonl": WINDOW, "proof.json": "{}"}
    assert (unfinished / "proof.json").read_text() == "{}"
