"""A run as it was recorded: facts and log windows, of a run directory or another program's log."""

import json
import math
import re
from dataclasses import dataclass, field
from os.path import commonprefix
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from experiments.records.files import RecordError, read, read_if_there, read_windows
from experiments.records.run import (
    ATTEMPT,
    MANIFEST,
    METRICS,
    PROOF,
    RECIPE,
    TIMING,
    Manifest,
    Proof,
    Timing,
    Window,
)
from models.scalings import SCALINGS

LEAST_OF_PROMISE = 0.9  # of the matmul FLOPs that a recipe promises in FP8
# Of the FP8 FLOPs of scalings by rows: one of a layer's three matmuls. The results of the others
# may be scaled afterwards.
LEAST_BY_ROWS = 0.3
NUMBER = r"\b0x[0-9a-f]+|(?<![A-Z\d])(?<!float)\d+"  # in messages; the 8 of FP8 is none
LONGEST = 100  # characters of a message
UNREADABLE = "unreadable"  # the status of a run that was started and left damaged records
_FLOAT8 = "quantize.linear.float8."
FLOAT8 = f"{_FLOAT8}recipe_name"
# What a run leaves on record: the column of `analysis.load.Frames.runs`, and where it is in the
# records. A place is empty where the value is worked out.
COLUMNS = {
    "path": "",
    "source": "",
    "study": "",
    "recipe": "recipe",
    "seed": "seed",
    "status": "status",
    "error": "error",
    "attempt": "attempt",
    "resumed_after": "",
    "failures": "",
    "start": "",
    "date": "",
    "steps_asked": "steps",
    "study_budget_s": "study_budget_s",
    "overlays": "overlays",
    "notes": "notes",
    "settings": "",
    "flavor": "flavor",
    "float8": "float8",
    "compiled": "compiled",
    "parameters": "parameters",
    "flops_per_token": "flops_per_token",
    "seq_len": "seq_len",
    "dataset": "dataset",
    "data": "data",
    "host": "host",
    "world_size": "world_size",
    "device": "hardware.name",
    "device_type": "hardware.type",
    "memory_gib": "",
    "cpu": "hardware.cpu",
    "threads": "hardware.threads",
    "visible_devices": "hardware.visible_devices",
    "driver": "hardware.driver",
    "power_limit_w": "hardware.power_limit_w",
    "sm_clock_max_mhz": "hardware.sm_clock_max_mhz",
    "cudnn": "hardware.cudnn",
    "peak_bf16": "peak_flops.bf16",
    "peak_fp8": "peak_flops.fp8",
    "peak_source": "peak_flops.source",
    "code": "",
    "torch": "packages.torch",
    "torchao": "packages.torchao",
    "torchtitan": "packages.torchtitan",
    "triton": "packages.triton",
    "cuda": "cuda",
    "python": "python",
    "fp8_matmul": "fp8_matmul.why",
    "warm_up_s": "",
    "wall_s": "",
    "phases": "timing.phases",
    "compile_cache": "timing.compile_cache",
    "fp8_share": "proof.fp8_share_of_matmul_flops",
    "fp8_emulated": "proof.emulated",
    "fp8_flops": "",
    "precisions": "",
    "attention": "proof.attention",
    "gathered_bytes": "",
    "reduced_bytes": "",
    "orphans": "",
    "compile_s": "",
    "compiled_graphs": "proof.compiled_graphs",
}
# One row a log window: the contract's fields, and what another program called its MFU.
WINDOW_COLUMNS = [*Window.model_fields, "mfu_logged"]
_NOT_NUMBERS = {"step", "losses", "step_s", "data_wait_s", "not_steady", "fp8_ranges"}
_NUMBERS = dict.fromkeys([name for name in WINDOW_COLUMNS if name not in _NOT_NUMBERS], float)


@dataclass
class Run:
    """What a run left behind.

    Args:
        facts: by `COLUMNS`. `precisions`: by the first step of each phase, whether the phase is in
            FP8. `fp8_flops`: of a step of one device. `study`: the folder whose logs should be
            equally long. `settings`: the resolved recipe, by key.path; empty where it is not there.
            `failures`: how each earlier attempt ended that was not stopped on purpose.
            `resumed_after`: the last step that the last attempt took over from the one before.
        windows: columns `WINDOW_COLUMNS`.
        problems: a sentence for each thing that a reader should know.
        doubts: why the run is not what its recipe says. A run with a doubt gives no plain yes.
    """

    path: Path
    facts: dict[str, Any]
    windows: pd.DataFrame
    problems: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


def read_run(path: Path) -> Run:
    """Read a run directory.

    Raises:
        RecordError: a record is missing or does not fit its model.
    """
    manifest = read(path / MANIFEST, Manifest)
    maybe = read if manifest.status == "completed" else read_if_there
    proof = maybe(path / PROOF, Proof)
    last = _Attempt(manifest, maybe(path / TIMING, Timing), read_windows(path / METRICS))
    attempts = [*map(_read_attempt, range(1, manifest.attempt), [path] * manifest.attempt), last]
    facts = _facts(manifest, [each.timing for each in attempts if each.timing], proof)
    facts["settings"] = _read_settings(path / RECIPE)
    earlier = [each.manifest for each in attempts[:-1] if each.manifest.status != "interrupted"]
    facts["failures"] = [cause(of.status.replace("running", "killed"), of.error) for of in earlier]
    windows = pd.DataFrame(map(vars, last.windows), columns=WINDOW_COLUMNS)
    run = Run(path, facts, windows.astype(_NUMBERS | {"step": int}))
    if last.timing and manifest.compiled and not facts["compile_s"]:
        run.doubts.append("its recipe compiles, and no time was spent on compilation")
    run.doubts += _flaws(manifest, facts["settings"], proof) if proof else []
    _set_clock(run, attempts)
    return run


def cause(status: str, error: str | None) -> str:
    """Say how a process ended, and why: by the last line of a message, without its numbers, which
    make no other cause."""
    ended = "killed, or still running" if status == "running" else status
    last = ([""] + str(error).strip().splitlines())[-1] * isinstance(error, str)
    said = re.sub(NUMBER, "#", last)
    return ": ".join(filter(None, [ended, said[:LONGEST] + "..." * (len(said) > LONGEST)]))


def unreadable_run(path: Path) -> Run:
    """Make the row of a run that was started and whose records cannot be read.

    Without a manifest its recipe is that of its place, RECIPE/seedK.
    """
    try:
        recipe = str(json.loads((path / MANIFEST).read_text())["recipe"])
    except (OSError, ValueError, LookupError, TypeError):
        recipe = path.parent.name
    windows = pd.DataFrame(columns=WINDOW_COLUMNS).astype(_NUMBERS | {"step": int})
    return Run(path, {"recipe": recipe, "status": UNREADABLE, "source": "run directory"}, windows)


@dataclass
class _Attempt:
    """One process of a run."""

    manifest: Manifest
    timing: Timing | None
    windows: list[Window]

    @property
    def lasted_s(self) -> float:
        """Seconds from its start to its end; 0 where that is unknown, after kill -9."""
        end = self.manifest.end or self.manifest.start
        return (end - self.manifest.start).total_seconds()


def _read_attempt(number: int, run: Path) -> _Attempt:
    folder = run / ATTEMPT.format(number)
    timing = read_if_there(folder / TIMING, Timing)
    return _Attempt(read(folder / MANIFEST, Manifest), timing, read_windows(folder / METRICS))


def _read_settings(path: Path) -> dict[str, Any]:
    """Read a resolved recipe by key.path; empty where there is none."""
    try:
        return flat(yaml.safe_load(path.read_text()) or {}) if path.exists() else {}
    except (OSError, ValueError, AttributeError, yaml.YAMLError) as error:
        raise RecordError(f"{path}: is no recipe: {str(error).splitlines()[0]}") from error


def flat(sections: dict, prefix: str = "") -> dict[str, Any]:
    """Turn sections within sections into key.path: value."""
    found = {}
    for key, value in sections.items():
        if isinstance(value, dict) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _facts(manifest: Manifest, timings: list[Timing], proof: Proof | None) -> dict[str, Any]:
    """Name what the records tell as `COLUMNS` does."""
    records = manifest.model_dump()
    if timings:
        records["timing"] = timings[-1].model_dump()
    if proof:
        records["proof"] = proof.model_dump()
    (found,) = pd.json_normalize(records, max_level=1).to_dict("records")
    facts = {column: found[place] for column, place in COLUMNS.items() if place in found}
    facts |= {
        "source": "run directory",
        "start": manifest.start.isoformat(timespec="milliseconds"),
        "date": f"{manifest.start:%Y-%m-%d}",
        "warm_up_s": sum(timing.warm_up_s for timing in timings) or None,
        "memory_gib": round(manifest.hardware.memory_bytes / 2**30),
        "compile_s": sum(timing.phases.get("compile", 0.0) for timing in timings),
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


def _flaws(manifest: Manifest, settings: dict, proof: Proof) -> list[str]:
    """Say where a proof is not what the resolved recipe promises."""
    share, total = proof.fp8_share_of_matmul_flops or 0.0, sum(proof.gemm_flops.values())
    float8, moved = settings.get(FLOAT8, manifest.float8), proof.parameters
    still = set(moved.still_in_first_step) - set(moved.orphans)
    float8 = float8 and str(float8)
    by_rows = float8 in SCALINGS and SCALINGS[float8].by_rows
    phases = [] if proof.emulated else proof.phases.values()
    in_fp8 = [phase for phase in phases if phase.in_fp8]
    least = 0.99 * proof.fp8_flops_expected
    few = "few or no " * by_rows
    known = (float8 or "bf16", manifest.float8 or "bf16", proof.recipe_name or "bf16")
    promised = _promised_share(manifest, settings, float8) if not moved.frozen else 0.0
    flaws = {
        "its recipe is {}, its manifest {} and its proof {}".format(*known): len({*known}) > 1,
        "its FP8 matmuls were emulated": proof.emulated,
        f"its recipe is {float8}, and its FP8 matmuls had {few}scales of rows": any(
            (p.row_scaled_flops > LEAST_BY_ROWS * p.fp8_flops * by_rows) != by_rows
            for p in in_fp8
            if p.row_scaled_flops is not None
        ),
        "a phase that is to be in FP8 ran in bf16": any(p.fp8_flops < least for p in in_fp8),
        "a phase that is to be in bf16 ran in FP8": any(
            p.fp8_flops > 0 for p in phases if not p.in_fp8
        ),
        f"only {share:.1%} of its matmul FLOPs ran in FP8, of {promised:.0%} that are promised": (
            (share < LEAST_OF_PROMISE * promised or (float8 and not share)) and not proof.emulated
        ),
        f"it is in bf16, and {share:.1%} of its matmul FLOPs ran in FP8": share and not float8,
        f"its converted layers account for {proof.fp8_flops_expected:.3g} FP8 FLOPs, and "
        f"{proof.fp8_flops:.3g} ran": proof.fp8_flops < least and not proof.emulated,
        "the share in its proof is not that of its FLOPs": (
            total and abs(proof.fp8_flops / total - share) > 0.01
        ),
        "its recipe compiles, and no graph was compiled": (
            manifest.compiled and proof.compiled_graphs == 0
        ),
        f"{len(moved.orphans)} of its trainable parameters are in no optimizer": moved.orphans,
        f"{len(still)} of its parameters did not move in the first step": still,
    }
    for what in ("gathered", "reduced") if proof.collectives else ():
        sent = getattr(proof.collectives, f"{what}_bytes")
        expected = getattr(proof.collectives, f"{what}_bytes_expected")
        flaw = f"its ranks {what} {sent:,} bytes a step, and its precisions take {expected:,}"
        flaws[flaw] = abs(sent - expected) > 0.01 * expected
    return [flaw for flaw, is_so in flaws.items() if is_so]


def _promised_share(manifest: Manifest, settings: dict, scaling: str | None) -> float:
    """Work out the share of matmul FLOPs that all linear layers but the head have, as far as the
    scaling has them in FP8.

    It is 0, so that it promises nothing, where another filter is set, or where the head's size or
    the scaling is not known. The proof cannot tell a wrong filter: it holds the run to the layers
    of the plan.
    """
    attention = 2 * (manifest.flops_per_token - manifest.flops_per_token_causal)
    in_matmuls = (manifest.flops_per_token - attention) / 6  # parameters: all but the embedding
    head = manifest.parameters - in_matmuls  # is as large as the embedding
    # a mixture's parameters are those of all experts, and its FLOPs those of the active ones
    known = 1 < head < in_matmuls and settings.get(f"{_FLOAT8}filter_fqns") in ([], ["output"])
    matmuls = SCALINGS[scaling].matmuls if scaling in SCALINGS else 0
    return (1 - head / in_matmuls) * matmuls / 3 if known else 0.0


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
    if taken_over:
        run.facts["resumed_after"] = attempts[-1].windows[taken_over - 1].step
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
