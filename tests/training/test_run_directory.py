"""The run directory: who may write into it, and what a start that fails or is killed leaves."""

import errno
import json
import os
from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from experiments.config import recipes
from experiments.jobs import files
from experiments.run import main
from experiments.training import run_directory
from experiments.training.run_directory import RunDirectory
from models.errors import InputError
from tests.runs import manifest_of

LINE = '{"step": 1}\n'


@pytest.fixture
def unfinished(tmp_path):
    """The directory of an interrupted run with a line of metrics."""
    RunDirectory(tmp_path, "a: 1", {"world_size": 4}).finish("interrupted")
    (tmp_path / "metrics.jsonl").write_text(LINE)
    return tmp_path


def again(path) -> RunDirectory:
    return RunDirectory(path, "a: 1", {"world_size": 4})


def contents(path) -> dict:
    return {str(p.relative_to(path)): p.read_text() for p in path.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("existing", "sentence"),
    [
        ({"thesis.tex": "all of it"}, "holds files and is no run directory"),
        (
            {"manifest.json": '{"layout_version": 1, "status": "completed"}'},
            "holds a completed run",
        ),
        ({"recipe.yaml": "a: 2"}, "holds an unfinished run of another recipe"),
        (
            {"recipe.yaml": "a: " + "[" * 5000, "manifest.json": '{"status": "running"}'},
            "recipe.yaml is damaged: delete",
        ),
        (
            {"recipe.yaml": "a: [1", "manifest.json": '{"status": "running"}'},
            "recipe.yaml is damaged: delete it to go",
        ),
        (
            {"manifest.json": '{"world_size": 2}'},
            "an unfinished run of 2 processes, and this one has 4: start as many",
        ),
    ],
)
def test_directories_that_are_refused_stay_as_they_are(tmp_path, existing, sentence):
    for name, text in existing.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=sentence):
        again(tmp_path)
    assert contents(tmp_path) == existing | ({} if "thesis.tex" in existing else {".lock": ""})


def test_a_directory_that_is_in_use(tmp_path):
    directory = again(tmp_path)
    with pytest.raises(InputError, match="is being written by another run that is alive"):
        again(tmp_path)
    directory.finish("failed")
    assert again(tmp_path).manifest["attempt"] == 2


def test_directories_that_a_command_refuses(tmp_path, fails):
    """One that cannot be made, and one with an unfinished run of other keys."""
    recipe = recipes.to_yaml(recipes.load("baseline", ["cpu"], ["optimizer.lr=2e-3"]))
    (tmp_path / "recipe.yaml").write_text(recipe)
    for out, sentence in (
        ("/proc/nowhere", ""),
        (tmp_path, "holds an unfinished run of another recipe"),
    ):
        errors = fails(main, "baseline", "--overlay", "cpu", "--out", out)
        assert sentence in errors and "choose another --out" in errors


@pytest.mark.parametrize(
    ("names", "make", "kind"),
    [
        (
            ["log.txt", "recipe.yaml", "manifest.json", "metrics.jsonl"],
            os.mkfifo,
            "file",
        ),  # reading would wait for ever
        (["log.txt", "recipe.yaml"], os.mkdir, "file"),
        (["log.txt", "recipe.yaml"], lambda path: path.symlink_to("nowhere"), "file"),
        (["checkpoint", "attempt1", "tb", "damaged_checkpoints"], Path.touch, "folder"),
        (["checkpoint"], os.mkfifo, "folder"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path, names, make, kind):
    for name in names:
        make(tmp_path / name)
        with pytest.raises(InputError, match=f"{name} is not a {kind}: move it away"):
            again(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [name]
        (tmp_path / name).rename(tmp_path.parent / f"{tmp_path.name}-{name}")


@pytest.mark.parametrize(
    "line", ["null", "[1]", "{}", '{"step": "x"}', '{"step": 1.5}', "[" * 100_000, "9" * 5000]
)
def test_lines_that_are_no_window_are_left_out(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_text(LINE + line + "\n")
    assert files.read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1}]
    assert files.read_last_line(tmp_path / "metrics.jsonl") == {}


def test_a_full_disk_at_the_start_changes_nothing(unfinished):
    before = contents(unfinished)

    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    with (
        patch.object(run_directory, "write_whole", full),
        pytest.raises(InputError, match="left on device: make room"),
    ):
        again(unfinished)
    assert contents(unfinished) == before
    assert again(unfinished).manifest["attempt"] == 2


def test_a_start_that_is_killed_loses_no_attempt(unfinished):
    child = os.fork()
    if not child:
        run_directory.git_state = lambda: os._exit(7)
        again(unfinished)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    third = again(unfinished)
    assert third.manifest["attempt"] == 2
    assert (unfinished / "attempt1/metrics.jsonl").read_text() == LINE
    third.take_over(1)
    assert (unfinished / "metrics.jsonl").read_text() == LINE


@pytest.mark.parametrize(
    "manifest", ['{"layout_version": 1, "sta', '{"attempt": "/../x"}', '{"attempt": -1}']
)
def test_records_of_a_damaged_manifest_are_set_aside(unfinished, manifest):
    (unfinished / "manifest.json").write_text(manifest)
    assert again(unfinished).manifest["attempt"] == 2
    assert (unfinished / "attempt1/metrics.jsonl").read_text() == LINE
    assert not (unfinished / "metrics.jsonl").exists() and not (unfinished.parent / "x").exists()


def test_the_summary_is_there_before_the_run_has_ended(tmp_path):
    directory = again(tmp_path)

    def summarize(path, manifest) -> dict:
        assert manifest_of(path)["status"] == "running" and manifest["status"] == "completed"
        return {"made": "from this"}

    directory.finish("completed", None, summarize)
    assert json.loads((tmp_path / "summary.json").read_text()) == {"made": "from this"}
    assert manifest_of(tmp_path)["status"] == "completed"


def test_no_folder_is_given_twice(tmp_path):
    made = [files.new_folder(tmp_path / "runs/four_way-20260101-000000") for _ in range(3)]
    assert [path.name.removeprefix("four_way-20260101-000000") for path in made] == ["", "-2", "-3"]
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="choose another --out"):
        files.new_folder(tmp_path / "file/x")
