"""Execute the notebooks: `python -m analysis.notebooks.execute [NAME …]`, which `make notebooks` calls.

A notebook's source is `NAME.py` in this folder (jupytext's percent format); the executed `NAME.ipynb` beside it is
generated, with its figures and without timestamps, so that the same runs give the same file.
"""

import os
import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

from analysis import newest

HERE = Path(__file__).resolve().parent
# and whose kept runs each shows, a study of analysis.newest
NOTEBOOKS = {"four_way": "", "warmup_and_break_even": "", "published": "", "one_gpu_puzzle": "one_gpu_puzzle",
             "phases": "phases", "allgather_ladder": "allgather_ladder", "sweep": "sweep",
             "fp8_lm": "precision_decoupling"}  # fmt: skip
SECONDS = 120  # a cell that takes longer hangs


def execute(name: str, environment: dict[str, str]) -> nbformat.NotebookNode:
    """Run the notebook `name` and return it with its outputs.

    Args:
        name: one of `NOTEBOOKS`.
        environment: variables for its kernel; RUNS and PUBLISHED_LOGS are the notebooks' parameters.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised.
    """
    notebook = jupytext.read(HERE / f"{name}.py")
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}
    }
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"{name}-{number}"
        cell.metadata = {}
    where = {"metadata": {"path": newest.ROOT}}
    client = NotebookClient(notebook, timeout=SECONDS, record_timing=False, resources=where)
    client.execute(env=os.environ | environment)
    notebook.metadata.pop("language_info", None)  # names the interpreter's patch version
    return notebook


def kept_runs(name: str) -> str:
    """The kept runs that a notebook shows, from the project's folder: names of its files are part of its text."""
    return str(newest.results(NOTEBOOKS[name]).relative_to(newest.ROOT))


def main(names: list[str]) -> int:
    for name in names or NOTEBOOKS:
        if name == "published" and "PUBLISHED_LOGS" not in os.environ:
            print(
                "left as it is: published.ipynb, which needs PUBLISHED_LOGS=folder of the published logs"
            )
            continue
        runs = os.environ.get("RUNS") or kept_runs(name)  # kept runs, not somebody's newest
        path = HERE / f"{name}.ipynb"
        nbformat.write(execute(name, {"RUNS": runs}), path)
        print(f"wrote {path.relative_to(newest.ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
