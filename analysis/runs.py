"""A run directory, read: its row of the final table and its log windows. Needs neither torch nor
pandas."""

import json
import math
import re
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from itertools import takewhile
from operator import getitem
from pathlib import Path

import numpy as np
import yaml
from pydantic import ValidationError

from analysis.record import Facts, LayoutError, Run, with_verdict
from analysis.windows import METRICS, Windows, durations, first_steps, from_lines, read_lines, take

LAYOUT_VERSION = 1  # of run directories, see experiments.training.run_directory
_NEEDED = ("recipe", "seed", "status", "steps", "overlays", "hardware", "peak_flops", "world_size",
           "flops_per_token")  # of the manifest; the seed may be null  # fmt: skip


@dataclass(frozen=True)
class _Attempt:
    """One process of a run. `lasted_s` is how long it was on record, 0 where its manifest has no
    end (kill -9)."""

    windows: Windows
    facts: Facts
    lasted_s: float


def summarize(run: Path, manifest: dict | None = None) -> dict:
    """The row of one run directory, see `analysis.load.Frames`; what its records do not tell is
    None.

    Args:
        run: the run directory.
        manifest: what its manifest.json will be, where that is not written yet.

    Raises:
        LayoutError: there is no manifest, it is of another layout, or it lacks what is needed.
    """
    return with_verdict(read_run(run, manifest)).row()


def read_run(path: Path, manifest: dict | None = None) -> Run:
    """A run directory. Records that are missing or damaged are named in `problems`, and what can be
    used is used.

    Arguments and errors as of `summarize`.
    """
    problems: list[str] = []
    if pipe := next(
        (file for pattern in ("*", "attempt*/*") for file in path.glob(pattern) if file.is_fifo()),
        None,
    ):
        raise LayoutError(
            f"{path}: {pipe.relative_to(path)} is a pipe, which reading would wait for"
        )
    manifest = read_json(path / "manifest.json") if manifest is None else deepcopy(manifest)
    version = manifest.get("layout_version")
    if version != LAYOUT_VERSION:
        reason = (
            "no readable manifest.json" if version is None else f"layout version {version!r:.20}"
        )
        raise LayoutError(
            f"{path}: {reason}; this analysis reads run directories of layout version {LAYOUT_VERSION}"
        )
    if missing := [
        key for key in _NEEDED if key not in manifest or manifest[key] is None and key != "seed"
    ]:
        raise LayoutError(f"{path}: its manifest.json lacks {', '.join(missing)}")
    earlier = {
        int(p.name[7:]): p for p in path.glob("attempt*") if re.fullmatch(r"attempt\d{1,6}", p.name)
    }
    number = manifest.get("attempt", 1)
    missing = (
        [k for k in range(1, number) if k not in earlier]
        if type(number) is int and number < 10**6
        else []
    )
    problems += [
        f"{path}/attempt{k}: missing, so the times of that attempt are not counted" for k in missing
    ]
    attempts = [
        _attempt(earlier[k], read_json(earlier[k] / "manifest.json"), problems)
        for k in sorted(earlier)
    ]
    attempts.append(_attempt(path, manifest, problems, last=True))
    elapsed, wall = _clock(path, attempts, problems)
    warm_ups = [
        attempt.facts.warm_up_s for attempt in attempts if attempt.facts.warm_up_s is not None
    ]
    windows = attempts[-1].windows | {"elapsed_s": elapsed}
    run = Run(path, "run directory", attempts[-1].facts, windows, problems)
    return run.changed(wall_s=wall, warm_up_s=sum(warm_ups) if warm_ups else None)


def read_json(path: Path) -> dict:
    """Contents of a JSON file, empty if it is missing or torn."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _read_recipe(path: Path) -> dict:
    """A resolved recipe, of which only the section `training` is read (all take 15 ms); empty as
    `read_json`."""
    try:
        section = re.search(r"^training:\n(  .*\n)+(?=\w)", path.read_text("utf-8"), re.MULTILINE)
        return yaml.safe_load(section[0]) if section else {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}


def _attempt(path: Path, manifest: dict, problems: list[str], last: bool = False) -> _Attempt:
    """The records of one process; of the last one those that describe the run, too."""
    completed = last and manifest["status"] == "completed"
    # every process that got past its first step has written both
    trained = completed or any((path / name).exists() for name in ("timing.json", "proof.json"))
    windows = _windows(path / "metrics.jsonl", trained, problems)
    expected = {"timing.json": trained or len(windows["step"]) > 0}
    if last:
        expected |= {"proof.json": completed, "recipe.yaml": True}
    records = {"manifest.json": manifest} if last else {}
    for name, must_be_there in expected.items():
        file = path / name
        records[name] = read_json(file) if name.endswith(".json") else _read_recipe(file)
        if not records[name] and (must_be_there or file.exists()):
            problems.append(
                f"{file}: {'cannot be read' if file.exists() else 'missing'}, so what it tells is unknown"
            )
    try:
        span = datetime.fromisoformat(manifest["end"]) - datetime.fromisoformat(manifest["start"])
        lasted = max(0.0, span.total_seconds())
    except (KeyError, TypeError, ValueError):
        lasted = 0.0
    return _Attempt(windows, _facts(path, records, problems), lasted)


def _facts(path: Path, records: dict[str, dict], problems: list[str]) -> Facts:
    """What the records (by file name) tell, without the values that are of another type, which are
    named.

    Raises `LayoutError` if one of `_NEEDED` is among them.
    """
    bad = {
        tuple(alias.path[:2])
        for column in Facts.model_fields.values()
        if (alias := column.validation_alias) and len(alias.path) > 2
        if not isinstance(records.get(alias.path[0], {}).get(alias.path[1]), dict | None)
    }
    try:
        Facts.model_validate(records)
    except ValidationError as error:
        bad |= {
            tuple(takewhile(lambda key: isinstance(key, str), e["loc"])) for e in error.errors()
        }
    for file, *sections, key in sorted(bad):
        if file == "manifest.json" and key in _NEEDED:
            raise LayoutError(f"{path}: its manifest.json has no usable {key}")
        place = ".".join([*sections, key])
        problems.append(
            f"{path / file}: {place} is of another type or size than it should be, so it is left out"
        )
        del reduce(getitem, sections, records[file])[key]
    return Facts.model_validate(records)


def _windows(path: Path, expected: bool, problems: list[str]) -> Windows:
    """The windows of one attempt, by step."""
    if expected and not path.exists():
        problems.append(f"{path}: missing, so there are no losses and no rates")
    lines = read_lines(path, METRICS, problems) if path.exists() else []
    by_step = {
        line["step"]: line for line in reversed(lines)
    }  # of a repeated step the first line stays
    ordered = [by_step[step] for step in sorted(by_step)]
    if ordered != lines:
        problems.append(
            f"{path}: its steps are out of order or repeated; sorted, and the first line of each is used"
        )
    return from_lines(ordered)


def _clock(
    path: Path, attempts: list[_Attempt], problems: list[str]
) -> tuple[np.ndarray, float | None]:
    """(seconds since the first attempt began at each window of the last one, seconds of all
    attempts together).

    A resumed attempt's metrics begin with the lines it took over from the one before; each line's
    `elapsed_s` counts from the start of the process that wrote it. Of an attempt without a line of
    its own, its manifest's times are all there is. Where a clock does not fit the step times,
    nothing is known: NaN and None.
    """
    before, clock, total = np.empty(0), np.empty(0), 0.0
    for attempt in attempts:
        stamps = attempt.windows["elapsed_s"]
        shared = min(len(stamps), len(before))
        differs = np.flatnonzero(stamps[:shared] != before[:shared])
        taken_over = differs[0] if len(differs) else shared
        if jump := _jump(take(attempt.windows, slice(taken_over, None)), attempt.facts.warm_up_s):
            problems.append(f"{path}: {jump}, so its wall times are not used")
            return np.full(len(attempts[-1].windows["step"]), math.nan), None
        clock = np.concatenate([clock[:taken_over], stamps[taken_over:] + total])
        total += stamps[-1] if len(stamps) > taken_over else attempt.lasted_s
        before = stamps
    return clock, float(total) or None


def _jump(windows: Windows, warm_up_s: float | None) -> str | None:
    """Where the clock of one process does not fit its step times, to within 10 s and a tenth; None
    if it fits.

    At the end of the first step the clock, `elapsed_s`, shows the warm-up; then each step adds its
    time.
    """
    if not len(windows["step"]):
        return None
    expected, passed = durations(windows), np.diff(windows["elapsed_s"], prepend=0)
    expected[0] += (warm_up_s or math.nan) - windows["step_s"][0][0]
    expected[1:][first_steps(windows)[1:] > windows["step"][:-1] + 1] = (
        math.nan
    )  # after a gap, nothing is known
    off = np.flatnonzero(np.abs(passed - expected) > 10 + 0.1 * np.abs(expected))
    if not len(off):
        return None
    jump, step = (passed - expected)[off[0]], windows["step"][off[0]]
    return f"its clock jumps by {jump:+,.0f} s by step {step}, which its step times do not show"
