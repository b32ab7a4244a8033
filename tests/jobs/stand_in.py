"""In the place of experiments.run: `python -m tests.jobs.stand_in DIR`.

Makes a step each `STEP_S` seconds up to the recipe's training.steps, or until it is asked to stop,
and leaves a run's records. Started again, it goes on without pauses. The recipe that the variable
`FAILING` names ends with exit code 2, that of `KILLED` is killed at step 12.
"""

import os
import shutil
import signal
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import yaml

from experiments.jobs.command import Stop, leave
from experiments.records.files import append, read_windows
from experiments.records.run import MANIFEST, METRICS, PROOF, RECIPE, TIMING, Window
from models.errors import InputError
from tests.make_runs import metrics_lines, write_run


def main() -> int:
    stop = Stop()
    stop.listen()
    stop.deferred = True
    out = Path(sys.argv[1])
    keys = yaml.safe_load((out / RECIPE).read_text())
    recipe, steps = keys["name"], keys["training"]["steps"]
    facts = {
        "seed": keys["debug"]["seed"],
        "steps": steps,
        "start": datetime.now(UTC).isoformat(),
        "hardware": {"visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES")},
        "pid": os.getpid(),
    }
    (out / "caches").write_text(os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""))
    if recipe == os.environ.get("FAILING"):
        raise InputError("no compiler")
    write_records(out, recipe, status="running", **facts)
    made = len(read_windows(out / METRICS))
    step_s = 0 if made else float(os.environ.get("STEP_S", 0))
    for line in metrics_lines(last=steps)[made:]:
        if stop.code:
            break
        time.sleep(step_s)
        append(out / METRICS, Window.model_validate(line))
        if line["step"] == 12 and recipe == os.environ.get("KILLED"):
            os.kill(os.getpid(), signal.SIGKILL)
    facts["status"] = "interrupted" if stop.code else "completed"
    write_records(out, recipe, end=datetime.now(UTC).isoformat(), **facts)
    return stop.code


def write_records(out: Path, recipe: str, **facts) -> None:
    """Those of a run that a test has made."""
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder, "run"), recipe, **facts)
        for name in (MANIFEST, TIMING, PROOF):
            shutil.move(run / name, out / name)


if __name__ == "__main__":
    leave(main)
