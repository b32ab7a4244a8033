"""One run directory to one row of the final table. Needs neither torch nor pandas, and works on unfinished runs."""

import json
import statistics
from pathlib import Path

LAYOUT_VERSION = 1  # of run directories, see experiments.rundir
FINAL_WINDOWS = 10  # log windows that the final loss is the mean of


class LayoutError(ValueError):
    """A run directory this analysis does not know how to read."""


def read_json(path: Path) -> dict:
    """Contents of a JSON file, empty if it is missing or torn."""
    try:
        return json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        return {}


def read_metrics(path: Path) -> list[dict]:
    """Lines of a metrics.jsonl, in order; a torn last line is left out."""
    lines = []
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return lines


def read_last_line(path: Path) -> dict:
    """Last whole line of a metrics.jsonl, empty if there is none yet; cheap on a long file."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 65536))
            whole = [line for line in file.read().split(b"\n")[:-1] if line]
        return json.loads(whole[-1]) if whole else {}
    except (OSError, json.JSONDecodeError):
        return {}


def read_manifest(run: Path) -> dict:
    """The manifest of a run directory. Raises `LayoutError` if there is none or it is of another layout."""
    manifest = read_json(run / "manifest.json")
    version = manifest.get("layout_version")
    if version != LAYOUT_VERSION:
        found = "no readable manifest.json" if version is None else f"layout version {version}"
        raise LayoutError(f"{run}: {found}; this analysis reads run directories of layout version {LAYOUT_VERSION}")
    return manifest


def steady_steps(lines: list[dict]) -> list[float]:
    """Seconds of each steady step: after a process's first 10, and not after one that saved a checkpoint."""
    return [seconds for line in lines for step, seconds in _timed(line, "step_s") if step not in line["not_steady"]]


def _timed(line: dict, key: str) -> list[tuple[int, float]]:
    """(step, seconds) of each step of a window."""
    first = line["step"] - len(line[key]) + 1
    return list(enumerate(line[key], start=first))


def summarize(run: Path) -> dict:
    """The row of one run; what its records do not tell is None.

    Rates are over all devices, per second; times in seconds, memory in bytes, shares and MFUs as fractions of 1.
    `tokens_per_s` is the median over steady steps, with its quartiles; `wall_s` ends with the last step and counts from
    the start of the process, `wall_s_without_warm_up` from the end of the first step. Of a run that was resumed, the
    times of all attempts are added up.

    Raises:
        LayoutError: see `read_manifest`.
    """
    manifest, timing, proof = (read_manifest(run), read_json(run / "timing.json"), read_json(run / "proof.json"))
    lines = read_metrics(run / "metrics.jsonl")
    attempts = [*sorted(run.glob("attempt*")), run]
    ends = [read_last_line(attempt / "metrics.jsonl").get("elapsed_s") for attempt in attempts]
    warm_ups = [read_json(attempt / "timing.json").get("warm_up_s") for attempt in attempts]
    wall, warm_up = _sum_known(ends), _sum_known(warm_ups)
    row = {
        "recipe": manifest["recipe"],
        "seed": manifest["seed"],
        "status": manifest["status"],
        "error": manifest.get("error"),
        "device": manifest["hardware"]["name"],
        "device_type": manifest["hardware"]["type"],
        "overlays": manifest["overlays"],
        "steps": lines[-1]["step"] if lines else 0,
        "steps_asked": manifest["steps"],
        "final_loss": _mean_loss(lines[-FINAL_WINDOWS:]),
        "warm_up_s": warm_up,
        "compile_cache": timing.get("compile_cache"),
        "wall_s": wall,
        "wall_s_without_warm_up": wall - warm_up if wall and warm_up else None,
        "fp8_share": proof.get("fp8_share_of_matmul_flops"),
        "fp8_emulated": proof.get("emulated"),
        "peak_memory_bytes": max((line["peak_memory_bytes"] for line in lines), default=None),
        "peak_source": manifest["peak_flops"]["source"],
    }
    return row | _rates(manifest, proof, lines)


def _mean_loss(lines: list[dict]) -> float | None:
    """None if there is no line, or a loss among them that was not finite."""
    losses = [line["loss"] for line in lines]
    return None if not losses or None in losses else statistics.fmean(losses)


def _sum_known(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _rates(manifest: dict, proof: dict, lines: list[dict]) -> dict:
    """Steady rates of a run, and the MFUs that follow from the median."""
    keys = ("tokens_per_s", "tokens_per_s_q1", "tokens_per_s_q3", "valid_tokens_per_s", "data_wait_share")
    keys += ("mfu_bf16_peak", "mfu_fp8_peak", "mfu_mixed_peak")
    seconds = steady_steps(lines)
    if len(seconds) < 2:
        return dict.fromkeys(keys)
    tokens_per_step = lines[0]["tokens_per_s"] * sum(lines[0]["step_s"]) / len(lines[0]["step_s"])
    slow, median, fast = (tokens_per_step / q for q in reversed(statistics.quantiles(seconds, n=4, method="inclusive")))
    valid_share = sum(line["valid_tokens_per_s"] / line["tokens_per_s"] for line in lines) / len(lines)
    waits = [s for line in lines for step, s in _timed(line, "data_wait_s") if step not in line["not_steady"]]
    per_device, flops, peak = median / manifest["world_size"], manifest["flops_per_token"], manifest["peak_flops"]
    mixed = None
    if peak["fp8"] and proof:
        fp8_flops = proof["fp8_flops"] * manifest["world_size"] / tokens_per_step
        mixed = per_device * (fp8_flops / peak["fp8"] + (flops - fp8_flops) / peak["bf16"])
    mfus = (
        per_device * flops / peak["bf16"],
        per_device * flops / peak["fp8"] if peak["fp8"] else None,
        mixed,
    )
    return dict(zip(keys, (median, slow, fast, median * valid_share, sum(waits) / sum(seconds), *mfus), strict=True))
