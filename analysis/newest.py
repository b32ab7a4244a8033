"""Choose a notebook's runs: in the folder RUNS, the newest under runs/, or kept runs.

A study is kept in results/[STUDY/]NAME or in extensions/EXTENSION/results/STUDY/NAME. The studies
without a STUDY are the README's.
"""

import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from shlex import quote

from analysis.runs import PlannedRun, Run, read_packed_records, read_yaml
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


def find_runs(
    study: str = "",
    plan: str = STUDY_FILE,
    command: str = "experiments.study",
    device: str | None = None,
) -> Path:
    """Choose a notebook's folder: RUNS, else the newest complete study under runs/, else kept runs.

    With RUNS=kept it chooses kept runs. Prints why RUNS or a newer study is not shown.

    Args:
        study: name of the study that the notebook is about; empty for any study.
        plan: name of the file that marks the folder of a study.
        command: module that makes such runs.
        device: "cuda" or "cpu", for studies made on such a device; None for any.

    Raises:
        NothingToShow: RUNS is not a folder, or there are no kept runs either.
    """
    requested = os.environ.get("RUNS")
    if requested == KEPT:
        return find_kept_runs(study, plan, device)
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
        if device and not requested and device not in _list_devices(runs):
            continue
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
    return find_kept_runs(study, plan, device)


def find_kept_runs(study: str = "", plan: str = STUDY_FILE, device: str | None = None) -> Path:
    """Choose the kept folder of a study: the newest with a proof from a GPU, else the newest with a
    proof, else one without a proof, which another program made.

    Raises:
        NothingToShow: there is none.
    """
    folders = []
    for results_folder in RESULTS_FOLDERS:
        for file in ROOT.glob(f"{results_folder}/{study}/*/{plan}"):
            record = _read_first_record(file.parent)
            if device in (None, record.last_attempt.hardware.type):
                folders.append(file.parent)
    if not folders:
        raise NothingToShow(
            f"results/{study} holds no runs: name a folder with RUNS=..., or run `make study`, or "
            "the README's command for these, first"
        )
    return max(folders, key=_rank_folder)


def _rank_folder(folder: Path) -> tuple[bool, bool, datetime]:
    """Return a key to sort by: the newest folder with a proof from a GPU has the highest."""
    record = _read_first_record(folder)
    attempt = record.last_attempt
    return record.proof is not None, attempt.hardware.type != "cpu", attempt.start


def _list_devices(runs: list[PlannedRun]) -> set[str]:
    """List the types of devices on which runs were made."""
    return {run.record.last_attempt.hardware.type for run in runs if isinstance(run, Run)}


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
