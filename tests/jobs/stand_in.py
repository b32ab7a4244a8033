"""In the place of experiments.run: `python -m tests.jobs.stand_in RECIPE … --out DIR`.

Makes a step each `STEP_S` seconds up to the key training.steps, or until it is asked to stop, and
leaves a run's records. A recipe named in the variable `FAILING` ends with exit code 2.
"""

import os
import shutil
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from experiments.jobs.exit_codes import complain, leave
from experiments.jobs.signals import Stop
from experiments.records.files import append, last_window
from experiments.records.run import MANIFEST, METRICS, PROOF, RECIPE, TIMING, Window
from tests.make_runs import metrics_lines, write_run


def main() -> int:
    stop = Stop()
    stop.listen()
    stop.deferred = True
    start, arguments = datetime.now(UTC), sys.argv
    recipe, out = arguments[1], Path(arguments[arguments.index("--out") + 1])
    keys = dict(word.split("=", 1) for word in arguments if "=" in word)
    steps = int(keys["training.steps"])
    (out / "caches").write_text(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    if recipe in os.environ.get("FAILING", ""):
        return complain("no compiler")
    made = last_window(out)
    for line in metrics_lines(last=steps)[made.step if made else 0 :]:
        if stop.code:
            break
        time.sleep(float(os.environ["STEP_S"]))
        append(out / METRICS, Window.model_validate(line))
    facts = {
        "seed": int(arguments[arguments.index("--seed") + 1]),
        "steps": steps,
        "status": "interrupted" if stop.code else "completed",
        "study_budget_s": 1.0 if stop.code else None,
        "start": start.isoformat(),
        "end": datetime.now(UTC).isoformat(),
        "hardware": {"visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES")},
    }
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder, "run"), recipe, **facts)
        for name in (MANIFEST, TIMING, PROOF, RECIPE):
            shutil.move(run / name, out / name)
    return stop.code


if __name__ == "__main__":
    leave(main)
