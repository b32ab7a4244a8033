"""How long loading takes: `python -m analysis.benchmark_load` loads 200 runs of 1,000 log windows each.

The runs are made in a temporary folder first. The exit code is 1 above the goal.
"""

import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from analysis.load import load
from analysis.runs import LAYOUT_VERSION

RUNS, WINDOWS, GOAL_S = 200, 1000, 5.0  # the goal is for two cores


def metrics_file(rng: random.Random) -> str:
    """A metrics.jsonl of one-step windows, its numbers as long as real ones."""
    lines = []
    for step in range(1, WINDOWS + 1):
        seconds, loss = rng.uniform(0.1, 0.2), rng.uniform(5, 10)
        lines.append({
            "step": step, "elapsed_s": round(step * 0.2, 3), "loss": loss, "losses": [loss], "grad_norm": rng.random(),
            "lr": 1e-4, "tokens_per_s": 4096 / seconds, "valid_tokens_per_s": 4000 / seconds,
            "step_s": [round(seconds, 6)], "data_wait_s": [0.000123], "not_steady": [step] if step <= 10 else [],
            "peak_memory_bytes": 765865984, "mfu_bf16_peak": rng.random(), "mfu_fp8_peak": None, "mfu_mixed_peak": None,
        })  # fmt: skip
    return "".join(json.dumps(line) + "\n" for line in lines)


def make_runs(folder: Path) -> None:
    """`RUNS` completed run directories below `folder`."""
    rng = random.Random(0)
    contents = [metrics_file(rng) for _ in range(10)]
    packages = {f"package{i}": "1.0.0" for i in range(150)}
    for number in range(RUNS):
        seed, recipe = divmod(number, 4)
        run = folder / f"recipe{recipe}" / f"seed{seed}"
        run.mkdir(parents=True)
        manifest = {
            "layout_version": LAYOUT_VERSION, "status": "completed", "recipe": f"recipe{recipe}", "seed": seed,
            "steps": WINDOWS, "overlays": [], "world_size": 1, "flops_per_token": 1e6, "packages": packages,
            "hardware": {"name": "GPU", "type": "cuda"}, "peak_flops": {"bf16": 1e12, "fp8": 2e12, "source": "made up"},
        }  # fmt: skip
        (run / "manifest.json").write_text(json.dumps(manifest, indent=2))
        (run / "timing.json").write_text('{"warm_up_s": 1.0, "phases": {"import": 1.0}, "compile_cache": "none"}')
        (run / "proof.json").write_text('{"fp8_share_of_matmul_flops": 0.0, "fp8_flops": 0, "emulated": false}')
        (run / "metrics.jsonl").write_text(contents[number % len(contents)])


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        make_runs(Path(folder))
        start = time.perf_counter()
        frames = load(folder)
        seconds = time.perf_counter() - start
    print(f"{len(frames.runs):,} runs, {len(frames.windows):,} windows: {seconds:.1f} s on {os.cpu_count()} cores "
          f"(goal: {GOAL_S:.0f} s on 2)")  # fmt: skip
    return int(seconds > GOAL_S)


if __name__ == "__main__":
    sys.exit(main())
