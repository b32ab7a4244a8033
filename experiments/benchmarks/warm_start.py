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
from experiments.jobs.command import FAILED, CommandLine, complain, leave
from experiments.records.files import read
from experiments.records.run import TIMING, Timing
from experiments.training.plan import choose_scale
from models import device

STEPS = 5


def main(argv: list[str] | None = None) -> int:
    parser = CommandLine("experiments.benchmarks.warm_start", __doc__)
    parser.add_argument("names", nargs="*", metavar="RECIPE", default=load([DEFAULT]).recipes)
    parser.add_argument("--overlay", action="append", metavar="O")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    overlays = args.overlay or choose_scale()[0]
    loaded = [recipes.load(name, overlays) for name in args.names]
    print(f"{device.name()}, {' '.join(overlays)}")
    record = {"device": device.name(), "overlays": overlays, "recipes": {}}
    try:
        for recipe in loaded:
            if recipe.config.compile.enable:
                record["recipes"][recipe.name] = cold_and_warm(recipe.name, overlays)
    except subprocess.CalledProcessError as run:
        complain(f"a run failed with exit code {run.returncode}, for the reason above")
        return max(run.returncode, FAILED)  # negative: a signal's
    if args.json:
        args.json.write_text(json.dumps(record, indent=2) + "\n")
    return 0


def cold_and_warm(recipe: str, overlays: list[str]) -> dict[str, dict]:
    """Run a recipe twice, the second time with the kernels of the first; returns timing.json of
    both. Raises CalledProcessError if a run fails; its own error is on stderr."""
    starts = {}
    with tempfile.TemporaryDirectory() as folder:
        caches = {
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "TRITON_CACHE_DIR": f"{folder}/triton",
        }
        for start in ("cold", "warm"):
            out = Path(folder, start)
            command = [sys.executable, "-m", "experiments.run", recipe, f"training.steps={STEPS}"]
            command += [f"--overlay={overlay}" for overlay in overlays] + [f"--out={out}"]
            environment = os.environ | caches
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
            starts[start] = read(out / TIMING, Timing)
    for start, timing in starts.items():
        compilation = timing.phases["compile"]
        print(
            f"{recipe:<28} {start} ({timing.compile_cache}): warm-up {timing.warm_up_s:6.1f} s, "
            f"of it compilation {compilation:6.1f} s",
            flush=True,
        )
    return {start: timing.model_dump() for start, timing in starts.items()}


if __name__ == "__main__":
    leave(main)
