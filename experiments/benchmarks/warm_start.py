"""How much sooner the first step comes with the kernels that an earlier run compiled.

    python -m experiments.benchmarks.warm_start [RECIPE…] [--overlay O]… [--json FILE]
    [key.path=value …]

Each recipe runs twice for a few steps with the same folder for PyTorch's caches: first it is empty,
then it holds what the first run compiled. The default is the compiled recipes of the study
four_way; a recipe that is not compiled is left out.
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
from experiments.records.files import read
from experiments.records.run import TIMING, Timing
from experiments.training.scale import choose_scale
from models import device
from models.errors import InputError

STEPS = 5


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks.warm_start")
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
        loaded = [recipes.load(name, overlays, keys) for name in names]
    except InputError as error:
        return complain(error)
    options = [*(f"--overlay={overlay}" for overlay in overlays), *keys]
    print(f"{device.name()}, {' '.join(options)}")
    record = {"device": device.name(), "options": options, "recipes": {}}
    for recipe in loaded:
        if not recipe.config.compile.enable:
            continue
        try:
            record["recipes"][recipe.name] = cold_and_warm(recipe.name, options)
        except subprocess.CalledProcessError as run:
            complain(
                f"the run of {recipe.name} failed with exit code {run.returncode}, "
                "for the reason above"
            )
            return max(run.returncode, FAILED)  # negative: a signal's
        if args.json:
            args.json.write_text(json.dumps(record, indent=2) + "\n")
    return 0


def cold_and_warm(recipe: str, options: list[str]) -> dict[str, dict]:
    """Print and return timing.json of two runs, the second with the kernels of the first."""
    with tempfile.TemporaryDirectory() as folder:
        starts = {start: first_step(recipe, options, folder, start) for start in ("cold", "warm")}
    cold, warm = starts.values()
    warm_up = cold.warm_up_s / warm.warm_up_s
    compilation = cold.phases["compile"] / warm.phases["compile"]
    print(
        f"{recipe:<28} warm-up shorter by a factor of {warm_up:.1f}, "
        f"compilation of {compilation:.1f}"
    )
    return {start: timing.model_dump() for start, timing in starts.items()}


def first_step(recipe: str, options: list[str], folder: str, start: str) -> Timing:
    """Run a recipe for a few steps. Raises CalledProcessError if it fails; the run's own error is
    on stderr."""
    out = Path(folder, start)
    arguments = [recipe, *options, f"training.steps={STEPS}", "--out", str(out)]
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "TRITON_CACHE_DIR": f"{folder}/triton",
    }
    subprocess.run(
        [sys.executable, "-m", "experiments.run", *arguments],
        env=os.environ | caches,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    timing = read(out / TIMING, Timing)
    print(
        f"{recipe:<28} cache {timing.compile_cache}: warm-up {timing.warm_up_s:6.1f} s, "
        f"of it compilation {timing.phases['compile']:6.1f} s",
        flush=True,
    )
    return timing


if __name__ == "__main__":
    leave(main)
