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
_NOT_NUMBERS = {"losses", "step_s", "data_wait_s", "not_steady", "fp8_ranges"}
# One row a log window: the contract's fields, and what another program called its MFU.
WINDOW_COLUMNS = [*Window.model_fields, "mfu_logged"]
_NUMBERS = [name for name in WINDOW_COLUMNS if name not in _NOT_NUMBERS | {"step"}]
_SAME_NAME = {"recipe", "seed", "status", "error", "attempt", "study_budget_s", "overlays",
              "flavor", "float8", "compiled", "parameters", "flops_per_token", "seq_len", "dataset",
              "data", "world_size"}  # fmt: skip


class LayoutError(ValueError):
    """Files that this analysis does not know how to read."""


@dataclass
class Run:
    """What a run left behind.

    Args:
        source: "run directory", "published log" or "tensorboard".
        facts: columns of `analysis.load.Frames.runs`, and of a run with phases `precisions`: by
            first step, whether the phase is in FP8.
        windows: columns `WINDOW_COLUMNS`.
        problems: one sentence for each reason to doubt its figures.
        study: of another program's log, the folder whose logs should be equally long.
    """

    path: Path
    source: str
    facts: dict[str, Any]
    windows: pd.DataFrame
    problems: list[str] = field(default_factory=list)
    study: Path | None = None

    @property
    def steps(self) -> int:
        """The last step on record."""
        return int(self.windows["step"].max()) if len(self.windows) else 0

    def doubt(self, sentence: str) -> None:
        """Add a sentence to `problems`."""
        self.problems.append(f"{self.path}: {sentence}")


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
    frame = frame.reindex(columns=WINDOW_COLUMNS).astype(dict.fromkeys(_NUMBERS, float))
    each, waits = seconds / count, seconds / count * data_wait
    first = step - count + 1
    settled = first[0] + NOT_STEADY_STEPS
    frame["losses"] = [
        [math.nan] * (n - 1) + [loss] for n, loss in zip(count, frame["loss"], strict=True)
    ]
    frame["step_s"] = [[value] * n for n, value in zip(count, each, strict=True)]
    frame["data_wait_s"] = [[value] * n for n, value in zip(count, waits, strict=True)]
    frame["not_steady"] = [
        [*range(start, end + 1)] if start < settled else []
        for start, end in zip(first, step, strict=True)
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
    windows = pd.DataFrame(map(vars, attempts[-1].windows), columns=WINDOW_COLUMNS)
    windows = windows.astype(dict.fromkeys(_NUMBERS, float) | {"step": int})
    run = Run(path, "run directory", _facts(manifest, proof), windows)
    timings = [attempt.timing for attempt in attempts if attempt.timing]
    if timings:
        run.facts |= {
            "warm_up_s": sum(timing.warm_up_s for timing in timings),
            "phases": timings[-1].phases,
            "compile_cache": timings[-1].compile_cache,
        }
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


def _facts(manifest: Manifest, proof: Proof | None) -> dict[str, Any]:
    """Name what the records tell as `analysis.load.Frames.runs` does."""
    facts = manifest.model_dump(include=_SAME_NAME)
    facts |= {
        "start": manifest.start.isoformat(timespec="milliseconds"),
        "date": f"{manifest.start:%Y-%m-%d}",
        "steps_asked": manifest.steps,
        "device": manifest.hardware.name,
        "device_type": manifest.hardware.type,
        "driver": manifest.hardware.driver,
        "power_limit_w": manifest.hardware.power_limit_w,
        "sm_clock_max_mhz": manifest.hardware.sm_clock_max_mhz,
        "peak_bf16": manifest.peak_flops.bf16,
        "peak_fp8": manifest.peak_flops.fp8,
        "peak_source": manifest.peak_flops.source,
        "commit": manifest.git.commit,
        "fp8_product": manifest.fp8_product and manifest.fp8_product.why,
    }
    facts |= {name: manifest.packages.get(name) for name in ("torch", "torchao", "torchtitan")}
    if manifest.git.commit:
        changes = manifest.git.changes
        facts["code"] = manifest.git.commit[:9] + (f" and changes {changes}" if changes else "")
    if proof:
        facts |= {
            "fp8_share": proof.fp8_share_of_matmul_flops,
            "fp8_emulated": proof.emulated,
            "fp8_flops": min(proof.fp8_flops, proof.fp8_flops_expected),
            "precisions": {int(first): phase.in_fp8 for first, phase in proof.phases.items()},
            "attention": proof.attention,
            "orphans": len(proof.parameters.orphans),
        }
        if proof.collectives:
            facts["gathered_bytes"] = proof.collectives.gathered_bytes
            facts["reduced_bytes"] = proof.collectives.reduced_bytes
    return facts


def _set_clock(run: Run, attempts: list[_Attempt]) -> None:
    """Count `elapsed_s` on from earlier attempts, and `wall_s` over all of them.

    The log of a resumed attempt begins with the lines that it took over from the attempt before.
    Where a clock does not fit the step times, wall times are unknown: NaN.
    """
    before: list[float] = []
    clock: list[float] = []
    total = 0.0
    for attempt in attempts:
        stamps = [window.elapsed_s for window in attempt.windows]
        taken_over = len(commonprefix([before, stamps]))
        own = stamps[taken_over:]
        jump = _jump(attempt.windows[taken_over:], attempt.timing)
        if jump:
            run.doubt(f"{jump}, so its wall times are not used")
            run.windows["elapsed_s"] = math.nan
            return
        clock = clock[:taken_over] + [total + stamp for stamp in own]
        total += own[-1] if own else attempt.lasted_s
        before = stamps
    run.windows["elapsed_s"] = clock
    run.facts["wall_s"] = total or None


def _jump(windows: list[Window], timing: Timing | None) -> str | None:
    """Say where the clock of one process leaves its step times by more than 10 s and a tenth.

    At the end of the first step the clock shows the warm-up. Then each step adds its time.
    """
    clock, step = 0.0, 0
    for window in windows:
        expected = sum(window.step_s)
        known = window.step - len(window.step_s) == step  # not after a gap
        if not clock:
            known = timing is not None
            expected += timing.warm_up_s - window.step_s[0] if known else 0
        off = window.elapsed_s - clock - expected
        if known and abs(off) > 10 + 0.1 * expected:
            return (
                f"its clock jumps by {off:+,.0f} s by step {window.step}, which its step times "
                "do not show"
            )
        clock, step = window.elapsed_s, window.step
    return None
