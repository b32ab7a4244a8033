"""Run directories: one to the row of the final table, and what else is read of one. Needs neither torch nor pandas."""

import json
import re
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import json as arrow_json
from pydantic import BaseModel, ValidationError

from analysis.record import WINDOWS, Run

LAYOUT_VERSION = 1  # of run directories, see experiments.training.run_directory
_MANIFEST_KEYS = ("recipe", "seed", "status", "steps", "overlays", "hardware", "peak_flops", "world_size",
                  "flops_per_token")  # fmt: skip
_NEEDED = ("step", "elapsed_s", "losses", "tokens_per_s", "step_s", "not_steady")  # of a line of metrics.jsonl


class _Timing(BaseModel):
    """What is read of a timing.json."""

    warm_up_s: float = 0.0
    phases: dict[str, float] = {}
    compile_cache: str = ""


class _Parameters(BaseModel):
    orphans: list[str] = []


class _Proof(BaseModel):
    """What is read of a proof.json."""

    fp8_share_of_matmul_flops: float | None = None
    emulated: bool | None = None
    attention: str | None = None
    fp8_flops: float | None = None
    fp8_flops_expected: float | None = None
    parameters: _Parameters = _Parameters()


class LayoutError(ValueError):
    """A run directory this analysis does not know how to read."""


def read_json(path: Path) -> dict:
    """Contents of a JSON file, empty if it is missing or torn."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def read_metrics(path: Path) -> list[dict]:
    """Lines of a metrics.jsonl, in order; torn ones are left out."""
    lines = []
    for text in path.read_bytes().splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return [line for line in lines if isinstance(line, dict)]


def read_last_line(path: Path) -> dict:
    """Last whole line of a metrics.jsonl, empty if there is none yet; cheap on a long file."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 65536))
            whole = [line for line in file.read().split(b"\n")[:-1] if line]
        return json.loads(whole[-1]) if whole else {}
    except (OSError, ValueError):
        return {}


def read_lines(path: Path, schema: pa.Schema, needed: tuple[str, ...], problems: list[str]) -> pa.Table:
    """A file of JSON lines as a table of `schema`.

    Lines that are no JSON, do not fit the schema or lack a column of `needed` are left out, and `problems` says so.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        problems.append(f"{path}: cannot be read ({error.strerror})")
        return schema.empty_table()
    options = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    in_one_piece = arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    try:
        table = arrow_json.read_json(pa.BufferReader(data), in_one_piece, options)
        count, numbers = len(table), np.arange(1, len(table) + 1)
    except pa.ArrowInvalid:
        texts = data.splitlines()
        lines = {number: _line(text, schema) for number, text in enumerate(texts, start=1)}
        readable = {number: line for number, line in lines.items() if line is not None}
        table = pa.concat_tables([schema.empty_table(), *readable.values()]).combine_chunks()
        count, numbers = len(texts), np.array(list(readable), dtype=int)
    usable = np.ones(len(table), dtype=bool)
    for name in needed:
        usable &= table[name].is_valid().to_numpy()
    if count == 0:
        problems.append(f"{path}: is empty")
    elif bad := sorted(set(range(1, count + 1)).difference(numbers[usable].tolist())) if usable.sum() < count else []:
        which = "the last line is cut off" if bad == [count] else f"{len(bad)} of {count} lines cannot be read"
        problems.append(f"{path}: {which} (line {bad[0]}) and left out")
    return table if usable.all() else table.filter(usable)


def _line(text: bytes, schema: pa.Schema) -> pa.Table | None:
    """One line as a table of one row; None if it is no JSON object or a value is of another type."""
    try:
        return pa.Table.from_pylist([json.loads(text)], schema=schema)
    except (ValueError, TypeError, AttributeError):
        return None


def read_manifest(run: Path) -> dict:
    """The manifest of a run directory. Raises `LayoutError` if there is none or it is of another layout."""
    manifest = read_json(run / "manifest.json")
    version = manifest.get("layout_version")
    if version != LAYOUT_VERSION:
        found = "no readable manifest.json" if version is None else f"layout version {version}"
        raise LayoutError(f"{run}: {found}; this analysis reads run directories of layout version {LAYOUT_VERSION}")
    if missing := [key for key in _MANIFEST_KEYS if key not in manifest]:
        raise LayoutError(f"{run}: its manifest.json lacks {', '.join(missing)}")
    return manifest


def summarize(run: Path, manifest: dict | None = None) -> dict:
    """The row of one run directory; what its records do not tell is None.

    Rates are over all devices, per second; times in seconds, memory in bytes, shares and MFUs as fractions of 1.
    `tokens_per_s` is the median over steady steps, with its quartiles; `wall_s` ends with the last step and counts from
    the start of the process, `wall_s_without_warm_up` from the end of the first step. Of a run that was resumed, the
    times of all attempts are added up. `manifest` is taken instead of manifest.json: the run's end is not on disk yet.

    Raises:
        LayoutError: see `read_manifest`.
    """
    return read_run(run, manifest).row()


def read_run(path: Path, manifest: dict | None = None) -> Run:
    """A run directory. Records that are missing or damaged are named in `problems`, and what can be used is used.

    Raises:
        LayoutError: see `read_manifest`.
    """
    manifest, problems = manifest or read_manifest(path), []
    completed = manifest["status"] == "completed"
    earlier = {int(p.name[7:]): p for p in path.glob("attempt*") if re.fullmatch(r"attempt\d+", p.name)}
    attempts = [*(earlier[number] for number in sorted(earlier)), path]
    tables, timings = [], []
    for attempt in attempts:
        # every attempt that got past its first step has both
        trained = completed and attempt == path or any((attempt / n).exists() for n in ("timing.json", "proof.json"))
        tables.append(_read_windows(attempt / "metrics.jsonl", trained, problems))
        timings.append(_read_record(attempt / "timing.json", _Timing, trained or len(tables[-1]) > 0, problems))
    missing = [f"attempt{k}" for k in range(1, manifest.get("attempt", 1)) if k not in earlier]
    problems += [f"{path / name}: missing, so the times of that attempt are not counted" for name in missing]
    proof = _read_record(path / "proof.json", _Proof, completed, problems)
    manifests = [*(read_json(attempt / "manifest.json") for attempt in attempts[:-1]), manifest]
    elapsed, wall = _clock(tables, [_seconds(each) for each in manifests])
    windows = tables[-1].set_column(WINDOWS.get_field_index("elapsed_s"), "elapsed_s", pa.array(elapsed))
    last, asked = (windows["step"][-1].as_py() if len(windows) else 0), manifest["steps"]
    if not completed:
        why = f" ({manifest['error']})" if manifest.get("error") else ""
        status = "not ended (running, or killed)" if manifest["status"] == "running" else manifest["status"]
        where = f"{status} at step {last} of {asked}{why}"
        problems.append(f"{path}: {where}, so it is not averaged with others")
    elif 0 < last < asked:
        problems.append(f"{path / 'metrics.jsonl'}: ends at step {last} of {asked} although the run is completed")
    warm_ups = [timing["warm_up_s"] for timing in timings if "warm_up_s" in timing]
    same = ("recipe", "seed", "status", "error", "overlays", "world_size", "flops_per_token", "flops_per_token_causal",
            "parameters", "flavor", "float8", "compiled", "study_budget_s", "start")  # fmt: skip
    return Run(
        path=path,
        source="run directory",
        windows=windows,
        problems=problems,
        device=manifest["hardware"]["name"],
        device_type=manifest["hardware"]["type"],
        steps_asked=asked,
        warm_up_s=sum(warm_ups) if warm_ups else None,
        wall_s=wall,
        compile_cache=timings[-1].get("compile_cache"),
        phases=timings[-1].get("phases"),
        fp8_share=proof.get("fp8_share_of_matmul_flops"),
        fp8_emulated=proof.get("emulated"),
        attention=proof.get("attention"),
        fp8_product=(manifest.get("fp8_product") or {}).get("why"),
        fp8_flops=_useful_fp8_flops(proof),
        orphans=len(proof.get("parameters", {}).get("orphans", [])),
        peak_bf16=manifest["peak_flops"]["bf16"],
        peak_fp8=manifest["peak_flops"]["fp8"],
        peak_source=manifest["peak_flops"]["source"],
        **{key: manifest.get(key) for key in same},
    )


def _read_record(path: Path, kind: type[BaseModel], expected: bool, problems: list[str]) -> dict:
    """A JSON file of a run directory, empty if there is none to use or a value that is read is of another type."""
    content = read_json(path)
    if not content and (expected or path.exists()):
        problems.append(f"{path}: {'cannot be read' if path.exists() else 'missing'}, what it tells is left open")
    try:
        kind.model_validate(content, strict=True)
    except ValidationError as error:
        wrong = ".".join(map(str, error.errors()[0]["loc"]))
        problems.append(f"{path}: {wrong} is of another type than it should be, what the file tells is left open")
        return {}
    return content


def _read_windows(path: Path, expected: bool, problems: list[str]) -> pa.Table:
    """The windows of one attempt, by step."""
    if path.exists():
        windows = read_lines(path, WINDOWS, _NEEDED, problems)
        steps, first = np.unique(windows["step"].to_numpy(), return_index=True)
        if (windows["step"].to_numpy()[: len(steps)] != steps).any() or len(steps) < len(windows):
            problems.append(
                f"{path}: its steps are out of order or repeated; sorted, and the first line of each is used"
            )
            windows = windows.take(first)
        return windows
    if expected:
        problems.append(f"{path}: missing, so there are no losses and no rates")
    return WINDOWS.empty_table()


def _seconds(manifest: dict) -> float:
    """How long an attempt was on record: 0 where its manifest has no end, as after kill -9."""
    if not (manifest.get("start") and manifest.get("end")):
        return 0.0
    return (datetime.fromisoformat(manifest["end"]) - datetime.fromisoformat(manifest["start"])).total_seconds()


def _clock(attempts: list[pa.Table], seconds: list[float]) -> tuple[np.ndarray, float | None]:
    """(seconds since the first attempt began at each window of the last one, seconds of all attempts together).

    A resumed attempt's metrics begin with the lines it took over from the one before; each line's `elapsed_s` counts
    from the start of the process that wrote it. Of an attempt without a line of its own, `seconds` are all there is.
    """
    before, clock, total = np.empty(0), np.empty(0), 0.0
    for table, lasted in zip(attempts, seconds, strict=True):
        stamps = table["elapsed_s"].to_numpy()
        shared = min(len(stamps), len(before))
        differs = np.flatnonzero(stamps[:shared] != before[:shared])
        taken_over = differs[0] if len(differs) else shared
        clock = np.concatenate([clock[:taken_over], stamps[taken_over:] + total])
        total += stamps[-1] if len(stamps) > taken_over else lasted
        before = stamps
    return clock, float(total) or None


def _useful_fp8_flops(proof: dict) -> float | None:
    """FLOPs per step in FP8, without what activation checkpointing computes a second time; None without a profile."""
    done = proof.get("fp8_flops")
    return done if done is None else min(done, proof.get("fp8_flops_expected", done))
