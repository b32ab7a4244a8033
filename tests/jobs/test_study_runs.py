"""A study's runs: side by side, on after a failure. Stand-ins train in their
place; tests/jobs/test_study.py has real ones."""

import re
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from rich.console import Console

from analysis import report
from experiments.jobs import runner
from experiments.jobs.command import BAD_INPUT, Stop
from experiments.jobs.runner import Run, run_all
from experiments.records.files import read
from experiments.records.run import Manifest
from tests.runs import run_study

NAMES = ["baseline", "baseline_compiled"]


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start a study of stand-ins in a folder; gives exit code and output."""
    monkeypatch.setattr(runner, "COMMAND", "tests.jobs.stand_in")
    monkeypatch.setattr(runner, "COMPILE_CACHES", {"TORCHINDUCTOR_CACHE_DIR"})
    monkeypatch.setattr(report, "write_page", Mock())  # which would draw figures for seconds
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("STEP_S", "0.01")
    return partial(run_study, *NAMES, "--overlay", "cpu", "--out", tmp_path / "study")


def manifests(out: Path) -> list[Manifest]:
    return [read(out / name / "seed0/manifest.json", Manifest) for name in NAMES]


def test_a_failure_stops_no_other_run_and_the_study_goes_on_later(start, tmp_path, monkeypatch):
    """Side by side: each run has a GPU, and a folder to compile in that is gone afterwards. Where
    there is no terminal, a line says how far each run is."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    monkeypatch.setattr(runner, "LINE_EVERY_S", 0.0)
    monkeypatch.setenv("FAILING", "baseline")
    out = tmp_path / "study"
    code, printed = start("training.steps=90")
    assert code == 1 and f".venv/bin/python -m experiments.study {out}" in printed
    assert "baseline seed 0: started on GPU 4" in printed
    assert "baseline_compiled seed 0: started on GPU 7" in printed
    assert "baseline seed 0: failed: error: no compiler" in printed
    line = r"baseline_compiled seed 0: step \d+/90  loss .*  all runs: 0:00:\d+ left"
    assert re.search(line, printed), printed
    assert "baseline_compiled seed 0: completed at step 90" in printed
    assert printed.rindex("started on GPU") < printed.index("completed at step")

    monkeypatch.delenv("FAILING")
    code, printed = run_study(out)
    assert code == 0 and f"complete already: {out}/baseline_compiled/seed0" in printed
    ends = [(manifest.status, manifest.hardware.visible_devices) for manifest in manifests(out)]
    assert ends == [("completed", "4"), ("completed", "7")]
    caches = {path.read_text() for path in out.rglob("caches")}
    assert len(caches) == 2 and not any(Path(folder).exists() for folder in caches)


def test_a_run_that_cannot_start_stops_no_other(tmp_path, capsys):
    (tmp_path / "file").touch()
    runs = [Run("a", tmp_path / "file/run", "", 9) for _ in range(2)]
    run_all(runs, Console(width=200), Stop())
    assert [run.code for run in runs] == [BAD_INPUT] * 2
    assert capsys.readouterr().out.count(f"a: failed: {tmp_path}/file/run: Not a directory") == 2
