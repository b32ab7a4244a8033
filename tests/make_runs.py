"""Run directories, made by hand for the tests of the analysis."""

import json
from pathlib import Path

from experiments.records.files import write
from experiments.records.run import (
    MANIFEST,
    METRICS,
    PROOF,
    RECIPE,
    TIMING,
    Manifest,
    Proof,
    Timing,
)

FLOPS, PEAK = 1e6, {"bf16": 1e9, "fp8": 2e9, "source": "made up"}
TOKENS = 100  # per step
MANIFEST_FACTS = {
    "status": "completed", "attempt": 1, "start": "2026-01-01T10:00:00Z", "command": "run",
    "host": "here", "pid": 1, "python": "3.11", "environment": "environment-0.json", "base": None,
    "packages": {"torch": "2.13.0", "torchao": "0.18.0", "torchtitan": "0.2.2"},
    "git": {"commit": None, "changes": None}, "overlays": [], "description": "", "compiled": False,
    "fp8_matmul": None, "world_size": 1, "peak_flops": PEAK, "flavor": "cpu",
    "parameters": 208_333,  # a fifth is the head, and another the embedding
    "data": "stdlib-2e",
    "hardware": {"name": "GPU", "type": "cuda", "memory_bytes": 1, "threads": 1},
    "flops_per_token": FLOPS, "flops_per_token_causal": FLOPS, "seq_len": 50,
    "dataset": "python_stdlib", "cuda": None,
}  # fmt: skip


def metrics_lines(first=1, last=30, step_s=0.1, window=1, shift=0.0, late=0.0) -> list[dict]:
    """What one process logs for steps `first` to `last`: 4 s of start-up and what it is late, 10
    slow steps, then `step_s` each. Losses are higher by `shift`."""
    elapsed, lines = 4.0 + late, []
    for end in range(first + window - 1, last + 1, window):
        steps = range(end - window + 1, end + 1)
        seconds = [1.0 if step < first + 10 else step_s for step in steps]
        losses = [10 - step / 10 + shift for step in steps]
        elapsed += sum(seconds)
        rate = TOKENS * window / sum(seconds)
        lines.append({
            "step": end, "elapsed_s": elapsed, "loss": sum(losses) / window, "losses": losses,
            "grad_norm": 1.0, "lr": 1e-3, "tokens_per_s": rate, "valid_tokens_per_s": rate / 2,
            "step_s": seconds, "data_wait_s": [s / 100 for s in seconds],
            "not_steady": [step for step in steps if step < first + 10],
            "peak_memory_bytes": end * 2**20,
        })  # fmt: skip
    return lines


def write_lines(path: Path, lines: list[dict]) -> None:
    """Write lines of JSON."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def proof(float8: str | None, parameters: dict | None = None, **changed) -> Proof:
    """A proof by which three quarters of the FLOPs ran in FP8, or none in bf16."""
    total, share = int(FLOPS * TOKENS), 0.75 * bool(float8)
    flops = int(share * total)
    owned = {"trainable": 10, "in_optimizer": 10, "elements_in_optimizer": 10, "orphans": [],
             "frozen": [], "moved_in_first_step": 10, "still_in_first_step": [],
             "dtype_cannot_hold_first_update": []}  # fmt: skip
    facts = {"recipe_name": float8, "emulated": False, "converted_modules": {}, "profiled_step": 3,
             "gemm_flops": {"aten::_scaled_mm": flops, "aten::mm": total - flops},
             "fp8_flops": flops, "fp8_flops_expected": flops,
             "fp8_share_of_matmul_flops": share, "stretches": {}, "attention": "flash",
             "parameters": owned | (parameters or {})}  # fmt: skip
    return Proof.model_validate(facts | changed)


def stretches(in_fp8: dict[int, bool], compile_s: float = 0.0) -> dict[str, dict]:
    """A proof's stretches, by first step whether each is in FP8; what a switch to FP8 compiles."""
    return {
        str(first): {
            "in_fp8": on,
            "profiled_step": first,
            "gemm_flops": {"aten::_scaled_mm": 75_000_000 * on, "aten::mm": 25_000_000},
            "compile_s": compile_s * on,
        }
        for first, on in in_fp8.items()
    }


def write_run(path, recipe="baseline", step_s=0.1, steps=30, seed=0, lines=None, warm_up=5.0,
              proves=None, **manifest) -> Path:  # fmt: skip
    """Write a run directory of `TOKENS` tokens a step; no two seeds have the same losses.

    Args:
        proves: what is different in its proof.
        manifest: what is different in its manifest; of sections only these values.
    """
    path.mkdir(parents=True)
    for section in ("hardware", "packages", "git"):
        manifest[section] = MANIFEST_FACTS[section] | manifest.get(section, {})
    float8 = recipe.split("_")[0] if "_fp8_" in recipe else None
    facts = MANIFEST_FACTS | {"recipe": recipe, "seed": seed, "steps": steps, "float8": float8}
    facts |= manifest
    write(path / MANIFEST, Manifest.model_validate_json(json.dumps(facts)))
    linear = {"recipe_name": facts["float8"], "filter_fqns": ["output"]}
    settings = {
        "training": {"seq_len": 50},
        "compile": {"enable": "compiled" in recipe},
        "quantize": {"linear": {"float8": linear}},
    }
    (path / RECIPE).write_text(json.dumps(settings))
    startup = {"import": warm_up - 1.0, "first_step": 1.0}
    if facts["compiled"]:
        startup["compile"] = 0.5
    write(
        path / TIMING, Timing(time_to_first_step_s=warm_up, startup=startup, compile_cache="cold")
    )
    write(path / PROOF, proof(facts["float8"], **(proves or {})))
    lines = metrics_lines(last=steps, step_s=step_s) if lines is None else lines
    lines = [line | {"losses": [x and x + 1e-9 * seed for x in line["losses"]]} for line in lines]
    write_lines(path / METRICS, lines)
    return path


def write_study(folder, seeds=3):
    """Three seeds of a compiled baseline at 0.1 s a step and of FP8; each seed's losses are shifted
    by 0.05.

    The baseline ends at about 10, so that the margin is about 0.025.
    """
    peaks = {"bf16": 2e9, "fp8": 4e9, "source": ""}
    recipes = {"baseline": 0.1, "baseline_compiled": 0.1, "tensorwise_fp8_compiled": 0.08}
    for seed in range(seeds):
        for recipe, step_s in recipes.items():
            late, shift = 0.0, 19 + 0.05 * seed
            if "fp8" in recipe:
                late, shift = 40.0, shift + 0.0005 * (seed + 1)
            lines = metrics_lines(last=200, step_s=step_s, shift=shift, late=late)
            facts = {"lines": lines, "steps": 200, "seed": seed, "peak_flops": peaks}
            write_run(folder / f"{recipe}{seed}", recipe, warm_up=5.0 + late, **facts)
    return folder


def write_resumed_run(path, **manifest) -> Path:
    """A run whose first process was killed after step 25 and whose second went on from a checkpoint
    of step 20."""
    killed = metrics_lines(last=25)
    write_run(
        path, lines=killed[:20] + metrics_lines(first=21, last=40), steps=40, attempt=2, **manifest
    )
    write_run(path / "attempt1", lines=killed, steps=40, status="running", attempt=1, **manifest)
    return path


def change_json(path, **values) -> None:
    """Values of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def change(folder, runs, seeds=(0, 1, 2), name="manifest.json", **values) -> None:
    """Values in a JSON file of the runs `runs`SEED of a study."""
    for seed in seeds:
        change_json(folder / f"{runs}{seed}" / name, **values)
