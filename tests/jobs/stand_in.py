"""In the place of experiments.run: `python -m tests.jobs.stand_in DIR`.

Makes a step each `STEP_S` seconds up to the recipe's training.steps, or until it is asked to stop,
and leaves a run's records, and a checkpoint's trace where it keeps some. Started again, it goes
on without pauses. The recipe that the variable `FAILING` names ends with exit code 2, that of
`KILLED` is killed at step 12.
"""

import json
import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import yaml

from experiments.jobs.command import StopRequest, exit_with
from experiments.records.files import write_whole
from experiments.records.run import METRICS, RECIPE, RUN_RECORD, LogInterval, read_log
from models.errors import InputError
from tests.make_runs import intervals, record


def main() -> int:
    stop = StopRequest()
    stop.listen()
    stop.waits_for_step_end = True
    out = Path(sys.argv[1])
    keys = yaml.safe_load((out / RECIPE).read_text())
    steps = keys["training"]["steps"]
    facts = {
        "seed": keys["debug"]["seed"],
        "steps": steps,
        "start": datetime.now(UTC).isoformat(),
        "notes": ["there is no whole checkpoint"],
        "hardware": {"visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES")},
    }
    (out / "caches").write_text(os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""))
    if keys["name"] == os.environ.get("FAILING"):
        raise InputError("no compiler")
    write_record(out, keys, status="running", **facts)
    made = len(read_log(out / METRICS))
    step_s = 0 if made else float(os.environ.get("STEP_S", 0))
    for line in intervals([0.1] * steps, [10.0] * steps, every=1)[made:]:
        if stop.exit_code:
            break
        time.sleep(step_s)
        LogInterval.model_validate(line).append_to(out / METRICS)
        if line["step"] == 12 and keys["name"] == os.environ.get("KILLED"):
            os.kill(os.getpid(), signal.SIGKILL)
    if stop.exit_code and keys["checkpoint"]["enable"]:
        checkpoint = out / f"checkpoint/step-{len(read_log(out / METRICS))}"
        checkpoint.mkdir(parents=True, exist_ok=True)
        (checkpoint / ".metadata").touch()
    facts["status"] = "interrupted" if stop.exit_code else "completed"
    write_record(out, keys, end=datetime.now(UTC).isoformat(), **facts)
    return stop.exit_code


def write_record(out: Path, keys: dict, **facts) -> None:
    write_whole(out / RUN_RECORD, json.dumps(record(keys["name"], keys, **facts)))


if __name__ == "__main__":
    exit_with(main)
