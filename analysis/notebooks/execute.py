"""Execute the notebooks: `python -m analysis.notebooks.execute [NAME …]`, or `make notebooks`.

The source of a notebook is `NAME.py` in this folder (jupytext's percent format). The executed
`NAME.ipynb` beside it is generated, with its figures and without timestamps, so that the same runs
give the same file.
"""

import os
import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

from analysis import newest

HERE = Path(__file__).resolve().parent
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
}


def execute(name: str) -> nbformat.NotebookNode:
    """Run a notebook and return it with its outputs.

    It shows the runs in the environment variable RUNS, or else the kept ones, not somebody's
    newest. Names of its files are part of its text, so they are relative to the project's folder.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised.
    """
    notebook = jupytext.read(HERE / f"{name}.py")
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = {"kernelspec": kernel}
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"{name}-{number}"
        cell.metadata = {}
    kept = newest.results(NOTEBOOKS[name]).relative_to(newest.ROOT)
    where = {"metadata": {"path": newest.ROOT}}
    client = NotebookClient(notebook, timeout=120, record_timing=False, resources=where)
    client.execute(env={"RUNS": str(kept)} | os.environ)
    notebook.metadata.pop("language_info", None)  # names the interpreter's patch version
    return notebook


def main(names: list[str]) -> int:
    for name in names or NOTEBOOKS:
        if name == "published" and "PUBLISHED_LOGS" not in os.environ:
            print("left as it is: published.ipynb; set PUBLISHED_LOGS=folder of the published logs")
            continue
        nbformat.write(execute(name), HERE / f"{name}.ipynb")
        print(f"wrote analysis/notebooks/{name}.ipynb")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
