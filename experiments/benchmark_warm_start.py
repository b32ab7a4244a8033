"""How much sooner the first step comes with the kernels that an earlier run kept
(TORCHINDUCTOR_CACHE_DIR).

    python -m experiments.benchmark_warm_start [RECIPE…] [--overlay O]… [--json FILE]
    [key.path=value …]

Each recipe runs twice for a few steps: first with an empty cache, then with the kernels of the first
run. The default is the compiled recipes of
the study four_way; a recipe that is not compiled is left out.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from experiments.config import recipes
from experiments.config.studies import DEFAULT, load
from experiments.jobs.exit_codes import FAILED, complain, leave
from experiments.training.scale import choose_scale
from models import device
from models.errors import InputError

STEPS = 5


def first_step(recipe: str, options: list[str], kept: str) -> dict:
    """timing.json of one run. Raises CalledProcessError if it fails; the run's own error is on
    stderr."""
    with tempfile.TemporaryDirectory() as folder:
        keys = [f"training.steps={STEPS}"]
        command = [
            sys.executable,
            "-m",
            "experiments.run",
            recipe,
            *options,
            *keys,
            "--out",
            f"{folder}/run",
        ]
        caches = {
            "TORCHINDUCTOR_CACHE_DIR": f"{kept}/inductor",
            "TRITON_CACHE_DIR": f"{kept}/triton",
        }
        subprocess.run(command, env=os.environ | caches, stdout=subprocess.DEVNULL, check=True)
        timing = json.loads(Path(folder, "run/timing.json").read_text())
    print(
        f"{recipe:<28} cache {timing['compile_cache']}: warm-up {timing['warm_up_s']:6.1f} s, "
        f"of it compilation {timing['phases']['compile']:6.1f} s",
        flush=True,
    )
    return timing


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmark_warm_start")
    parser.add_argument("names", nargs="*", metavar="RECIPE")
    parser.add_argument("--overlay", action="append", metavar="O")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every second of both starts"
    )
    args = parser.parse_intermixed_args(argv)
    overlays = args.overlay or choose_scale()[0]
    keys = [name for name in args.names if "=" in name]
    names = [name for name in args.names if "=" not in name] or load([DEFAULT]).recipes
    try:
        compiled = [
            name for name in names if recipes.load(name, overlays, keys).config.compile.enable
        ]
    except InputError as error:
        return complain(error)
    options = [part for overlay in overlays for part in ("--overlay", overlay)] + keys
    print(f"{device.name()}, {' '.join(options)}")
    record = {"device": device.name(), "options": options, "recipes": {}}
    for recipe in compiled:
        try:
            with tempfile.TemporaryDirectory() as kept:
                cold, warm = (first_step(recipe, options, kept) for _ in range(2))
        except subprocess.CalledProcessError as run:
            complain(
                f"the run of {recipe} failed with exit code {run.returncode}, for the reason above"
            )
            return max(run.returncode, FAILED)  # negative: a signal's
        warm_up = cold["warm_up_s"] / warm["warm_up_s"]
        compilation = cold["phases"]["compile"] / warm["phases"]["compile"]
        print(
            f"{recipe:<28} warm-up shorter by a factor of {warm_up:.1f}, compilation of {compilation:.1f}"
        )
        record["recipes"][recipe] = {"cold": cold, "warm": warm}
        if args.json:
            args.json.write_text(json.dumps(record, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    leave(main)
