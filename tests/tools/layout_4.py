"""Write run directories as layout 4 had them, from those of today."""

import json
from pathlib import Path

import yaml

from experiments.records.run import METRICS, RECIPE, RUN_RECORD
from tests.make_runs import write_lines
from tests.runs import lines_of, record_of

MANIFEST, TIMING, PROOF = "manifest.json", "timing.json", "proof.json"


def to_layout_4(run: Path) -> None:
    """Turn a run directory into one of layout 4.

    Each attempt had a folder but the last one, and its log began with the lines up to its
    checkpoint, copied from the attempts before.
    """
    record = record_of(run)
    attempts, proof = record.pop("attempts"), record.pop("proof")
    facts = record | {"layout_version": 4, "study_budget_s": None}
    facts["float8"] = proof and proof["recipe_name"]
    logs: dict[int, list[dict]] = {attempt["number"]: [] for attempt in attempts}
    for line in lines_of(run):
        logs[line.pop("attempt")].append(line)
    taken: list[dict] = []
    for attempt in attempts:
        number, timing = attempt.pop("number"), attempt.pop("timing")
        added = logs[number]
        first = added[0]["step"] - len(added[0]["step_s"]) + 1 if added else 10**9
        taken = [line for line in taken if line["step"] < first]
        folder = run if number == len(attempts) else run / f"attempt{number}"
        folder.mkdir(exist_ok=True)
        write_json(folder / MANIFEST, facts | attempt | {"attempt": number})
        if timing:
            write_json(folder / TIMING, timing)
        if proof:
            write_json(folder / PROOF, proof | {"fp8_share_of_matmul_flops": 0.9})
        taken += added
        write_lines(folder / METRICS, taken)
    recipe = yaml.safe_load((run / RECIPE).read_text())
    recipe["resolved"]["plan"] = {"recipe": "0123abcd", "fp8_layers": ["output"]}
    (run / RECIPE).write_text(yaml.safe_dump(recipe, sort_keys=False))
    (run / RUN_RECORD).unlink()


def write_json(path: Path, values: dict) -> None:
    path.write_text(json.dumps(values))
