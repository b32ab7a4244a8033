"""Execute the notebooks, each from its folder: `make notebooks`.

    python -m tools.notebooks [NAME…]        without NAME all notebooks

The core's notebooks are in analysis/notebooks/, an extension's is extensions/NAME/notebook.py. The
source of a notebook is its .py (jupytext's percent format). The executed .ipynb next to it is
generated, with its figures and without timestamps, so that equal runs give equal files. A sentence
below its first cell says whose runs the outputs show. A notebook whose data are missing stays as it
is.

Example: python -m tools.notebooks four_way

Exit codes: 0, or 2 for bad input.
"""

import os

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from analysis.newest import KEPT, NothingToShow
from analysis.notebook_index import INDEX, NOTEBOOKS, describe_outputs
from experiments.config.recipes import ROOT
from experiments.jobs.command import EXIT_COMPLETED, CommandLine, exit_with


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
    if name != INDEX:
        sentence = nbformat.v4.new_markdown_cell(describe_outputs(source), id=f"{name}-runs")
        notebook.cells.insert(1, sentence)
    return notebook


def main(argv: list[str] | None = None) -> int:
    parser = CommandLine("tools.notebooks", __doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(NOTEBOOKS)}")
    names = parser.parse_arguments(argv).names
    unknown = [name for name in names if name not in NOTEBOOKS]
    if unknown:
        parser.error(f"unknown notebooks: {', '.join(unknown)}; known: {', '.join(NOTEBOOKS)}")
    for name in names or NOTEBOOKS:
        executed_file = NOTEBOOKS[name].with_suffix(".ipynb")
        label = executed_file.relative_to(ROOT)
        try:
            nbformat.write(execute_notebook(name), executed_file)
            print(f"wrote {label}")
        except NothingToShow as error:
            print(f"not written: {label}; {error}")
    return EXIT_COMPLETED


if __name__ == "__main__":
    exit_with(main)
