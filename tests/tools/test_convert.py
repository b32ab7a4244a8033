"""Run directories of layout 4 become directories of today: they read alike and resume alike."""

import shutil
from pathlib import Path
from unittest.mock import patch

import pandas as pd
import pytest

from analysis.study import StudyError, read_study
from experiments import run as run_command
from experiments.records.files import lock_folder
from tests.analysis.planted import study
from tests.runs import SMALLEST, TINY, kill, lines_of, losses_of, record_of
from tests.tools.layout_4 import MANIFEST, to_layout_4
from tools import convert

ATTEMPTS = [[20, 25, "running"], [30, 30, "interrupted"]]
RUN = "baseline_compiled/seed0"


@pytest.fixture
def planted(tmp_path):
    """A study of today, and the same study in layout 4; a run was killed and stopped."""
    changes = [{"runs": ["C/0"], "earlier": ATTEMPTS}]
    folder = study(tmp_path / "today", "CT", [0, 1], steps=40, changes=changes)
    older = shutil.copytree(folder, tmp_path / "older")
    for record in older.rglob("run.json"):
        to_layout_4(record.parent)
    return folder, older


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder, but for locks and recipes, whose lines may be in another order."""
    files = [path for path in folder.rglob("[!.]*") if path.is_file()]
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in files
        if path.name not in ("recipe.yaml", "run.json", "metrics.jsonl")
    }


def is_as_today(folder: Path, older: Path) -> None:
    """The converted study has the files of today, and reads alike."""
    assert contents(older) == contents(folder)
    for run, converted in zip(read_study(folder).runs, read_study(older).runs, strict=True):
        assert converted.facts == run.facts and converted.spans == run.spans
        assert converted.record == run.record
        pd.testing.assert_frame_equal(converted.steps, run.steps)


def test_a_study_of_layout_4_reads_alike(planted, capsys):
    folder, older = planted
    with pytest.raises(StudyError, match=r"python -m tools\.convert"):
        read_study(older)
    assert convert.main([str(older)]) == 0
    is_as_today(folder, older)
    assert capsys.readouterr().out.count("converted: ") == 4
    assert convert.main([str(older)]) == 0  # nothing is left to do


@pytest.mark.parametrize("function", ["write_whole", "RunRecord.write", "Path.unlink"])
@pytest.mark.parametrize("calls", range(4))
def test_a_conversion_that_is_killed_goes_on(planted, function, calls):
    folder, older = planted
    owner, _, name = f"convert.{function}".rpartition(".")
    owner = {"convert": convert, "convert.RunRecord": convert.RunRecord, "convert.Path": Path}[
        owner
    ]
    real, made = getattr(owner, name), []

    def act(*arguments, **words):
        made.append(arguments)
        if len(made) > calls:
            raise KeyboardInterrupt
        return real(*arguments, **words)

    with patch.object(owner, name, act), pytest.raises(KeyboardInterrupt):
        convert.convert(older / RUN)
        raise KeyboardInterrupt  # there are fewer calls
    assert convert.main([str(older)]) == 0
    is_as_today(folder, older)


def test_a_start_of_layout_4_that_was_killed_loses_no_line(planted):
    """It moved records to attempt3/, the manifest last, and had not begun again."""
    folder, older = planted
    for moved in (["metrics.jsonl", "timing.json"], ["proof.json", MANIFEST]):
        copy = shutil.copytree(older, older.with_name("copy"), dirs_exist_ok=True)
        (copy / RUN / "attempt3").mkdir(exist_ok=True)
        for name in moved:
            (older / RUN / "attempt3").mkdir(exist_ok=True)
            (older / RUN / name).rename(older / RUN / "attempt3" / name)
            (copy / RUN / name).rename(copy / RUN / "attempt3" / name)
        assert convert.main([str(copy)]) == 0
        is_as_today(folder, copy)
        shutil.rmtree(copy)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metrics.jsonl", "{}\n"),
        ("attempt1/metrics.jsonl", "[1]\n"),
        ("manifest.json", '{"layout_version": 3}'),
        ("attempt2/manifest.json", '{"layout_ver'),
        ("proof.json", "{}"),
    ],
)
def test_a_run_with_a_damaged_record_stays_as_it_is(planted, capsys, name, text):
    _, older = planted
    (older / RUN / name).write_text(text)
    before = contents(older / RUN)
    assert convert.main([str(older)]) == 2
    printed = capsys.readouterr().out
    assert f"stays as it is: {older / RUN}" in printed and printed.count("converted: ") == 3
    assert contents(older / RUN) == before
    endings = [run.ending for run in read_study(older).runs]
    assert endings.count("unreadable records") == 1 and endings.count("completed") == 3


def test_what_cannot_be_converted_is_a_sentence(planted, fails, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "holds no run" in fails(convert.main, tmp_path / "empty")
    with lock_folder(planted[1] / RUN, "run"):
        assert "is alive" in fails(convert.main, planted[1])


def test_an_unfinished_run_resumes_bit_for_bit(tmp_path, run_here, fails):
    """It lost what came after its checkpoint of step 4."""
    out = tmp_path / "run"
    keys = [*TINY, SMALLEST, "training.steps=6", "checkpoint.enable=true", "checkpoint.interval=4"]
    command = ["tensorwise_fp8_compiled", "--overlay", "cpu", "compile.enable=false", *keys]
    assert run_here(*command, "--out", out) == 0
    losses = losses_of(out)
    kill(out)
    shutil.rmtree(out / "checkpoint/step-6")
    to_layout_4(out)
    assert "python -m tools.convert" in fails(run_command.main, *command, "--out", out)
    assert convert.main([str(out)]) == 0
    assert run_here(*command, "--out", out) == 0
    assert [attempt["status"] for attempt in record_of(out)["attempts"]] == ["running", "completed"]
    assert lines_of(out)[-1]["attempt"] == 2 and losses_of(out) == losses
