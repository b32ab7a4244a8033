"""Choose the runs that a notebook opens: those in RUNS, the newest under runs/, or kept ones.

results/ holds the README's studies, results/STUDY another study's. An extension keeps its
own in extensions/NAME/results/STUDY.
"""

import os
from contextlib import suppress
from itertools import product
from pathlib import Path

from analysis.runs import read_yaml
from analysis.study import StudyError, read_study_file, run_folders
from experiments.records.files import RecordError, read
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
    if given:
        folder = Path(given)  # from where the command runs, else from the project's folder
        folder = folder if folder.exists() else ROOT / folder
        if _begun(folder, plan) and asked <= _completed(folder):
            return folder
        print(
            f"{given} lacks runs for this notebook, which shows kept ones instead. To make your "
            f"own: .venv/bin/python -m {command} {study}".strip()
        )
        return results(study, plan)
    own = [file.parent for file in (ROOT / "runs").glob(f"*/{plan}") if _begun(file.parent, plan)]
    own = [folder for folder in own if asked <= _planned(folder)]
    own.sort(key=lambda folder: folder.stat().st_mtime)
    whole = [folder for folder in own if _complete(folder)]
    some = [folder for folder in own if asked <= _completed(folder)]
    shown = (whole or some or [results(study, plan)])[-1]
    if own and shown != own[-1]:
        newer = own[-1].relative_to(ROOT)
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


def _begun(folder: Path, plan: str) -> bool:
    """Tell whether a folder has runs, and a plan other than a study's."""
    return any(folder.rglob(MANIFEST)) and (plan == STUDY_FILE or (folder / plan).exists())


def _planned(folder: Path) -> set[str]:
    """List the recipes that a study plans; none of a damaged plan."""
    with suppress(StudyError):
        return {*read_study_file((folder,)).recipes}
    return set()


def _completed(folder: Path) -> set[str]:
    """List the recipes with a completed run."""
    found = set()
    for run in run_folders((folder,)):
        with suppress(RecordError):
            manifest = read(run / MANIFEST, Manifest)
            if manifest.status == "completed":
                found.add(manifest.recipe)
    return found


def _complete(folder: Path) -> bool:
    """Tell whether each planned run of a folder is complete."""
    for file in folder.rglob(STUDY_FILE):
        try:
            planned = read_study_file((file.parent,))
            for recipe, seed in product(planned.recipes, planned.seeds):
                manifest = read(file.parent / recipe / f"seed{seed}" / MANIFEST, Manifest)
                if manifest.status != "completed":
                    return False
        except (RecordError, StudyError):
            return False
    return True
