"""Choose a notebook's runs: in the folder RUNS, the newest under runs/, or kept runs.

A study is kept in results/[STUDY/]NAME or in extensions/EXTENSION/results/STUDY/NAME. The studies
without a STUDY are the README's.
"""

import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from shlex import quote

from analysis.runs import PlannedRun, read_packed_records, read_yaml
from analysis.study import StudyError, read_study
from experiments.config.recipes import ROOT, STUDIES_FOLDER, yaml_files
from experiments.records.run import PACKED_RUNS, RUN_RECORD, STUDY_FILE, RunRecord
from models.errors import PYTHON, InputError

RESULTS_FOLDERS = ["results", "extensions/*/results"]
KEPT = "kept"  # value of RUNS


class NothingToShow(InputError):
    """There are no runs; the message says how to make some."""

    def _render_traceback_(self) -> list[str]:
        """Show only the message in a notebook."""
        return [str(self)]


def find_runs(study: str = "", plan: str = STUDY_FILE, command: str = "experiments.study") -> Path:
    """Choose a notebook's folder: RUNS, else the newest complete study under runs/, else kept runs.

    With RUNS=kept it chooses kept runs. Prints why RUNS or a newer study is not shown.

    Args:
        study: name of the study that the notebook is about; empty for any study.
        plan: name of the file that marks the folder of a study.
        command: module that makes such runs.

    Raises:
        NothingToShow: RUNS is not a folder, or there are no kept runs either.
    """
    requested = os.environ.get("RUNS")
    if requested == KEPT:
        return find_kept_runs(study, plan)
    if requested and not (ROOT / requested).exists():
        raise NothingToShow(f"RUNS={requested}: there is no such folder")
    if requested:
        folders = [ROOT / requested]
    else:
        folders = [file.parent for file in ROOT.glob(f"runs/*/{plan}")]
        folders.sort(key=os.path.getmtime, reverse=True)
    needed_recipes = _list_recipes(study)
    for folder in folders:
        runs = _read_all_runs(folder) if (folder / plan).exists() else []
        recipes = {run.recipe for run in runs}
        completed_recipes = {run.recipe for run in runs if run.completed}
        is_complete = bool(requested) or all(run.completed for run in runs)
        if runs and is_complete and completed_recipes >= needed_recipes:
            return folder
        if requested or recipes >= needed_recipes:
            arguments = study if requested else quote(str(folder))
            print(
                f"{folder} lacks completed runs for this notebook, which shows others. To make "
                f"them: {PYTHON} -m {command} {arguments}"
            )
    return find_kept_runs(study, plan)


def find_kept_runs(study: str = "", plan: str = STUDY_FILE) -> Path:
    """Choose the kept folder of a study: the newest from a GPU, else the newest.

    Raises:
        NothingToShow: there is none.
    """
    folders = []
    for results_folder in RESULTS_FOLDERS:
        for file in ROOT.glob(f"{results_folder}/{study}/*/{plan}"):
            folders.append(file.parent)
    if not folders:
        raise NothingToShow(
            f"results/{study} holds no runs: name a folder with RUNS=..., or run `make study`, or "
            "the README's command for these, first"
        )
    return max(folders, key=_rank_folder)


def _rank_folder(folder: Path) -> tuple[bool, datetime]:
    """Return a key to sort by: the newest folder from a GPU has the highest."""
    attempt = _read_first_record(folder).last_attempt
    return attempt.hardware.type != "cpu", attempt.start


def _read_first_record(folder: Path) -> RunRecord:
    """Read the record of the first run at or below a folder with runs."""
    packed_files = [*folder.rglob(PACKED_RUNS)]
    if packed_files:
        return read_packed_records(packed_files[0].parent)[0].record
    run_files = [*folder.rglob(RUN_RECORD)]
    return RunRecord.read(run_files[0])


def _list_recipes(study: str) -> set[str]:
    """List the recipes of a study by its name; empty without such a study."""
    file = yaml_files(STUDIES_FOLDER).get(study)
    return set(read_yaml(file)["recipes"]) if file else set()


def _read_all_runs(folder: Path) -> list[PlannedRun]:
    """Read the runs of all studies at or below a folder, except studies with nothing to compare."""
    runs: list[PlannedRun] = []
    for file in folder.rglob(STUDY_FILE):
        with suppress(StudyError):
            runs += read_study(file.parent).runs
    return runs
