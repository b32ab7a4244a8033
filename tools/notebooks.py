"""Execute the notebooks, each from its folder: `make notebooks`.

    python -m tools.notebooks four_way

The core's notebooks are in analysis/notebooks/, an extension's is extensions/NAME/notebook.py. The
source of a notebook is its .py (jupytext's percent format). The executed .ipynb next to it is
generated, with its figures and without timestamps, so that equal runs give equal files. A notebook
whose data are missing stays as it is.
"""

import os
import sys

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from analysis.newest import KEPT, NothingToShow
from experiments.config.recipes import ROOT

NOTEBOOKS = {source.stem: source for source in sorted(ROOT.glob("analysis/notebooks/*.py"))}
for source in sorted(ROOT.glob("extensions/*/notebook.py")):
    NOTEBOOKS[source.parent.name] = source


def execute_notebook(name: str) -> nbformat.NotebookNode:
    """Run a notebook in its folder and return it with its outputs.

    The notebook shows the runs in the environment variable RUNS, or else the runs under results/.

    Raises:
        NothingToShow: the data of the notebook are missing.
        nbclient.exceptions.CellExecutionError: a cell raised another error.
    """
    source = NOTEBOOKS[name]
    notebook = jupytext.read(source)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = {"kernelspec": kernel}
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"{name}-{number}"
        cell.metadata = {}
    client = NotebookClient(
        notebook,
        timeout=120,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": source.parent}},
    )
    try:
        client.execute(env={"RUNS": KEPT} | os.environ)
    except CellExecutionError as error:
        if error.ename == NothingToShow.__name__:
            raise NothingToShow(error.evalue) from error
        raise
    notebook.metadata.pop("language_info", None)  # names the interpreter's patch version
    return notebook


if __name__ == "__main__":
    for name in sys.argv[1:] or NOTEBOOKS:
        executed_file = NOTEBOOKS[name].with_suffix(".ipynb")
        label = executed_file.relative_to(ROOT)
        try:
            nbformat.write(execute_notebook(name), executed_file)
            print(f"wrote {label}")
        except NothingToShow as error:
            print(f"not written: {label}; {error}")
