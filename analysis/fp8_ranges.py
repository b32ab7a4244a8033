"""How near to its limits FP8 was in a run, step by step; see experiments/training/fp8_ranges.py."""

import json
from pathlib import Path

import pandas as pd

COLUMNS = ["run", "recipe", "step", "tensor", "quantity", "group", "value"]


def fp8_ranges(runs: pd.DataFrame) -> pd.DataFrame:
    """One row a value that the runs of `Frames.runs` kept: columns `COLUMNS`; empty where none kept
    any."""
    rows = []
    for run in runs.itertuples():
        metrics = Path(run.path) / "metrics.jsonl"
        for text in metrics.read_text().splitlines() if metrics.exists() else []:
            if '"fp8_ranges"' not in text:
                continue
            line = json.loads(text)
            for name, value in line["fp8_ranges"].items():
                rows.append([run.run, run.recipe, line["step"], *name.split("/"), value])
    return pd.DataFrame(rows, columns=COLUMNS)
