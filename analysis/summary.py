"""One run directory to one row of the final table. Needs neither torch nor pandas, and works on unfinished runs."""

import json
import statistics
from pathlib import Path

LAYOUT_VERSION = 1  # of run directories, see experiments.rundir
STEADY_AFTER = 10  # steps: compilation, allocator and clocks have settled
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
    """Seconds of each steady step: after the first 10, and neither profiled nor saving a checkpoint."""
    return [
        seconds
        for line in lines
        for step, seconds in zip(_steps(line), line["step_s"], strict=True)
        if step > STEADY_AFTER and step not in line["not_steady"]
    ]


def _steps(line: dict) -> range:
    return range(line["step"] - len(line["step_s"]) + 1, line["step"] + 1)


def summarize(run: Path) -> dict:
    """The row of one run; what its records do not tell is None.

    Rates are over all devices, per second; times in seconds, memory in bytes, shares and MFUs as fractions of 1.
    `tokens_per_s` is the median over steady steps, with its quartiles; `wall_s` ends with the last step and counts from
    the start of the process, `wall_s_without_warm_up` from the end of the first step.

    Raises:
        LayoutError: see `read_manifest`.
    """
    manifest, timing, proof = (read_manifest(run), read_json(run / "timing.json"), read_json(run / "proof.json"))
    lines = read_metrics(run / "metrics.jsonl")
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
        "final_loss": statistics.fmean(line["loss"] for line in lines[-FINAL_WINDOWS:]) if lines else None,
        "warm_up_s": timing.get("warm_up_s"),
        "compile_cache": timing.get("compile_cache"),
        "wall_s": lines[-1]["elapsed_s"] if lines else None,
        "wall_s_without_warm_up": lines[-1]["elapsed_s"] - timing["warm_up_s"] if lines and timing else None,
        "fp8_share": proof.get("fp8_share_of_matmul_flops"),
        "fp8_emulated": proof.get("emulated"),
        "peak_memory_bytes": max((line["peak_memory_bytes"] for line in lines), default=None),
        "peak_source": manifest["peak_flops"]["source"],
    }
    return row | _rates(manifest, proof, lines)


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
    waits = sum(sum(line["data_wait_s"]) for line in lines if line["step"] > STEADY_AFTER)
    spent = sum(sum(line["step_s"]) for line in lines if line["step"] > STEADY_AFTER)

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
    return dict(zip(keys, (median, slow, fast, median * valid_share, waits / spent, *mfus), strict=True))
