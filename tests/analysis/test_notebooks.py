"""What is generated is current: the notebooks' text and the README's table."""

from html import escape

import nbformat
import pytest

from analysis import newest
from analysis.answer import answer
from analysis.comparison import compare
from analysis.notebooks.execute import HERE, NOTEBOOKS, execute, kept_runs
from analysis.readme import LOSSES, README, generated
from tests.runs import PUBLISHED_LOGS, needs_published_logs

EXECUTABLE = [
    pytest.param(name, marks=needs_published_logs if name == "published" else [])
    for name in NOTEBOOKS
]


def text_outputs(notebook: nbformat.NotebookNode) -> list[str]:
    """What the cells printed or returned as text, one entry a cell; figures are left out."""
    found = []
    for cell in notebook.cells:
        parts = [
            o.get("text") or o.get("data", {}).get("text/plain", "")
            for o in cell.get("outputs", [])
        ]
        found.append("".join(part for part in parts if not part.startswith("<Figure")))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", EXECUTABLE)
def test_notebook_executes_and_its_text_is_current(name):
    environment = {"RUNS": kept_runs(name), "PUBLISHED_LOGS": str(PUBLISHED_LOGS)}
    kept = nbformat.read(HERE / f"{name}.ipynb", as_version=4)
    assert text_outputs(execute(name, environment)) == text_outputs(kept), (
        "stale: run `make notebooks`"
    )


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_kept_notebook_shows_its_figures_and_no_timestamps(name):
    cells = nbformat.read(HERE / f"{name}.ipynb", as_version=4).cells
    plots = [
        cell for cell in cells if cell.cell_type == "code" and cell.source.startswith("plots.")
    ]
    assert plots and all("image/png" in cell.outputs[0].data for cell in plots)
    assert not any("execution" in cell.metadata for cell in cells)


def test_readme_shows_the_results():
    folder, text = newest.results(), README.read_text()
    comparison = compare(folder)
    assert generated(text, comparison, folder, newest.results(LOSSES)) == text, (
        "stale: run `make readme`"
    )
    assert (folder / "summary.png").exists()
    page = (folder / "report.html").read_text()
    assert all(escape(sentence) in page for sentence in answer(comparison)), (
        "stale: run `make readme`"
    )


def test_newest_results_prefer_a_gpu_and_are_of_one_study(tmp_path, monkeypatch):
    from tests.make_runs import write_run

    def kept(name, device, start):
        facts = {"hardware": {"name": "x", "type": device}, "start": f"{start}T00:00:00Z"}
        write_run(tmp_path / "results" / name / "baseline" / "seed0", **facts)
        (tmp_path / "results" / name / "study.yaml").touch()

    monkeypatch.setattr(newest, "ROOT", tmp_path)
    with pytest.raises(FileNotFoundError, match="make study"):
        newest.results()
    kept("a", "cuda", "2026-01-01")
    kept("b", "cpu", "2026-02-01")
    kept("puzzle/c", "cuda", "2026-03-01")
    assert (
        newest.results().name == newest.runs().name == "a" and newest.results("puzzle").name == "c"
    )
    write_run(tmp_path / "runs" / "mine" / "baseline" / "seed0")
    (tmp_path / "runs" / "mine" / "study.yaml").touch()
    write_run(tmp_path / "runs" / "a single run")
    (tmp_path / "runs" / "not begun").mkdir()
    (tmp_path / "runs" / "not begun" / "study.yaml").touch()
    assert newest.runs().name == "mine" and newest.runs("puzzle").name == "c"
