"""Which runs to open when nobody says: the newest study under runs/, else the kept ones under
results/.

results/ holds the README's studies, results/STUDY those of another study.
"""

import json
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def runs(study: str = "") -> Path:
    """The environment variable RUNS, else the newest study of runs/ with a run, named `study`…,
    else `results()`."""
    if given := os.environ.get("RUNS"):
        return Path(given)
    studies = [plan.parent for plan in (ROOT / "runs").glob(f"{study}*/study.yaml")]
    begun = [folder for folder in studies if any(folder.glob("**/manifest.json"))]
    return max(begun, key=lambda folder: folder.stat().st_mtime) if begun else results(study)


def results(study: str = "") -> Path:
    """The folder of results/, or of results/STUDY, that is shown: the newest from a GPU, else the
    newest.

    Raises:
        FileNotFoundError: there is none.
    """
    kept = {}
    for path in (ROOT / "results" / study).glob("*/study.yaml"):
        for run in path.parent.glob("**/seed*/manifest.json"):
            manifest = json.loads(run.read_text())
            kept[manifest["hardware"]["type"] != "cpu", manifest["start"]] = path.parent
    if not kept:
        how = "name a folder with RUNS=..., or run `make study`, or the README's command for these, first"
        raise FileNotFoundError(f"results/{study} holds no runs: {how}")
    return kept[max(kept)]
