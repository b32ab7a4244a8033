"""The run directory: who may write into it, and what a start that fails or is killed leaves."""

import errno
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from experiments.config import recipes
from experiments.records.run import Environment, Manifest
from experiments.run import main
from experiments.training import attempt
from experiments.training.attempt import End, RunDirectory
from experiments.training.plan import plan
from models.errors import InputError

KEY = "checkpoint.enable=true"
PLAN = replace(
    plan(recipes.load("tensorwise_fp8_compiled", ["cpu"], [KEY])),
    token_file=SimpleNamespace(path=Path("a corpus")),
)
RECIPE = recipes.to_yaml(PLAN.recipe)
STOPPED = End("interrupted", 75)
INTERVAL = (
    '{"step":1,"elapsed_s":5.0,"loss":8.0,"losses":[8.0],"grad_norm":1.0,"lr":0.1,"tokens_per_s":9.0,'
    '"valid_tokens_per_s":9.0,"step_s":[1.0],"data_wait_s":[0.0],"not_steady":[1],'
    '"peak_memory_bytes":1}\n'
)


@pytest.fixture
def claim(tmp_path, monkeypatch):
    """Start an attempt in the test's folder, with a checkpoint of a step."""

    def start(step: int = 0) -> RunDirectory:
        monkeypatch.setattr(attempt.checkpoint, "newest", lambda *_: (step, []))
        return RunDirectory(tmp_path, PLAN)

    return start


@pytest.fixture
def unfinished(tmp_path, claim):
    """The directory of an interrupted run with a line of metrics."""
    claim().finish(STOPPED)
    (tmp_path / "metrics.jsonl").write_text(INTERVAL)
    return tmp_path


def contents(path) -> dict:
    return {str(p.relative_to(path)): p.read_text() for p in path.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("existing", "key"),
    [
        ({"thesis.tex": "all of it"}, "holds no unfinished run"),
        ({"recipe.yaml": RECIPE.replace("lr: 0.001", "lr: 0.002")}, "another recipe"),
        ({"recipe.yaml": "a: [1"}, "YAML error"),
        ({"manifest.json": '{"layout_version": 4, "sta'}, "holds a damaged record"),
        ({"recipe.yaml": RECIPE, "metrics.jsonl": "{}\n"}, "damaged record: move it away"),
        ({"recipe.yaml": RECIPE, "attempt1/metrics.jsonl": "{}\n"}, "attempt1/metrics.jsonl"),
    ],
)
def test_directories_that_are_refused_stay_as_they_are(tmp_path, fails, existing, key):
    for name, text in existing.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert key in fails(main, PLAN.recipe.name, "--overlay", "cpu", "--out", tmp_path, KEY)
    assert contents(tmp_path).items() <= (existing | {".lock": ""}).items()


def test_folders_that_lost_all_files_are_taken(tmp_path, claim):
    """As on a file system that deletes old files."""
    for name in ("checkpoint/step-2", "tb"):
        (tmp_path / name).mkdir(parents=True)
    assert claim().step == 0


def test_runs_that_are_completed_or_in_use_are_refused(unfinished, claim):
    directory = claim()
    with pytest.raises(InputError, match="is being written by another run that is alive"):
        claim()
    directory.finish(End("completed", 0))
    with pytest.raises(InputError, match="holds a completed run"):
        claim()
    kept = unfinished / "checkpoint/step-2/.metadata"
    kept.parent.mkdir(parents=True)
    kept.touch()
    with pytest.raises(
        InputError, match="cannot be made longer.*enable=true .*initial_load_path=.*step-2"
    ):
        attempt._claim(unfinished, steps=10**6)


@pytest.mark.parametrize(("length", "layers"), [(256, 1), (128, 28)])
def test_a_plan_is_read_again_only_for_the_recipe_that_it_was_made_of(tmp_path, length, layers):
    """The file's plan has one layer in FP8; whoever edits a key gets a plan anew."""
    path, fp8 = tmp_path / "recipe.yaml", PLAN.fp8._replace(layers=frozenset(["output"]))
    text = recipes.to_yaml(PLAN.recipe, replace(PLAN, fp8=fp8))
    path.write_text(text.replace("seq_len: 256", f"seq_len: {length}"))
    assert len(plan(recipes.load(str(path))).fp8.layers) == layers


@pytest.mark.parametrize(("run", "folder"), [("alone", "alone"), ("study/recipe/seed0", "study")])
def test_what_a_run_says_of_itself(run, folder, tmp_path, monkeypatch):
    """The environment file stands once in the folder of a study, or else in the run's own. Triton
    may have come under another name."""
    there = [package for package in attempt.distributions() if package.name != "triton"]
    monkeypatch.setattr(attempt, "distributions", lambda: there)
    (tmp_path / "study").mkdir()
    (tmp_path / "study/study.yaml").touch()
    RunDirectory(tmp_path / run, PLAN).finish(End("failed", 1, "for a reason"))
    manifest = Manifest.read(tmp_path / run / "manifest.json")
    assert (manifest.status, manifest.error) == ("failed", "for a reason")
    assert manifest.data == PLAN.token_file.path.name
    environment = Environment.read(tmp_path / folder / manifest.environment)
    assert manifest.packages.keys() == {"torch", "torchao", "torchtitan"}
    assert manifest.packages.items() <= environment.packages.items()
    assert (manifest.git.changes is None) == (environment.diff is None)


def test_a_full_disk_at_the_start_changes_nothing(unfinished, claim):
    def full(path, content) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = contents(unfinished)
    with patch.object(attempt, "write_whole", full), suppress(OSError):
        claim()
    assert contents(unfinished) == before
    assert claim().manifest.attempt == 2


def test_a_start_that_is_killed_loses_no_attempt(unfinished, claim):
    child = os.fork()
    if not child:
        attempt._git = lambda *_: os._exit(7)
        with suppress(Exception):
            claim()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    third = claim()
    assert third.manifest.attempt == 2
    assert (unfinished / "attempt1/metrics.jsonl").read_text() == INTERVAL
    assert not (unfinished / "metrics.jsonl").exists()
    third.finish(STOPPED)
    assert claim(step=1).manifest.attempt == 3
    assert (unfinished / "metrics.jsonl").read_text() == INTERVAL


def test_a_run_that_begins_again_notes_it(unfinished, claim):
    again = claim()
    [note] = again.manifest.notes
    assert "begins again at step 1, and makes 1 steps on record again" in note
    again.finish(STOPPED)
    assert claim(step=1).manifest.notes == []  # the line of the first attempt is taken over


def test_lines_that_are_lost_are_noted(unfinished, claim):
    (unfinished / "metrics.jsonl").write_text("")
    [note] = claim(step=3).manifest.notes
    assert "steps 1 to 3 are not on record" in note


def test_the_package_that_python_imports_is_on_record(monkeypatch):
    """An image has another torchao below the environment's."""
    both = [SimpleNamespace(name="torchao", version=version) for version in ("0.18", "0.14")]
    monkeypatch.setattr(attempt, "distributions", lambda: both)
    assert attempt._packages() == {"torchao": "0.18"}


def test_a_lost_manifest_keeps_no_run_from_going_on(unfinished, claim):
    (unfinished / "proof.json").write_text("{}")
    (unfinished / "manifest.json").unlink()
    assert claim(step=1).manifest.attempt == 2
    lost = {"metrics.jsonl": INTERVAL, "proof.json": "{}"}
    assert contents(unfinished / "attempt1") == lost
    assert contents(unfinished).items() >= lost.items()
