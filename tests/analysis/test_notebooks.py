"""What is generated of the notebooks is current; and which runs they open."""

import json
import os
import runpy
from itertools import chain
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pytest

from analysis import newest
from tests.generated.notebooks import NOTEBOOKS, execute
from tests.make_runs import change_json, write_run

FOUR = [
    "baseline",
    "baseline_compiled",
    "rowwise_fp8_compiled",
    "tensorwise_fp8_compiled",
]
OF_ANY_STUDY = ["four_way", "warmup_and_break_even"]
OF_KEPT_RUNS = {"fp8_lm", "scalings"}  # their texts are about these


def kept(name: str) -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOKS[name].with_suffix(".ipynb"), as_version=4)


def texts_of(notebook: nbformat.NotebookNode) -> list[str]:
    """What the cells printed or returned as text; figures are left out."""
    outputs = chain.from_iterable(cell.get("outputs", []) for cell in notebook.cells)
    found = [out.get("text") or out.data.get("text/plain", "<") for out in outputs]
    return [text for text in found if text[0] != "<"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_executes_in_its_own_folder_and_its_text_is_current(name, monkeypatch):
    monkeypatch.delenv("RUNS", raising=False)
    try:
        executed = execute(name)
    except newest.NothingToShow as missing:
        pytest.skip(str(missing))
    assert texts_of(executed) == texts_of(kept(name)), "stale: run `make notebooks`"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_kept_notebook_shows_its_figures_and_no_timestamps(name):
    outputs = chain.from_iterable(cell.get("outputs", []) for cell in kept(name).cells)
    assert any("image/png" in out.get("data", {}) for out in outputs)
    assert not any("execution" in cell.metadata for cell in kept(name).cells)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    """Two values of RUNS: a study as `make study` leaves it, and an empty folder."""
    study = tmp_path_factory.mktemp("runs") / "four_way"
    for recipe in FOUR:
        write_run(study / recipe / "seed0", recipe, steps=60)
    plan = {"recipes": FOUR, "seeds": [0], "baseline": "baseline"}
    (study / "study.yaml").write_text(json.dumps(plan))
    empty = tmp_path_factory.mktemp("empty")
    return {"study": str(study), "empty": str(empty)}


@pytest.mark.parametrize("folder", ["study", "empty"])
@pytest.mark.parametrize("name", sorted({*NOTEBOOKS} - OF_KEPT_RUNS))
def test_notebook_opens_on_any_runs(name, folder, folders, monkeypatch, capsys):
    monkeypatch.setenv("RUNS", folders[folder])
    monkeypatch.delenv("PUBLISHED_LOGS", raising=False)
    monkeypatch.chdir(NOTEBOOKS[name].parent)
    try:
        cells = runpy.run_path(str(NOTEBOOKS[name]))
    except newest.NothingToShow as nothing:
        assert name == "published" and "make lab" in str(nothing)
        return
    finally:
        plt.close("all")
    if name in OF_ANY_STUDY and folder == "study":
        assert cells["comparison"].study.recipes == FOUR
    else:
        assert ".venv/bin/python -m" in capsys.readouterr().out  # what to run


def write_dated_study(folder: Path, month: int, device: str = "cpu", recipe="baseline") -> None:
    """Write a study of one run, of a month of 2026."""
    facts = {"hardware": {"type": device}, "start": f"2026-0{month}-01T00:00:00Z"}
    write_run(folder / recipe / "seed0", recipe, **facts)
    (folder / "study.yaml").write_text(json.dumps({"recipes": [recipe], "seeds": [0]}))
    os.utime(folder, (month, month))


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """An empty project, whose study `other` has another recipe."""
    monkeypatch.setattr(newest, "ROOT", tmp_path)
    monkeypatch.delenv("RUNS", raising=False)
    (tmp_path / "extensions" / "noise" / "studies").mkdir(parents=True)
    other = tmp_path / "extensions" / "noise" / "studies" / "other.yaml"
    other.write_text("recipes: [baseline_compiled]")
    return tmp_path


def test_kept_results_prefer_a_gpu_and_are_of_one_study(project):
    with pytest.raises(newest.NothingToShow, match="make study"):
        newest.runs()
    write_dated_study(project / "results" / "a", 1, "cuda")
    write_dated_study(project / "results" / "b", 2)
    write_dated_study(project / "extensions" / "noise" / "results" / "other" / "c", 3)
    assert newest.runs().name == "a"
    assert newest.runs("other").name == "c"


def test_own_runs_go_before_kept_ones_and_complete_studies_first(project, monkeypatch, capsys):
    write_dated_study(project / "results" / "kept", 1)
    write_dated_study(project / "runs" / "whole", 2)
    write_dated_study(project / "runs" / "for the other", 3, recipe="baseline_compiled")
    write_dated_study(project / "runs" / "interrupted", 4)
    manifest = project / "runs" / "interrupted" / "baseline" / "seed0" / "manifest.json"
    change_json(manifest, status="interrupted")
    (project / "runs" / "not begun").mkdir()
    (project / "runs" / "not begun" / "study.yaml").touch()
    assert newest.runs().name == "for the other" and newest.runs("other") == newest.runs()
    assert "experiments.study runs/interrupted" in capsys.readouterr().out
    monkeypatch.setenv("RUNS", "kept")
    assert newest.runs().name == "kept"
    monkeypatch.setenv("RUNS", "runs/interrupted")  # from the project, wherever a kernel runs
    assert newest.runs() == project / "runs" / "interrupted"


def test_kept_runs_stand_in_for_a_study_that_lacks_recipes(project, capsys):
    """A notebook about the study needs each of its recipes."""
    plan = {"recipes": ["baseline", "baseline_compiled"], "seeds": [0]}
    (project / "extensions/noise/studies/other.yaml").write_text(json.dumps(plan))
    write_dated_study(project / "results" / "other" / "kept", 1)
    write_dated_study(project / "runs" / "begun", 2)
    (project / "runs" / "begun" / "study.yaml").write_text(json.dumps(plan))
    assert newest.runs("other").name == "kept"
    assert "experiments.study runs/begun" in capsys.readouterr().out
    assert newest.runs().name == "begun"
