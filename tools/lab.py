"""Copy the notebooks into lab/, where a reader may change them: `make lab` opens them there.

    python -m tools.lab

git ignores lab/. A copy stays as it is until the project's notebook is newer. Then the copy is
renamed to NAME.old.ipynb, and a new one is made.
"""

import shutil
from pathlib import Path

from analysis.notebook_index import NOTEBOOKS
from experiments.config.recipes import ROOT
from experiments.jobs.command import EXIT_COMPLETED, CommandLine, exit_with

COPIES = ROOT / "lab"


def copy_notebooks(folder: Path = COPIES) -> None:
    """Copy each notebook to its path below `folder`, so that links between notebooks hold."""
    for source in NOTEBOOKS.values():
        notebook = source.with_suffix(".ipynb")
        copy = folder / notebook.relative_to(ROOT)
        if copy.exists() and copy.stat().st_mtime >= notebook.stat().st_mtime:
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        if copy.exists():
            copy.replace(copy.with_suffix(".old.ipynb"))
        shutil.copyfile(notebook, copy)


def main(argv: list[str] | None = None) -> int:
    CommandLine("tools.lab", __doc__).parse_arguments(argv)
    copy_notebooks()
    print(f"The notebooks are copies in {COPIES.name}/, which git ignores.")
    return EXIT_COMPLETED


if __name__ == "__main__":
    exit_with(main)
