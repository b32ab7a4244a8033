"""Write run directories: runs with the step times and losses that a test asks for.

All tests that read runs write them with these functions. What a run records is in make_runs.yaml,
and studies of many runs are in tests/analysis/planted.py.
"""

import json
from itertools import accumulate
from pathlib import Path

import yaml

from experiments.records.run import MANIFEST, METRICS, PROOF, RECIPE, TIMING

TOKENS = 100  # per step
FLOPS = 10**8  # of all matmuls of a step
RECORDS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())


def over(old, new):
    """Put `new` over `old`, dict by dict."""
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {key: over(old.get(key), value) for key, value in new.items()}
    return new


def windows(seconds: list[float], losses: list[float], first=1, warm_up=5.0, every=1,
            tokens=TOKENS, useful=0.5, wait=0.0, lr=1e-3, lr_warmup=1,
            settling=()) -> list[dict]:  # fmt: skip
    """Write what a process logs.

    Args:
        seconds, losses: of each of its steps, from `first` on.
        warm_up: seconds from the start of the process to the end of its first step.
        every: steps that a line has; the last line may have fewer.
        useful: share of the tokens that is no padding.
        wait: seconds of each step that are a wait for data.
        lr_warmup: steps in which the learning rate grows.
        settling: steps that count for no rate, besides the first 10 of the process.
    """
    elapsed = list(accumulate(seconds, initial=warm_up - seconds[0]))
    last, lines, begin = first + len(seconds) - 1, [], 0
    for step in range(first, last + 1):
        if step % every and step != last:
            continue
        end = step - first + 1
        took, logged = seconds[begin:end], losses[begin:end]
        rate = tokens * len(took) / sum(took)
        steps = range(first + begin, step + 1)
        lines.append({
            "step": step, "elapsed_s": elapsed[end], "loss": sum(logged) / len(logged),
            "losses": logged, "grad_norm": 1.0, "lr": lr * min(1.0, step / lr_warmup),
            "tokens_per_s": rate, "valid_tokens_per_s": rate * useful, "step_s": took,
            "data_wait_s": [wait] * len(took),
            "not_steady": [step for step in steps if step < first + 10 or step in settling],
            "peak_memory_bytes": step * 2**20,
        })  # fmt: skip
        begin = end
    return lines


def metrics_lines(first=1, last=30, step_s=0.1, window=1, shift=0.0, late=0.0) -> list[dict]:
    """Write what one process logs for steps `first` to `last`: 4 s of start-up and what it is late,
    10 slow steps, then `step_s` each. Losses are higher by `shift`."""
    steps = range(first, last + 1)
    seconds = [1.0 if step < first + 10 else step_s for step in steps]
    losses = [10 - step / 10 + shift for step in steps]
    return windows(seconds, losses, first, 5.0 + late, window)


def write_lines(path: Path, lines: list[dict]) -> None:
    """Write lines of JSON."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def proof(float8: str | None, share=0.75, ran=1.0) -> dict:
    """Write a proof: `share` of the FLOPs is in FP8 layers, of which `ran` in FP8; none in bf16."""
    expected = round(share * FLOPS) if float8 else 0
    in_fp8 = round(expected * ran)
    return RECORDS["proof"] | {
        "recipe_name": float8,
        "gemm_flops": {"aten::_scaled_mm": in_fp8, "aten::mm": FLOPS - in_fp8},
        "fp8_flops": in_fp8,
        "fp8_flops_expected": expected,
        "fp8_share_of_matmul_flops": in_fp8 / FLOPS,
    }


def stretches(in_fp8: dict[int, bool], compile_s=0.0) -> dict:
    """Write a proof's stretches, by first step whether each is in FP8, and what a switch to FP8
    compiles."""
    return {
        str(first): {
            "in_fp8": on,
            "profiled_step": first,
            "gemm_flops": {"aten::_scaled_mm": FLOPS * on},
            "compile_s": compile_s * on,
        }
        for first, on in in_fp8.items()
    }


def write_run(path, recipe="baseline", step_s=0.1, steps=30, seed=0, lines=None, warm_up=5.0,
              proves=None, settings=None, timing=None, **manifest) -> Path:  # fmt: skip
    """Write a run directory, of `TOKENS` tokens a step; no two seeds have the same losses.

    Args:
        lines: of its log, in place of `metrics_lines`.
        warm_up: seconds to the end of the first step.
        settings: its resolved recipe.
        proves, timing, manifest: what is different in proof.json, timing.json, manifest.json.
    """
    path.mkdir(parents=True, exist_ok=True)
    float8 = recipe.split("_")[0] if "_fp8_" in recipe else None
    facts = {"recipe": recipe, "seed": seed, "steps": steps, "float8": float8} | manifest
    facts = over(RECORDS["manifest"], facts)
    linear = {"recipe_name": facts["float8"], "filter_fqns": ["output"]}
    startup = {"import": warm_up - 1.0, "first_step": 1.0, "compile": 0.5 * facts["compiled"]}
    took = {"time_to_first_step_s": warm_up, "startup": startup}
    took["compile_cache"] = "cold" if facts["compiled"] else "none"
    records = {
        MANIFEST: facts,
        TIMING: over(took, timing or {}),
        PROOF: over(proof(facts["float8"]), proves or {}),
        RECIPE: settings or {
            "training": {"seq_len": 50},
            "compile": {"enable": "compiled" in recipe},
            "quantize": {"linear": {"float8": linear}},
        },
    }  # fmt: skip
    for name, record in records.items():
        (path / name).write_text(json.dumps(record))
    if lines is None:
        lines = metrics_lines(last=steps, step_s=step_s, shift=1e-9 * seed, late=warm_up - 5.0)
    write_lines(path / METRICS, lines)
    return path


def change_json(path, **values) -> None:
    """Change values of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
