"""A run as it was recorded: facts and log windows, of a run directory or another program's log."""

import math
from dataclasses import dataclass, field
from os.path import commonprefix
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.records.files import read, read_if_there, read_windows
from experiments.records.run import (
    ATTEMPT,
    MANIFEST,
    METRICS,
    PROOF,
    TIMING,
    Manifest,
    Proof,
    Timing,
    Window,
)

# A process's first steps: compilation, the profile; allocator and clocks settle.
NOT_STEADY_STEPS = 10
# One row a log window: the contract's fields, and what another program called its MFU.
WINDOW_COLUMNS = [*Window.model_fields, "mfu_logged"]
_NOT_NUMBERS = {"step", "losses", "step_s", "data_wait_s", "not_steady", "fp8_ranges"}
_NUMBERS = dict.fromkeys([name for name in WINDOW_COLUMNS if name not in _NOT_NUMBERS], float)
# Columns of the runs frame that have another name than the record's field.
_RENAMED = {
    "steps": "steps_asked",
    "hardware.name": "device",
    "hardware.type": "device_type",
    "hardware.driver": "driver",
    "hardware.power_limit_w": "power_limit_w",
    "hardware.sm_clock_max_mhz": "sm_clock_max_mhz",
    "peak_flops.bf16": "peak_bf16",
    "peak_flops.fp8": "peak_fp8",
    "peak_flops.source": "peak_source",
    "git.commit": "commit",
    "fp8_matmul.why": "fp8_matmul",
    "packages.torch": "torch",
    "packages.torchao": "torchao",
    "packages.torchtitan": "torchtitan",
    "timing.phases": "phases",
    "timing.compile_cache": "compile_cache",
    "proof.fp8_share_of_matmul_flops": "fp8_share",
    "proof.emulated": "fp8_emulated",
    "proof.attention": "attention",
}


@dataclass
class Run:
    """What a run left behind.

    Args:
        facts: columns of `analysis.load.Frames.runs`. Also, where they are known, `precisions` (by
            the first step of each phase, whether the phase is in FP8), `fp8_flops` of a step of one
            device, `study_budget_s`, and `study`: the folder whose logs should be equally long.
        windows: columns `WINDOW_COLUMNS`.
        problems: one sentence for each reason to doubt its figures.
    """

    path: Path
    facts: dict[str, Any]
    windows: pd.DataFrame
    problems: list[str] = field(default_factory=list)


def even_windows(
    step: np.ndarray, count: np.ndarray, seconds: np.ndarray, data_wait=math.nan, **columns
) -> pd.DataFrame:
    """Make `Run.windows` of one process's log that times windows, but no single steps.

    Args:
        step, count, seconds: of each window the last step, the number of steps, and the duration,
            which is spread over the steps evenly.
        data_wait: share of the duration that the host waited for data.
        columns: further columns. `loss` is the last step's.
    """
    frame = pd.DataFrame({"step": step, "elapsed_s": np.cumsum(seconds)} | columns)
    frame = frame.reindex(columns=WINDOW_COLUMNS).astype(_NUMBERS)
    each = pd.DataFrame({"step_s": seconds / count, "data_wait_s": seconds / count * data_wait})
    settled = step[0] - count[0] + 1 + NOT_STEADY_STEPS
    for name in each:
        frame[name] = [[value] * n for value, n in zip(each[name], count, strict=True)]
    frame["losses"] = [
        [math.nan] * (n - 1) + [loss] for n, loss in zip(count, frame["loss"], strict=True)
    ]
    frame["not_steady"] = [
        [*range(last - n + 1, last + 1)] if last - n + 1 < settled else []
        for last, n in zip(step, count, strict=True)
    ]
    return frame


def read_run(path: Path) -> Run:
    """Read a run directory.

    Raises:
        RecordError: a record is missing or does not fit its model.
    """
    manifest = read(path / MANIFEST, Manifest)
    maybe = read if manifest.status == "completed" else read_if_there
    maybe(path / TIMING, Timing)
    proof = maybe(path / PROOF, Proof)
    folders = [path / ATTEMPT.format(number) for number in range(1, manifest.attempt)]
    attempts = [_Attempt(folder) for folder in [*folders, path]]
    timings = [attempt.timing for attempt in attempts if attempt.timing]
    facts = _facts(manifest, timings, proof)
    windows = pd.DataFrame(map(vars, attempts[-1].windows), columns=WINDOW_COLUMNS)
    run = Run(path, facts, windows.astype(_NUMBERS | {"step": int}))
    _set_clock(run, attempts)
    return run


class _Attempt:
    """One process of a run."""

    def __init__(self, folder: Path):
        manifest = read(folder / MANIFEST, Manifest)
        self.windows = read_windows(folder / METRICS)
        self.timing = read_if_there(folder / TIMING, Timing)
        self.lasted_s = 0.0  # unknown after kill -9
        if manifest.end:
            self.lasted_s = (manifest.end - manifest.start).total_seconds()


def _facts(manifest: Manifest, timings: list[Timing], proof: Proof | None) -> dict[str, Any]:
    """Name what the records tell as `analysis.load.Frames.runs` does."""
    records = manifest.model_dump()
    if timings:
        records["timing"] = timings[-1].model_dump()
    if proof:
        records["proof"] = proof.model_dump()
    (facts,) = pd.json_normalize(records, max_level=1).rename(columns=_RENAMED).to_dict("records")
    facts |= {
        "source": "run directory",
        "start": manifest.start.isoformat(timespec="milliseconds"),
        "date": f"{manifest.start:%Y-%m-%d}",
        "warm_up_s": sum(timing.warm_up_s for timing in timings) or None,
    }
    if manifest.git.commit:
        changes = manifest.git.changes
        facts["code"] = manifest.git.commit[:9] + (f" and changes {changes}" if changes else "")
    if proof:
        facts["fp8_flops"] = min(proof.fp8_flops, proof.fp8_flops_expected)
        facts["precisions"] = {int(first): phase.in_fp8 for first, phase in proof.phases.items()}
        facts["orphans"] = len(proof.parameters.orphans)
        if proof.collectives:
            facts |= proof.collectives.model_dump(include={"gathered_bytes", "reduced_bytes"})
    return facts


def _set_clock(run: Run, attempts: list[_Attempt]) -> None:
    """Count `elapsed_s` on from earlier attempts, and `wall_s` over all of them.

    The log of an attempt starts with the windows that it took over from the one before. Where a
    clock does not fit the step times, wall times are unknown.
    """
    before: list[float] = []
    clock: list[float] = []
    total = 0.0
    for attempt in attempts:
        stamps = [window.elapsed_s for window in attempt.windows]
        taken_over = len(commonprefix([before, stamps]))
        own = stamps[taken_over:]
        if own and attempt.timing:
            jump = _jump(attempt.windows[taken_over:], attempt.timing)
            if jump:
                run.problems.append(jump)
                run.windows["elapsed_s"] = math.nan
                return
        clock = clock[:taken_over] + [total + stamp for stamp in own]
        total += own[-1] if own else attempt.lasted_s
        before = stamps
    run.windows["elapsed_s"] = clock
    run.facts["wall_s"] = total or None


def _jump(windows: list[Window], timing: Timing) -> str | None:
    """Say where the clock of one process leaves its step times by more than 10 s and a tenth.

    At the end of the first step the clock shows the warm-up. Then each step adds its time.
    """
    expected = np.array([sum(window.step_s) for window in windows])
    expected[0] += timing.warm_up_s - windows[0].step_s[0]
    off = np.diff([window.elapsed_s for window in windows], prepend=0) - expected
    counts = np.array([len(window.step_s) for window in windows])
    after_gap = np.diff([window.step for window in windows]) > counts[1:]
    off[1:][after_gap] = 0.0
    jumps = np.flatnonzero(abs(off) > 10 + 0.1 * expected)
    if not len(jumps):
        return None
    first = jumps[0]
    return (
        f"its clock jumps by {off[first]:+,.0f} s by step {windows[first].step}, which its step "
        "times do not show, so its wall times are not used"
    )
