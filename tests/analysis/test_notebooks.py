"""What is generated of the notebooks is current; and which runs they open."""

import json
import os
import runpy
from itertools import chain
from pathlib import Path

import jupytext
import matplotlib.pyplot as plt
import nbformat
import pytest
from nbclient import NotebookClient

from analysis import newest
from experiments.config import yaml_with_origins
from models.errors import PYTHON
from tests.analysis.planted import study
from tools.notebooks import NOTEBOOKS

OF_ANY_STUDY = ["four_way", "warmup_and_break_even"]
ON_ANY_RUNS = [name for name, file in NOTEBOOKS.items() if "newest.find_runs(" in file.read_text()]


def kept(name: str) -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOKS[name].with_suffix(".ipynb"), as_version=4)


def texts_of(notebook: nbformat.NotebookNode) -> list[str]:
    """What the cells printed or returned as text; figures are left out."""
    outputs = chain.from_iterable(cell.get("outputs", []) for cell in notebook.cells)
    found = [out.get("text") or out.data.get("text/plain", "<") for out in outputs]
    return [text for text in found if text[0] != "<"]


@pytest.fixture(scope="module")
def executed() -> dict[str, nbformat.NotebookNode]:
    """All notebooks on the kept runs, one after the other in a kernel that forgets the one before:
    a kernel's imports take longer than a notebook."""
    together = nbformat.v4.new_notebook()
    notebooks = {name: jupytext.read(source) for name, source in NOTEBOOKS.items()}
    for name, notebook in notebooks.items():
        begin = f"%reset -f\nimport os\nos.chdir({str(NOTEBOOKS[name].parent)!r})"
        together.cells += [nbformat.v4.new_code_cell(begin), *notebook.cells]
    client = NotebookClient(together, timeout=120, allow_errors=True, coalesce_streams=True)
    client.execute(env=os.environ | {"RUNS": newest.KEPT})
    return notebooks


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_executes_in_its_own_folder_and_its_text_is_current(name, executed):
    outputs = chain.from_iterable(cell.get("outputs", []) for cell in executed[name].cells)
    errors = [output for output in outputs if output.output_type == "error"]
    if errors and errors[0].ename == newest.NothingToShow.__name__:
        pytest.skip(errors[0].evalue)
    assert not errors
    assert texts_of(executed[name]) == texts_of(kept(name)), "stale: run `make notebooks`"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_kept_notebook_shows_figures_or_tables_and_no_timestamps(name):
    outputs = chain.from_iterable(cell.get("outputs", []) for cell in kept(name).cells)
    shown = set(chain.from_iterable(out.get("data", {}) for out in outputs))
    assert shown & {"image/png", "text/html"}
    assert not any("execution" in cell.metadata for cell in kept(name).cells)


@pytest.mark.parametrize("folder", ["study", "empty"])
@pytest.mark.parametrize("name", ON_ANY_RUNS)
def test_notebook_opens_on_any_runs(name, folder, tmp_path, monkeypatch, capsys):
    """On a study as `make study` leaves it, and on an empty folder."""
    if folder == "study":
        study(tmp_path, "BCRT", seeds=[0], steps=60)
    monkeypatch.setenv("RUNS", str(tmp_path))
    monkeypatch.chdir(NOTEBOOKS[name].parent)
    cells = runpy.run_path(str(NOTEBOOKS[name]))
    plt.close("all")
    if name in OF_ANY_STUDY and folder == "study":
        assert len(cells["comparison"].study.runs) == 4
    else:
        assert f"{PYTHON} -m" in capsys.readouterr().out  # what to run


def write_dated_study(folder: Path, day: int, device="cpu", **facts) -> None:
    """Write a study of one run, of a day."""
    change = {"begin": 86400 * day, "hardware": {"type": device}} | facts
    study(folder, "B", [0], steps=30, changes=[change])
    os.utime(folder, (day, day))


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A project with kept results, whose study `other` has another recipe."""
    monkeypatch.setattr(newest, "ROOT", tmp_path)
    monkeypatch.setattr(yaml_with_origins, "EXTENSIONS", tmp_path / "extensions")
    monkeypatch.delenv("RUNS", raising=False)
    extension = tmp_path / "extensions" / "noise"
    (extension / "studies").mkdir(parents=True)
    (extension / "studies" / "other.yaml").write_text("recipes: [baseline_compiled]")
    write_dated_study(extension / "results" / "other" / "c", 3)
    write_dated_study(tmp_path / "results" / "a", 1, "cuda")
    write_dated_study(tmp_path / "results" / "b", 2)
    return tmp_path


def test_kept_results_prefer_a_gpu_and_are_of_one_study(project):
    assert newest.find_runs().name == "a" and newest.find_runs("other").name == "c"
    with pytest.raises(newest.NothingToShow, match="make study"):
        newest.find_runs("unknown")


def test_a_study_of_a_cpu_hides_no_study_of_a_gpu(project):
    """Of kept studies of GPUs, one with a proof goes first, whenever it was made."""
    write_dated_study(project / "runs" / "own", 5)
    assert newest.find_runs(device="cuda").name == "a"
    assert newest.find_runs(device="cpu").name == "own"
    write_dated_study(project / "results" / "unproven", 9, "cuda")
    file = project / "results/unproven/baseline/seed0/run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"proof": None}))
    assert newest.find_runs(device="cuda").name == "a"
    write_dated_study(project / "runs" / "gpu", 1, "cuda")
    assert newest.find_runs(device="cuda").name == "gpu"


def test_own_complete_runs_go_before_kept_ones(project, monkeypatch, capsys):
    whole, interrupted = project / "runs" / "whole", project / "runs" / "interrupted"
    write_dated_study(whole, 2)
    write_dated_study(interrupted, 4, status="interrupted")
    assert newest.find_runs() == whole
    assert f"experiments.study {interrupted}" in capsys.readouterr().out
    assert (
        newest.find_runs("other").name == "c"
    )  # a notebook about a study needs each of its recipes
    assert not capsys.readouterr().out
    monkeypatch.setenv("RUNS", "kept")
    assert newest.find_runs().name == "a"


def test_runs_that_are_asked_for_are_shown_though_others_are_missing(project, monkeypatch):
    """From the project, wherever a kernel runs."""
    begun = project / "runs" / "begun"
    study(begun, "BC", [0], steps=30, changes=[{"runs": ["C/0"], "absent": True}])
    monkeypatch.setenv("RUNS", "runs/begun")
    assert newest.find_runs() == begun
    monkeypatch.setenv("RUNS", "runs/nowhere")
    with pytest.raises(newest.NothingToShow):
        newest.find_runs()
