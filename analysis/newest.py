"""Which runs to open when nobody says: the newest study under runs/, else the kept ones.

results/ holds the README's studies, results/STUDY those of another study. An extension keeps its
own in extensions/NAME/results/STUDY.
"""

import os
from pathlib import Path

from experiments.records.files import read
from experiments.records.run import MANIFEST, STUDY_FILE, Manifest

ROOT = Path(__file__).resolve().parent.parent
PLACES = ["results", "extensions/*/results"]
KEPT = "kept"


def runs(study: str = "") -> Path:
    """The environment variable RUNS, else the newest study of runs/ with a run, named `study`…,
    else `results()`; these too if RUNS is `kept`."""
    given = os.environ.get("RUNS")
    if given == KEPT:
        return results(study)
    if given:
        folder = Path(given)  # from where the command runs, else from the project's folder
        return folder if folder.exists() else ROOT / folder
    studies = [plan.parent for plan in (ROOT / "runs").glob(f"{study}*/{STUDY_FILE}")]
    begun = [folder for folder in studies if any(folder.glob(f"**/{MANIFEST}"))]
    return max(begun, key=lambda folder: folder.stat().st_mtime) if begun else results(study)


def results(study: str = "") -> Path:
    """The kept folder of a study that is shown, from the working directory: the newest from a GPU,
    else the newest.

    Raises:
        FileNotFoundError: there is none.
    """
    kept = {}
    for place in PLACES:
        for plan in ROOT.glob(f"{place}/{study}/*/{STUDY_FILE}"):
            for path in plan.parent.glob(f"**/seed*/{MANIFEST}"):
                manifest = read(path, Manifest)
                kept[manifest.hardware.type != "cpu", manifest.start] = plan.parent
    if not kept:
        raise FileNotFoundError(
            f"results/{study} holds no runs: name a folder with RUNS=..., or run `make study`, or "
            "the README's command for these, first"
        )
    return Path(os.path.relpath(kept[max(kept)]))
