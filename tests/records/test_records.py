"""What a run leaves behind reads back as it was written, or is refused by file and field."""

import json
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from analysis.newest import RESULTS_FOLDERS
from analysis.runs import read_packed_records, read_packed_runs
from experiments.config import recipes
from experiments.records import files
from experiments.records.files import DiskFull, describe_full_disk, make_run_folder, write_whole
from experiments.records.run import (
    METRICS,
    PACKED_RUNS,
    RUN_RECORD,
    Environment,
    LogInterval,
    RecordError,
    RunRecord,
    last_interval,
    missing_steps,
    read_log,
)
from tests.make_runs import intervals, over, record, resolved, stamp, write_lines
from tests.processes import ROOT

KEPT = [path.parent for place in RESULTS_FOLDERS for path in ROOT.glob(f"{place}/**/{PACKED_RUNS}")]


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.parent.name)
def test_every_kept_run_fits_the_contract(folder, tmp_path):
    runs = read_packed_runs(folder)
    assert runs
    for run, packed in zip(runs, read_packed_records(folder), strict=True):
        assert run.completed and run.length == packed.record.steps
        if run.record.seed is None:  # of another program, which left neither
            assert not packed.environments and packed.recipe == "{}"
            continue
        assert packed.environments.keys() == {each.environment for each in run.attempts}
        (tmp_path / "recipe.yaml").write_text(packed.recipe)
        recipes.load(str(tmp_path / "recipe.yaml"))


def test_runs_that_start_at_once_get_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = {make_run_folder("baseline", 0) for _ in range(3)}
    assert len({folder.parents[1] for folder in folders}) == 3
    assert all(folder.parents[1].is_dir() for folder in folders)


def test_a_record_that_a_full_disk_cuts_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "replace", Mock(side_effect=OSError(28, "No space left")))
    with pytest.raises(DiskFull, match=f"{RUN_RECORD} needs 2 bytes"):
        write_whole(tmp_path / RUN_RECORD, "{}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("compilation failed: [Errno 28] No space left on device"),
        OSError(122, "Disk quota exceeded"),
        OSError("no file and no number"),
    ],
)
def test_a_full_disk_is_found_among_the_causes_of_an_error(error, tmp_path):
    outer = ValueError("outer")
    outer.__cause__ = error
    sentence = describe_full_disk(outer, [tmp_path])
    assert bool(sentence) == ("no number" not in str(error))


def test_a_disk_with_plenty_of_room_is_not_named_as_the_full_one(tmp_path, monkeypatch):
    error = RuntimeError("[Errno 28] No space left on device")
    for free, is_named in ((10**6, True), (10**11, False)):
        monkeypatch.setattr(files, "find_free_bytes", lambda place, free=free: free)
        assert ("free" in describe_full_disk(error, [tmp_path])) == is_named


def test_windows_read_back_without_a_torn_last_line(tmp_path):
    assert last_interval(tmp_path) is None and not read_log(tmp_path / METRICS)
    logged = [LogInterval(**line) for line in intervals([0.1] * 20, [3.0] * 20)]
    for interval in logged:
        interval.append_to(tmp_path / METRICS)
    with open(tmp_path / METRICS, "a") as file:
        file.write('{"step": 3, "elap')
    assert read_log(tmp_path / METRICS) == logged
    assert last_interval(tmp_path) == logged[-1]


def test_a_line_that_does_not_fit_is_named(tmp_path):
    first, second = intervals([0.1] * 2, [3.0] * 2, every=1)
    write_lines(tmp_path / METRICS, [first, second | {"losses": [1.0, 2.0]}])
    with pytest.raises(RecordError, match=f"{METRICS}: line 2"):
        read_log(tmp_path / METRICS)


def test_steps_without_a_record_are_listed():
    assert missing_steps([1, 2, 5, 6, 8], 10) == "3 to 4, 7, 9 to 10"
    assert missing_steps(range(1, 11), 10) == "" and missing_steps([], 1) == "1"


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 10**18},
        {"attempts": []},
        {"attempt": {"start": "9999-12-31T23:59:59+00:00"}},
        {"attempt": {"number": 1_000_000}},
        {"attempt": {"timing": {"time_to_first_step_s": 1e300}}},
        {"attempt": {"timing": {"startup": {"import": "nan"}}}},
        {"proof": {"scalings": 5}},
        {"proof": {"stretches": {"x": {}}}},
        {"proof": {"fp8_flops": 10**400}},
    ],
)
def test_values_that_no_run_has_are_refused(changes):
    """Of records that others send."""
    kept = record("baseline", resolved("baseline"), start=stamp(0), steps=30)
    RunRecord.parse(json.dumps(kept).encode(), RUN_RECORD)
    [attempt] = kept["attempts"]
    changed = over(kept, {key: value for key, value in changes.items() if key != "attempt"})
    if "attempt" in changes:
        changed["attempts"] = [over(attempt, changes["attempt"])]
    with pytest.raises(RecordError, match=RUN_RECORD):
        RunRecord.parse(json.dumps(changed).encode(), RUN_RECORD)


def test_a_line_may_have_a_section_for_each_extension(tmp_path):
    [line] = intervals([0.1] * 2, [3.0] * 2)
    write_lines(tmp_path / METRICS, [line | {"phases": {"in_fp8": 1.0}}])
    [interval] = read_log(tmp_path / METRICS)
    assert interval.phases == {"in_fp8": 1.0}
    write_lines(tmp_path / METRICS, [line | {"phases": 1.0}])
    with pytest.raises(RecordError, match="phases"):
        read_log(tmp_path / METRICS)


@pytest.mark.parametrize(
    "changes",
    [
        {"elapsed_s": 1e300},
        {"elapsed_s": -1.0},
        {"losses": [1e308] * 2},
        {"step": 10**18},
        {"data_wait_s": [-1.0] * 2},
        {"lr": float("inf")},
    ],
)
def test_intervals_that_no_run_has_are_refused(changes, tmp_path):
    [line] = intervals([0.1] * 2, [3.0] * 2)
    write_lines(tmp_path / METRICS, [line | changes])
    with pytest.raises(RecordError, match=f"{METRICS}: line 1"):
        read_log(tmp_path / METRICS)


def test_only_a_file_of_its_own_is_a_record(tmp_path):
    """Reading a pipe or a device would never end, and a link leads to what nobody sent."""
    (tmp_path / "file").write_text("{}")
    (tmp_path / RUN_RECORD).symlink_to("file")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / METRICS)
    for read in (
        lambda: RunRecord.read(tmp_path / RUN_RECORD),
        lambda: Environment.read(tmp_path / "zero"),
        lambda: Environment.read(tmp_path / "folder"),
        lambda: read_log(tmp_path / METRICS),
    ):
        with pytest.raises(RecordError, match="is not a file of its own"):
            read()
