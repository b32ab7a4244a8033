"""Choose the runs that a notebook opens: those in RUNS, the newest under runs/, or kept ones.

results/ holds the README's studies, results/STUDY another study's. An extension keeps its
own in extensions/NAME/results/STUDY.
"""

import os
from contextlib import suppress
from pathlib import Path

from analysis.runs import Run, read_yaml
from analysis.study import StudyError, read_study
from experiments.records.files import read
from experiments.records.run import MANIFEST, STUDY_FILE, Manifest
from models.errors import InputError

ROOT = Path(__file__).resolve().parent.parent
PLACES = ["results", "extensions/*/results"]
KEPT = "kept"


class NothingToShow(InputError):
    """There are no runs; the message says how to make some."""

    def _render_traceback_(self) -> list[str]:
        """A notebook shows the message alone."""
        return [str(self)]


def runs(study: str = "", plan: str = STUDY_FILE, command: str = "experiments.study") -> Path:
    """Choose the folder that a notebook shows; print why, if it is not the expected one.

    RUNS=kept asks for the kept runs. They are also shown where there are no others. Complete
    studies go before interrupted ones.

    Args:
        study: name of the study that the notebook is about; any study without a name.
        plan: name of the file that each such folder has.
        command: module that makes such runs.

    Raises:
        NothingToShow: there are no kept runs either.
    """
    asked, given = _recipes(study), os.environ.get("RUNS", "")
    if given == KEPT:
        return results(study, plan)
    folders = [file.parent for file in (ROOT / "runs").glob(f"*/{plan}")]
    folders.sort(key=lambda folder: folder.stat().st_mtime, reverse=True)
    if given:
        folder = Path(given)  # from where the command runs, else from the project's folder
        folders = [folder if folder.exists() else ROOT / folder]
    newest = interrupted = complete = None
    for folder in folders:
        found = _runs(folder, plan)
        if found and asked <= {run.recipe for run in found}:
            newest = newest or folder
            if all(run.completed for run in found):
                complete = folder
                break
            if asked <= {run.recipe for run in found if run.completed}:
                interrupted = interrupted or folder
    shown = complete or interrupted or results(study, plan)
    if given and shown != folders[0]:
        print(
            f"{given} lacks runs for this notebook, which shows kept ones instead. To make your "
            f"own: .venv/bin/python -m {command} {study}".strip()
        )
    elif newest and shown != newest:
        newer = newest.relative_to(ROOT)
        print(
            f"{newer} is not complete, so older runs are shown. To complete it: "
            f".venv/bin/python -m {command} {newer}"
        )
    return shown


def results(study: str = "", plan: str = STUDY_FILE) -> Path:
    """Choose the kept folder of a study, from the working directory: the newest from a GPU, else
    the newest.

    Raises:
        NothingToShow: there is none.
    """
    kept = {}
    for place in PLACES:
        for file in ROOT.glob(f"{place}/{study}/*/{plan}"):
            for path in file.parent.glob(f"**/seed*/{MANIFEST}"):
                manifest = read(path, Manifest)
                kept[manifest.hardware.type != "cpu", manifest.start] = file.parent
    if not kept:
        raise NothingToShow(
            f"results/{study} holds no runs: name a folder with RUNS=..., or run `make study`, or "
            "the README's command for these, first"
        )
    return Path(os.path.relpath(kept[max(kept)]))


def _recipes(study: str) -> set[str]:
    """List the recipes of a study; none without a name."""
    asked = set()
    for place in ("recipes", "extensions/*"):
        for file in ROOT.glob(f"{place}/studies/{study}.yaml"):
            asked.update(read_yaml(file)["recipes"])
    return asked


def _runs(folder: Path, plan: str) -> list[Run]:
    """Read the runs of a folder, of all its studies; none where nothing can be compared."""
    studies, found = [folder], []
    if plan != STUDY_FILE:
        studies = [file.parent for file in folder.rglob(STUDY_FILE) if (folder / plan).exists()]
    for each in studies:
        with suppress(StudyError):
            found += read_study(each).runs
    return found
