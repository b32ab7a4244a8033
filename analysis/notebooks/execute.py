"""Execute the notebooks, each from its own folder: `make notebooks`.

    python -m analysis.notebooks.execute one_gpu_puzzle

The source of a notebook is NAME.py in this folder (jupytext's percent format). The executed
NAME.ipynb beside it is generated, with its figures and without timestamps, so that the same runs
give the same file. With the environment variable PUBLISHED_LOGS, the folder of the published logs,
`published` is executed too, and docs/figures/lead_published.png drawn. Exit codes: 0 executed, 1 a
cell raised, 2 for a wrong command line.
"""

import os
import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

from analysis import newest, plots
from analysis.comparison import compare
from analysis.other_logs.published import read_published
from analysis.report import command_line

HERE = Path(__file__).resolve().parent
LEAD = newest.ROOT / "docs" / "figures" / "lead_published.png"
# Notebook: the study whose kept runs it shows, see `analysis.newest.results`.
NOTEBOOKS = {
    "four_way": "",
    "warmup_and_break_even": "",
    "published": "",
    "one_gpu_puzzle": "one_gpu_puzzle",
    "phases": "phases",
    "allgather_ladder": "allgather_ladder",
    "sweep": "sweep",
    "fp8_lm": "precision_decoupling",
    "scalings": "scalings",
}


def execute(name: str) -> nbformat.NotebookNode:
    """Run a notebook and return it with its outputs.

    The notebook shows the runs in the environment variable RUNS, or else the kept ones, not
    somebody's newest. Names of files are part of its text, so they are relative to its folder.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised.
    """
    notebook = jupytext.read(HERE / f"{name}.py")
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = {"kernelspec": kernel}
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"{name}-{number}"
        cell.metadata = {}
    kept = os.path.relpath(newest.results(NOTEBOOKS[name]), HERE)
    where = {"metadata": {"path": HERE}}
    client = NotebookClient(notebook, timeout=120, record_timing=False, resources=where)
    client.execute(env={"RUNS": kept} | os.environ)
    notebook.metadata.pop("language_info", None)  # names the interpreter's patch version
    return notebook


def main(argv: list[str] | None = None) -> int:
    """Execute the notebooks that are named, or all."""
    parser = command_line("analysis.notebooks.execute", __doc__)
    choices = ["all", *NOTEBOOKS]
    parser.add_argument("name", nargs="*", default="all", choices=choices, help="a notebook")
    names = parser.parse_args(argv).name
    if "all" in names:
        names = list(NOTEBOOKS)
    logs = os.environ.get("PUBLISHED_LOGS")
    if not logs and "published" in names:
        names.remove("published")
        print("left as it is: published.ipynb; set PUBLISHED_LOGS=folder of the published logs")
    for name in names:
        nbformat.write(execute(name), HERE / f"{name}.ipynb")
        print(f"wrote analysis/notebooks/{name}.ipynb")
    if "published" in names:
        figure = plots.panels([(plots.lead, compare(read_published(newest.ROOT / logs)))], (8, 4))
        LEAD.write_bytes(plots.to_png(figure))
    return 0


if __name__ == "__main__":
    sys.exit(main())
