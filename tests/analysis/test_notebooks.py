"""What is generated of the notebooks is current; and which runs they open."""

from itertools import chain

import nbformat
import pytest

from analysis import newest
from analysis.notebooks.execute import NOTEBOOKS, execute
from tests.make_runs import write_run


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
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    assert texts_of(executed) == texts_of(kept(name)), "stale: run `make notebooks`"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_kept_notebook_shows_its_figures_and_no_timestamps(name):
    outputs = chain.from_iterable(cell.get("outputs", []) for cell in kept(name).cells)
    assert any("image/png" in out.get("data", {}) for out in outputs)
    assert not any("execution" in cell.metadata for cell in kept(name).cells)


def test_newest_results_prefer_a_gpu_and_are_of_one_study(tmp_path, monkeypatch):
    monkeypatch.setattr(newest, "ROOT", tmp_path)
    monkeypatch.delenv("RUNS", raising=False)
    with pytest.raises(FileNotFoundError, match="make study"):
        newest.results()
    kept = {
        "results/a": "cuda",
        "results/b": "cpu",
        "results/other/c": "cuda",
        "extensions/noise/results/noise/d": "cuda",
        "runs/mine": "cuda",
    }
    for month, (folder, device) in enumerate(kept.items(), start=1):
        facts = {"hardware": {"type": device}, "start": f"2026-0{month}-01T00:00:00Z"}
        write_run(tmp_path / folder / "baseline" / "seed0", **facts)
        (tmp_path / folder / "study.yaml").touch()
    assert newest.results().name == "a" and newest.results("other").name == "c"
    (tmp_path / "runs" / "not begun").mkdir()
    (tmp_path / "runs" / "not begun" / "study.yaml").touch()
    assert newest.runs().name == "mine" and newest.runs("other").name == "c"
    assert newest.results("noise").name == "d"
    monkeypatch.setenv("RUNS", "kept")
    assert newest.runs().name == "a"
    monkeypatch.setenv("RUNS", "results/b")  # from the project's folder, wherever a kernel runs
    assert newest.runs() == tmp_path / "results" / "b"
