"""For tests that start runs: from where, with which keys, and what a run directory holds."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TINY = ["training.steps=4", "training.seq_len=64", "training.local_batch_size=1"]


def lines_of(run: Path) -> list[dict]:
    """Those of metrics.jsonl; none before it is there."""
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def manifest_of(run: Path) -> dict:
    return json.loads((run / "manifest.json").read_text())
