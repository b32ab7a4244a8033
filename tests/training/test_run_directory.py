"""The run directory: who may write into it, and what a start that fails or is killed leaves."""

import errno
import os
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from experiments.config import recipes
from experiments.records.run import Environment, RunRecord, read_log
from experiments.run import main
from experiments.training import attempt
from experiments.training.attempt import RunDirectory, RunEnd
from experiments.training.plan import OpenedPlan, plan
from models.errors import InputError
from tests.make_runs import record, resolved, stamp

KEY = "checkpoint.enable=true"
PLAN = OpenedPlan(
    **vars(plan(recipes.load("tensorwise_fp8_compiled", ["cpu"], [KEY]))),
    token_file=SimpleNamespace(path=Path("a corpus")),
)
RECIPE = recipes.to_yaml(PLAN.recipe)
STOPPED = RunEnd("interrupted", 75)
LINE = (
    '{"attempt":1,"step":1,"elapsed_s":5.0,"loss":8.0,"losses":[8.0],"grad_norm":1.0,"lr":0.1,'
    '"tokens_per_s":9.0,"valid_tokens_per_s":9.0,"step_s":[1.0],"data_wait_s":[0.0],'
    '"not_steady":[1],"peak_memory_bytes":1}\n'
)
TORN = '{"attempt":1,"step":2,"elap'


@pytest.fixture
def claim(tmp_path, monkeypatch):
    """Start an attempt in the test's folder, with a checkpoint of a step."""

    def start(step: int = 0) -> RunDirectory:
        monkeypatch.setattr(attempt.checkpoint, "find_newest", lambda *_: (step, []))
        return RunDirectory(tmp_path, PLAN)

    return start


@pytest.fixture
def unfinished(tmp_path, claim):
    """The directory of an interrupted run with a line of metrics."""
    claim().finish(STOPPED)
    (tmp_path / "metrics.jsonl").write_text(LINE)
    return tmp_path


def contents(path) -> dict:
    return {str(p.relative_to(path)): p.read_text() for p in path.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("existing", "key"),
    [
        ({"thesis.tex": "all of it"}, "holds no unfinished run"),
        ({"recipe.yaml": RECIPE.replace("lr: 0.001", "lr: 0.002")}, "another recipe"),
        ({"recipe.yaml": "a: [1"}, "YAML error"),
        ({"run.json": '{"layout_version": 5, "sta'}, "holds a damaged record"),
        ({"recipe.yaml": RECIPE, "metrics.jsonl": "{}\n"}, "damaged record: move it away"),
        ({"recipe.yaml": RECIPE, "run.json": '{"layout_version": 6}'}, "has layout 6"),
        ({"recipe.yaml": RECIPE, "manifest.json": "{}"}, "python -m tools.convert"),
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
    assert claim().checkpoint_step == 0


def test_runs_that_are_completed_or_in_use_are_refused(unfinished, claim):
    directory = claim()
    with pytest.raises(InputError, match="is being written by another run that is alive"):
        claim()
    directory.finish(RunEnd("completed", 0))
    with pytest.raises(InputError, match="holds a completed run"):
        claim()
    kept = unfinished / "checkpoint/step-2/.metadata"
    kept.parent.mkdir(parents=True)
    kept.touch()
    with pytest.raises(
        InputError, match="cannot be made longer.*enable=true .*initial_load_path=.*step-2"
    ):
        attempt._claim_folder(unfinished, steps=10**6)


@pytest.mark.parametrize(("run", "folder"), [("alone", "alone"), ("study/recipe/seed0", "study")])
def test_what_a_run_says_of_itself(run, folder, tmp_path, monkeypatch):
    """The environment file stands once in the folder of a study, or else in the run's own. Triton
    may have come under another name."""
    there = [package for package in attempt.distributions() if package.name != "triton"]
    monkeypatch.setattr(attempt, "distributions", lambda: there)
    (tmp_path / "study").mkdir()
    (tmp_path / "study/study.yaml").touch()
    RunDirectory(tmp_path / run, PLAN).finish(RunEnd("failed", 1, "for a reason"))
    written = RunRecord.read(tmp_path / run / "run.json")
    [first] = written.attempts
    assert (first.status, first.error) == ("failed", "for a reason")
    assert written.data == PLAN.token_file.path.name
    environment = Environment.read(tmp_path / folder / first.environment)
    assert first.packages.keys() == {"torch", "torchao", "torchtitan"}
    assert first.packages.items() <= environment.packages.items()
    assert (first.git.changes is None) == (environment.diff is None)


def test_a_full_disk_at_the_start_changes_nothing(unfinished, claim):
    def full(path, content) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = contents(unfinished)
    with patch.object(attempt, "write_whole", full), suppress(OSError):
        claim()
    assert contents(unfinished) == before
    assert claim().attempt.number == 2


def test_a_start_that_is_killed_loses_nothing(unfinished, claim):
    child = os.fork()
    if not child:
        attempt._ask_git = lambda *_: os._exit(7)
        with suppress(Exception):
            claim()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    second = claim(step=1)
    assert [attempt.number for attempt in second.record.attempts] == [1, 2]
    assert (unfinished / "metrics.jsonl").read_text() == LINE


def test_a_torn_line_is_no_part_of_the_next_one(unfinished, claim):
    """The machine died while a line was written."""
    with open(unfinished / "metrics.jsonl", "a") as file:
        file.write(TORN)
    directory = claim(step=1)
    [first] = read_log(unfinished / "metrics.jsonl")
    number = directory.attempt.number
    second = first.model_copy(update={"attempt": number, "step": 2, "not_steady": [2]})
    second.append_to(unfinished / "metrics.jsonl")
    assert read_log(unfinished / "metrics.jsonl") == [first, second]


def test_a_proof_holds_for_the_steps_that_count(unfinished, claim):
    """A run that begins again proves itself again."""
    directory = claim(step=1)
    directory.record.proof = RunRecord.model_validate(
        record(PLAN.recipe.name, resolved(PLAN.recipe.name), steps=1, start=stamp(0)), strict=False
    ).proof
    directory.finish(STOPPED)
    resumed = claim(step=1)
    assert resumed.record.proof == directory.record.proof
    resumed.finish(STOPPED)
    assert claim().record.proof is None


def test_a_run_that_begins_again_notes_it(unfinished, claim):
    again = claim()
    [note] = again.attempt.notes
    assert "begins again at step 1, and makes 1 steps on record again" in note
    again.finish(STOPPED)
    assert claim(step=1).attempt.notes == []  # the line of the first attempt is there


def test_lines_that_are_lost_are_noted(unfinished, claim):
    (unfinished / "metrics.jsonl").write_text("")
    [note] = claim(step=3).attempt.notes
    assert "steps 1 to 3 are not on record" in note


def test_the_package_that_python_imports_is_on_record(monkeypatch):
    """An image has another torchao below the environment's."""
    both = [SimpleNamespace(name="torchao", version=version) for version in ("0.18", "0.14")]
    monkeypatch.setattr(attempt, "distributions", lambda: both)
    assert attempt._list_packages() == {"torchao": "0.18"}


def test_a_lost_record_keeps_no_run_from_going_on(unfinished, claim):
    """A report leaves the run out, which does not know all attempts."""
    (unfinished / "run.json").unlink()
    assert claim(step=1).attempt.number == 2
    assert (unfinished / "metrics.jsonl").read_text() == LINE
