"""Choose a notebook's runs: in the folder RUNS, the newest under runs/, or kept ones.

results/ holds the README's studies, results/STUDY another study's. An extension keeps its
own in extensions/NAME/results/STUDY.
"""

import os
from contextlib import suppress
from pathlib import Path
from shlex import quote

from analysis.packed import read_packed_records
from analysis.runs import Run, read_yaml
from analysis.study import StudyError, read_study
from experiments.config.recipes import ROOT, STUDIES_FOLDER, yaml_files
from experiments.records.run import PACKED_RUNS, RUN_RECORD, STUDY_FILE, RunRecord
from models.errors import PYTHON, InputError

PLACES = ["results", "extensions/*/results"]
KEPT = "kept"


class NothingToShow(InputError):
    """There are no runs; the message says how to make some."""

    def _render_traceback_(self) -> list[str]:
        """Show the message alone in a notebook."""
        return [str(self)]


def runs(study: str = "", plan: str = STUDY_FILE, command: str = "experiments.study") -> Path:
    """Choose a notebook's folder: RUNS, else the newest complete study under runs/, else kept runs.

    RUNS=kept asks for kept runs. Prints why RUNS or a newer study is not shown.

    Args:
        study: name of the study that the notebook is about; any study without a name.
        plan: name of the file that each such folder has.
        command: module that makes such runs.

    Raises:
        NothingToShow: there are no kept runs either.
    """
    given, recipes = os.environ.get("RUNS"), _recipes(study)
    if given == KEPT:
        return results(study, plan)
    if given and not (ROOT / given).exists():
        raise NothingToShow(f"RUNS={given}: there is no such folder")
    folders = [file.parent for file in ROOT.glob(f"runs/*/{plan}")]
    folders.sort(key=os.path.getmtime, reverse=True)
    for folder in [ROOT / given] if given else folders:
        found = _runs(folder) if (folder / plan).exists() else []
        completed = {run.recipe for run in found if run.completed}
        whole = given or all(run.completed for run in found)
        if found and whole and completed >= recipes:
            return folder
        if given or {run.recipe for run in found} >= recipes:
            print(
                f"{folder} lacks completed runs for this notebook, which shows others. To make "
                f"them: {PYTHON} -m {command} {study if given else quote(str(folder))}"
            )
    return results(study, plan)


def results(study: str = "", plan: str = STUDY_FILE) -> Path:
    """Choose the kept folder of a study: the newest from a GPU, else the newest.

    Raises:
        NothingToShow: there is none.
    """
    kept = {}
    for place in PLACES:
        for file in ROOT.glob(f"{place}/{study}/*/{plan}"):
            attempt = _first_record(file.parent).last_attempt
            kept[attempt.hardware.type != "cpu", attempt.start] = file.parent
    if not kept:
        raise NothingToShow(
            f"results/{study} holds no runs: name a folder with RUNS=..., or run `make study`, or "
            "the README's command for these, first"
        )
    return kept[max(kept)]


def _first_record(folder: Path) -> RunRecord:
    """Read the record of the first run at or below a folder."""
    for file in folder.rglob(PACKED_RUNS):
        return read_packed_records(file.parent)[0].record
    return RunRecord.read(next(folder.rglob(RUN_RECORD)))


def _recipes(study: str) -> set[str]:
    """List the recipes of a study; none without a name."""
    file = yaml_files(STUDIES_FOLDER).get(study)
    return set(read_yaml(file)["recipes"]) if file else set()


def _runs(folder: Path) -> list[Run]:
    """Read the runs of all studies in a folder, but for studies with nothing to compare."""
    found = []
    for file in folder.rglob(STUDY_FILE):
        with suppress(StudyError):
            found += read_study(file.parent).runs
    return found
