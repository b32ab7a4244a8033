"""Write run directories: runs with the step times, losses and records that a test asks for.

All tests that read runs write them with these functions. What a run records is in make_runs.yaml,
and studies of many runs are in tests/analysis/planted.py.
"""

import json
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import yaml

from experiments.config import recipes
from experiments.records.run import METRICS, RECIPE, RUN_RECORD, Attempt
from models.scaling import SCALINGS

RECORDS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
FLOPS = 10**8  # of all matmuls of a step
IN_FP8 = 1 - 536870912 / 7516459008  # share of the matmuls of the 8 B model: all but the head
BEGIN = datetime(2026, 3, 2, 8, 0, tzinfo=UTC).timestamp()


def write_run(
    path: Path,
    recipe="baseline",
    seconds=(0.1,) * 30,
    losses=(10.0,) * 30,
    begin=0.0,
    warm_up=5.0,
    made=None,
    earlier=(),
    twice=(0, 0),
    lose=(),
    log=None,
    settings=None,
    **facts,
) -> float:
    """Write a run directory; returns when the run ended.

    Args:
        seconds, losses: of each step.
        begin: seconds from `BEGIN` to the start of the first attempt.
        warm_up: seconds from process start to the end of its first step.
        made: steps that the run made, if not all.
        earlier: attempts before it: step of the last checkpoint, last step, status.
        twice: the lines of its log from one number to another are there twice.
        lose: names of files that are lost.
        log: what `intervals` is given besides.
        settings: what is different in its resolved recipe.
        facts: what is different in its record, as `record` takes it.
    """
    facts = {"steps": len(seconds)} | facts
    settings = over(resolved(recipe), settings or {})
    kept = record(recipe, settings, warm_up, **facts)
    [last_attempt] = kept["attempts"]
    made = made or len(seconds)
    attempts = [*earlier, (made, made, last_attempt["status"])]
    kept["attempts"] = []
    lines = []
    first = 1
    for number, (saved, last, status) in enumerate(attempts, 1):
        own = slice(first - 1, last)
        words = {"attempt": number} | (log or {})
        lines += intervals(seconds[own], losses[own], first, warm_up, **words)
        ended = begin + lines[-1]["elapsed_s"] + 5
        attempt = {"number": number, "status": status, "start": stamp(begin)}
        attempt["end"] = None if status == "running" else stamp(ended)
        kept["attempts"].append(last_attempt | attempt)
        first = saved + 1
        begin = ended + 30
    path.mkdir(parents=True, exist_ok=True)
    (path / RECIPE).write_text(json.dumps(settings))
    (path / RUN_RECORD).write_text(json.dumps(kept))
    again, end = twice
    write_lines(path / METRICS, lines[:end] + lines[again:])
    for name in lose:
        (path / name).unlink()
    return ended


def intervals(
    seconds,
    losses,
    first=1,
    warm_up=5.0,
    every=5,
    tokens=4096,
    useful=1.0,
    wait=3e-4,
    lr=5e-5,
    lr_warmup=100,
    settling=(),
    short=(),
    jump=0.0,
    attempt=1,
) -> list[dict]:
    """Make the lines that a process logs.

    Args:
        seconds, losses: of each of its steps, from `first` on.
        every: steps that a line has; the last line may have fewer.
        tokens: of a step, of which the share `useful` is no padding.
        wait: seconds of each step that are a wait for data.
        lr_warmup: steps in which the learning rate grows.
        settling: steps that count for no rate, besides the first 10 of the process.
        short: steps in which the allocator found the GPU's memory too short.
        jump: seconds by which the clock is set on at step 500.
        attempt: number of the process.
    """
    elapsed = warm_up - seconds[0]
    lines = []
    for begin in range(0, len(seconds), every):
        took = [*seconds[begin : begin + every]]
        logged = [*losses[begin : begin + every]]
        steps = range(first + begin, first + begin + len(took))
        elapsed += sum(took)
        rate = tokens * len(took) / sum(took)
        line = {
            "attempt": attempt,
            "step": steps[-1],
            "elapsed_s": elapsed + jump * (steps[-1] > 500),
            "loss": sum(logged) / len(logged),
            "losses": logged,
            "grad_norm": 1.0,
            "lr": lr * min(1.0, steps[-1] / lr_warmup),
            "tokens_per_s": rate,
            "valid_tokens_per_s": rate * useful,
            "step_s": took,
            "data_wait_s": [wait] * len(took),
            "not_steady": [step for step in steps if step < first + 10 or step in settling],
            "allocator_retries": [step for step in steps if step in short],
            "peak_memory_bytes": 2**30,
        }
        lines.append(line)
    return lines


def record(recipe: str, settings: dict, warm_up=5.0, proof=None, timing=None, **facts) -> dict:
    """Make the record of a run with one attempt.

    Args:
        settings: the resolved recipe.
        proof, timing: what is different there.
        facts: what else is different, of the run and of the attempt.
    """
    float8 = settings["quantize"]["linear"]["float8"]["recipe_name"]
    compiled = recipe != "baseline"
    share = IN_FP8 * SCALINGS[float8].matmuls / 3 if float8 in SCALINGS else 0.0
    in_fp8 = round(share * FLOPS)
    proves = {
        "recipe_name": float8,
        "gemm_flops": {"aten::_scaled_mm": in_fp8, "aten::mm": FLOPS - in_fp8},
        "fp8_flops": in_fp8,
        "fp8_flops_expected": in_fp8,
    }
    took = {
        "time_to_first_step_s": warm_up,
        "startup": {"import": warm_up - 1.0, "first_step": 1.0, "compile": 0.5 * compiled},
        "compile_cache": "cold" if compiled else "none",
    }
    of_attempt = {name: facts.pop(name) for name in facts.keys() & Attempt.model_fields.keys()}
    made = RECORDS["run"] | {"recipe": recipe, "compiled": compiled}
    made["attempts"] = [over(RECORDS["attempt"] | {"timing": over(took, timing or {})}, of_attempt)]
    made["proof"] = over(RECORDS["proof"] | proves, proof or {})
    return over(made, facts)


@cache
def resolved(recipe: str) -> dict:
    """Resolve a recipe; a user's own is tensorwise FP8's under another name."""
    known = recipe if recipe in recipes.yaml_files(recipes.RECIPES) else "tensorwise_fp8_compiled"
    return yaml.load(recipes.to_yaml(recipes.load(known)), yaml.CSafeLoader)


def over(old, new):
    """Put `new` over `old`, dict by dict."""
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {key: over(old.get(key), value) for key, value in new.items()}
    return new


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(BEGIN + seconds, UTC).isoformat()


def write_lines(path: Path, lines: list[dict]) -> None:
    """Write lines of JSON."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def change_lines(path: Path, **values) -> None:
    """Change values of all lines of a log."""
    lines = [json.loads(line) | values for line in path.read_text().splitlines()]
    write_lines(path, lines)
