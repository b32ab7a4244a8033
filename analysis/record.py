"""A run as it was recorded, whichever program wrote it, and the row of the final table that is made
from it."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any
from zlib import crc32

import numpy as np
from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field
from typing_extensions import TypedDict

from analysis.windows import Positive, Windows, durations, flaws, losses_finite, per_step, take


class LayoutError(ValueError):
    """Files that this analysis does not know how to read."""


def printable(text):
    """`text` with control characters and lone surrogates escaped, so that a name stays one; other
    types as they are."""
    if not isinstance(text, str) or text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def known(value: float) -> float | None:
    """The value as a Python float; None where it is not finite."""
    return float(value) if math.isfinite(value) else None


def _number(value) -> float | None:
    """A number that may be written as text, as nvidia-smi's; None for what is none, as `[N/A]`."""
    try:
        return known(float(value))
    except (TypeError, ValueError):
        return None


def _finite(values: np.ndarray) -> np.ndarray:
    return values[np.isfinite(values)]


def _in(*path: str):
    """A fact that a run directory has in this file, under this key of this section; None where it
    is not there."""
    return Field(None, validation_alias=AliasPath(*path))


Text = Annotated[str, BeforeValidator(printable)] | None
Steps = Annotated[int, Field(ge=0, lt=2**53)]
Count = Steps | None
NumberOrText = Annotated[float | None, BeforeValidator(_number)]
Digits = Annotated[str, Field(pattern=r"^[0-9]{1,15}$")]


class Precision(TypedDict):
    """What a phase was in."""

    in_fp8: bool


class Facts(BaseModel):
    """What is recorded of a run: columns of the final table. None is unknown; times in seconds,
    shares of 1."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, populate_by_name=True)

    recipe: Annotated[str, BeforeValidator(printable), Field(pattern=r"\S")] = _in(
        "manifest.json", "recipe"
    )
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = _in("manifest.json", "seed")
    status: Annotated[str, BeforeValidator(printable)] = _in("manifest.json", "status")
    error: Text = _in("manifest.json", "error")
    attempt: Count = _in("manifest.json", "attempt")  # the number of its last process
    start: Text = _in("manifest.json", "start")  # ISO 8601
    steps_asked: Steps = _in("manifest.json", "steps")
    steps_planned: Count = None  # what it was asked for before it was cut, see `equally_long`
    study_budget_s: float | None = _in(
        "manifest.json", "study_budget_s"
    )  # of the study that it was part of
    overlays: list[Text] | None = _in("manifest.json", "overlays")
    flavor: Text = _in("manifest.json", "flavor")
    float8: Text = _in("manifest.json", "float8")
    compiled: bool | None = _in("manifest.json", "compiled")
    parameters: Count = _in("manifest.json", "parameters")
    flops_per_token: Positive | None = _in("manifest.json", "flops_per_token")
    seq_len: Annotated[Count, Field(gt=0)] = _in("recipe.yaml", "training", "seq_len")
    dataset: Text = _in("recipe.yaml", "training", "dataset")
    data: Text = _in(
        "manifest.json", "data"
    )  # the corpus as it was tokenized, with a digest of its content
    device: Text = _in("manifest.json", "hardware", "name")
    device_type: Text = _in("manifest.json", "hardware", "type")
    world_size: Annotated[Count, Field(gt=0)] = _in("manifest.json", "world_size")
    driver: Text = _in("manifest.json", "hardware", "driver")
    power_limit_w: NumberOrText = _in("manifest.json", "hardware", "power_limit_w")
    sm_clock_max_mhz: NumberOrText = _in("manifest.json", "hardware", "sm_clock_max_mhz")
    peak_bf16: Positive | None = _in("manifest.json", "peak_flops", "bf16")  # dense, FLOP/s
    peak_fp8: Positive | None = _in("manifest.json", "peak_flops", "fp8")
    peak_source: Text = _in("manifest.json", "peak_flops", "source")
    commit: Text = _in("manifest.json", "git", "commit")
    diff: str | None = _in("manifest.json", "git", "diff")  # of the code against the commit
    torch: Text = _in("manifest.json", "packages", "torch")
    torchao: Text = _in("manifest.json", "packages", "torchao")
    torchtitan: Text = _in("manifest.json", "packages", "torchtitan")
    # From the start of the process to the end of the first and of the last step; summed over a
    # resumed run's attempts.
    warm_up_s: float | None = _in("timing.json", "warm_up_s")
    wall_s: float | None = None
    phases: dict[str, float] | None = _in(
        "timing.json", "phases"
    )  # of the warm-up, of the last attempt
    compile_cache: Text = _in("timing.json", "compile_cache")
    # Of the linear layers' FLOPs, as profiled.
    fp8_share: Annotated[float | None, Field(ge=0, le=1)] = _in(
        "proof.json", "fp8_share_of_matmul_flops"
    )
    precisions: dict[Digits, Precision] | None = _in(
        "proof.json", "phases"
    )  # by the first step of each phase
    fp8_emulated: bool | None = _in("proof.json", "emulated")
    fp8_product: Text = _in(
        "manifest.json", "fp8_product", "why"
    )  # how FP8 matrices were multiplied, and why so
    fp8_flops: float | None = _in("proof.json", "fp8_flops")  # per step of one device
    fp8_flops_expected: float | None = _in(
        "proof.json", "fp8_flops_expected"
    )  # without what is computed twice
    attention: Text = _in("proof.json", "attention")  # whose kernels computed it
    gathered_bytes: Count = _in(
        "proof.json", "collectives", "gathered_bytes"
    )  # of weights in a step; of several ranks
    reduced_bytes: Count = _in("proof.json", "collectives", "reduced_bytes")  # of gradients
    orphans: list | None = _in(
        "proof.json", "parameters", "orphans"
    )  # trainable, but in no optimizer, as asked


@dataclass(frozen=True)
class Run:
    """What a run left behind.

    Args:
        source: run directory, published log, or tensorboard.
        problems: one sentence for each record that is missing or damaged.
        study: of another program's log, the folder whose logs should be equally long.
    """

    path: Path
    source: str
    facts: Facts
    windows: Windows
    problems: list[str] = field(default_factory=list)
    study: Path | None = None

    @property
    def steps(self) -> int:
        """The last step on record."""
        return int(self.windows["step"][-1]) if len(self.windows["step"]) else 0

    @property
    def tokens_per_step(self) -> float | None:
        """Over all devices, padding included; a whole number but for the rounding of logged
        times."""
        counts = np.fromiter(map(len, self.windows["step_s"]), dtype=int)
        tokens = _finite(self.windows["tokens_per_s"] * durations(self.windows) / counts)
        return float(tokens[0]) if len(tokens) else None

    def row(self) -> dict[str, Any]:
        """The run's row of the final table: what is recorded, and what follows from its windows;
        see `Frames`."""
        facts, tokens = self.facts, self.tokens_per_step
        memory, mfu = (_finite(self.windows[name]) for name in ("peak_memory_bytes", "mfu_logged"))
        changes = f" and changes {crc32(repr(facts.diff).encode()):08x}" if facts.diff else ""
        hidden = {"study_budget_s", "diff", "fp8_flops", "fp8_flops_expected", "precisions"}
        return facts.model_dump(exclude=hidden) | {
            "fp8_share": None if facts.fp8_share is None else facts.fp8_share * self._fp8_steps,
            "fp8_share_of_steps": self._fp8_steps,
            "code": facts.commit and facts.commit[:9] + changes,
            "orphans": None if facts.orphans is None else len(facts.orphans),
            "steps": self.steps,
            "final_loss": self.final_loss(),
            "wall_s_without_warm_up": facts.wall_s - facts.warm_up_s
            if facts.wall_s and facts.warm_up_s
            else None,
            "peak_memory_bytes": int(memory.max()) if len(memory) else None,
            "mfu_logged": float(np.median(mfu)) if len(mfu) else None,
            "tokens_per_step": tokens,
            "tokens": tokens and round(tokens) * self.steps,
            "batch": round(tokens / facts.seq_len) if tokens and facts.seq_len else None,
            "date": facts.start and facts.start[:10],
            **{name: known(value) for name, value in self._rates(tokens or math.nan).items()},
        }

    @property
    def _fp8_steps(self) -> float:
        """The share of its steps, as far as it came, that are in FP8: all, where nothing is
        recorded of phases."""
        phases = sorted(
            (int(first), phase["in_fp8"]) for first, phase in (self.facts.precisions or {}).items()
        )
        if not phases or not self.steps:
            return 1.0
        ends = [first for first, _ in phases[1:]] + [self.steps + 1]
        spans = (
            (min(end, self.steps + 1) - first, on)
            for (first, on), end in zip(phases, ends, strict=True)
        )
        return sum(max(0, length) for length, on in spans if on) / self.steps

    def final_loss(self) -> float | None:
        """Mean over the last tenth of the steps, as far as they were logged; None where one is not
        finite."""
        first = final_from(self.steps)
        windows = take(self.windows, self.windows["step"] >= first)
        steps = per_step(windows)
        losses = _finite(steps["loss"][steps["step"] >= first])
        return float(losses.mean()) if len(losses) and losses_finite(windows).all() else None

    def _rates(self, tokens: float) -> dict[str, float]:
        """Steady rates, and the MFUs that follow from the median; NaN where unknown, as with fewer
        than two steps."""
        steps = per_step(self.windows)
        seconds, waits = steps["seconds"][steps["steady"]], steps["data_wait_s"][steps["steady"]]
        if len(seconds) < 2:
            seconds = waits = np.array([math.nan])
        median = tokens / np.median(seconds)
        in_window = np.nan_to_num(durations(self.windows))
        all_tokens, valid = (
            self.windows[name] @ in_window for name in ("tokens_per_s", "valid_tokens_per_s")
        )
        facts = self.facts
        flops, bf16, fp8 = (
            x or math.nan for x in (facts.flops_per_token, facts.peak_bf16, facts.peak_fp8)
        )
        per_device = median / (facts.world_size or math.nan)
        fp8_flops = math.nan if facts.fp8_flops is None else facts.fp8_flops
        useful = min(
            fp8_flops, facts.fp8_flops_expected or math.inf
        )  # not what is computed twice; NaN if the first is
        in_fp8 = useful * self._fp8_steps * (facts.world_size or math.nan) / tokens
        return {
            "tokens_per_s": median,
            "tokens_per_s_q1": tokens / np.quantile(seconds, 0.75),
            "tokens_per_s_q3": tokens / np.quantile(seconds, 0.25),
            "valid_tokens_per_s": median * (valid / all_tokens) if all_tokens else math.nan,
            "data_wait_share": waits.sum() / seconds.sum(),
            "mfu_bf16_peak": per_device * flops / bf16,
            "mfu_fp8_peak": per_device * flops / fp8,
            "mfu_mixed_peak": per_device * (in_fp8 / fp8 + (flops - in_fp8) / bf16),
        }

    def changed(self, **facts) -> "Run":
        """The run with other facts."""
        return replace(self, facts=self.facts.model_copy(update=facts))


def final_from(last: int) -> int:
    """The first step of the last tenth of `last` steps (of fewer than ten the last): the final loss
    is their mean.

    A share of the run, whatever its length and however often it logs, that is long enough to
    average batches out and short enough to be its end.
    """
    return last - max(1, last // 10) + 1


def equally_long(runs: list[Run]) -> list[Run]:
    """`runs`, with those that a study's time budget has stopped cut to the steps that all of these
    made.

    They then count as completed, at the end of a log window that all of them have. Runs of the
    study that did complete are cut as well.
    """
    stopped = ("completed", "interrupted")
    within = [
        run
        for run in runs
        if run.facts.study_budget_s and run.facts.status in stopped and run.steps
    ]
    if all(run.facts.status == "completed" for run in within):
        return runs
    shared = set.intersection(*(set(run.windows["step"].tolist()) for run in within))
    cut = {run.path for run in within} if shared else {}
    return [_cut(run, max(shared)) if run.path in cut else run for run in runs]


def _cut(run: Run, last: int) -> Run:
    windows = take(run.windows, run.windows["step"] <= last)
    ends = {
        "wall_s": known(windows["elapsed_s"][-1]),
        "status": "completed",
        "error": None,
        "steps_asked": last,
    }
    return replace(run, windows=windows).changed(**ends, steps_planned=run.facts.steps_asked)


def with_verdict(run: Run) -> Run:
    """The run with its status by what its log shows, and a problem for each reason to doubt its
    figures.

    `completed` becomes `diverged` where the loss is not finite in the last tenth of the steps, and
    `short` where the log, or what it says of the loss, ends before the last step.
    """
    status, where = run.facts.status, f"at step {run.steps} of {run.facts.steps_asked}"
    sentences = flaws(run.windows)
    not_finite = run.windows["step"][~losses_finite(run.windows)]
    if status != "completed":
        word = "not ended (running, or killed)" if status == "running" else status
        why = f" ({run.facts.error})" if run.facts.error else ""
        sentences.append(f"{word} {where}{why}, so it is not averaged with others")
    elif len(not_finite):
        status = "diverged" if not_finite[-1] >= final_from(run.steps) else "completed"
        verdict = "it counts as diverged, although its log says completed"
        if status == "completed":
            verdict = f"{len(not_finite)} of its log windows have such losses, the last ends at step {not_finite[-1]}"
        sentences.append(f"its loss is not finite by step {not_finite[0]}: {verdict}")
    elif run.steps < (run.facts.steps_asked or 0):
        status = "short"
        sentences.append(f"short, its log ends {where}, so it is not averaged with others")
    elif run.final_loss() is None:
        status = "short"
        sentences.append(
            "short, its log has no loss in the last tenth of its steps, so it is not averaged with others"
        )
    return replace(
        run.changed(status=status), problems=run.problems + [f"{run.path}: {s}" for s in sentences]
    )
