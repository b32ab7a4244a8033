"""How much sooner the first step comes with the kernels that an earlier run compiled.

    python -m experiments.benchmarks.warm_start [RECIPE…] [--overlay O]… [--json FILE]

Each recipe runs twice for a few steps with the same folder for PyTorch's caches: first it is empty,
then it holds what the first run compiled. The default is the compiled recipes of the study
four_way. FILE gets timing.json of both starts.

Exit codes: 0, 1 if a run failed, 2 for bad input.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from experiments.config import recipes
from experiments.config.studies import DEFAULT, load
from experiments.jobs.command import FAILED, CommandLine, leave
from experiments.records.files import read
from experiments.records.run import TIMING, Timing
from experiments.training.machine import choose_size
from models import device

STEPS = 5
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def main(argv: list[str] | None = None) -> int:
    parser = CommandLine("experiments.benchmarks.warm_start", __doc__)
    parser.add_argument("names", nargs="*", metavar="RECIPE", default=load([DEFAULT]).recipes)
    parser.add_overlays(default=None)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    overlays = args.overlay or choose_size()[0]
    loaded = [recipes.load(name, overlays) for name in args.names]
    print(f"{device.name()}, {' '.join(overlays)}")
    starts = {
        recipe.name: cold_and_warm(recipe.name, overlays)
        for recipe in loaded
        if recipe.config.compile.enable
    }
    if args.json:
        record = {"device": device.name(), "overlays": overlays, "recipes": starts}
        args.json.write_text(json.dumps(record, indent=2) + "\n")
    return 0


def cold_and_warm(recipe: str, overlays: list[str]) -> dict[str, dict]:
    """Run a recipe twice, the second time with the kernels of the first; returns timing.json of
    both. A run that fails ends this process; why is on stderr."""
    starts = {}
    command = [sys.executable, "-m", "experiments.run", recipe, f"training.steps={STEPS}"]
    command += [f"--overlay={overlay}" for overlay in overlays]
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {name: f"{folder}/{name}" for name in CACHES}
        for start in ("cold", "warm"):
            out = Path(folder, start)
            run = [*command, f"--out={out}"]
            if subprocess.run(run, env=environment, stdout=subprocess.DEVNULL).returncode:
                sys.exit(FAILED)
            timing = read(out / TIMING, Timing)
            starts[start] = timing.model_dump()
            line = "{:<28} {} ({}): warm-up {:6.1f} s, of it compilation {:6.1f} s"
            seconds = timing.warm_up_s, timing.phases["compile"]
            print(line.format(recipe, start, timing.compile_cache, *seconds), flush=True)
    return starts


if __name__ == "__main__":
    leave(main)
