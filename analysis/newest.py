"""Which runs to open when nobody says: the newest study under runs/, else the kept ones under
results/.

results/ holds the README's studies, results/STUDY those of another study.
"""

import os
from pathlib import Path

from experiments.records.files import read
from experiments.records.run import MANIFEST, STUDY_FILE, Manifest

ROOT = Path(__file__).resolve().parent.parent


def runs(study: str = "") -> Path:
    """The environment variable RUNS, else the newest study of runs/ with a run, named `study`…,
    else `results()`."""
    given = os.environ.get("RUNS")
    if given:
        folder = Path(given)  # from where the command runs, else from the project's folder
        return folder if folder.exists() else ROOT / folder
    studies = [plan.parent for plan in (ROOT / "runs").glob(f"{study}*/{STUDY_FILE}")]
    begun = [folder for folder in studies if any(folder.glob(f"**/{MANIFEST}"))]
    return max(begun, key=lambda folder: folder.stat().st_mtime) if begun else results(study)


def results(study: str = "") -> Path:
    """The folder of results/, or of results/STUDY, that is shown: the newest from a GPU, else the
    newest.

    Raises:
        FileNotFoundError: there is none.
    """
    kept = {}
    for plan in (ROOT / "results" / study).glob(f"*/{STUDY_FILE}"):
        for path in plan.parent.glob(f"**/seed*/{MANIFEST}"):
            manifest = read(path, Manifest)
            kept[manifest.hardware.type != "cpu", manifest.start] = plan.parent
    if not kept:
        raise FileNotFoundError(
            f"results/{study} holds no runs: name a folder with RUNS=..., or run `make study`, or "
            "the README's command for these, first"
        )
    return kept[max(kept)]
