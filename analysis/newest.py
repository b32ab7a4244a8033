"""Which runs to open when nobody says: the newest study under runs/, else the kept ones under results/."""

import json
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def runs() -> Path:
    """The environment variable RUNS, else the newest folder of runs/ that holds a run, else `results()`."""
    if given := os.environ.get("RUNS"):
        return Path(given)
    studies = {m.relative_to(ROOT / "runs").parts[0] for m in (ROOT / "runs").glob("**/manifest.json")}
    newest = max(studies, key=lambda name: (ROOT / "runs" / name).stat().st_mtime, default=None)
    return ROOT / "runs" / newest if newest else results()


def results() -> Path:
    """The folder of results/ that the README shows: the newest from a GPU, else the newest.

    Raises:
        FileNotFoundError: there is none.
    """
    folders = sorted({m.parents[2] for m in (ROOT / "results").glob("*/*/*/manifest.json")}, key=_date_and_device)
    if not folders:
        raise FileNotFoundError("results/ holds no runs: name a folder with RUNS=..., or run `make study` first")
    return folders[-1]


def _date_and_device(folder: Path) -> tuple[bool, str]:
    """A GPU's results come after a CPU's, newer ones after older ones."""
    manifest = json.loads(next(folder.glob("*/*/manifest.json")).read_text())
    return manifest["hardware"]["type"] != "cpu", manifest["start"]
