"""A run as it was recorded, wherever it was read from, and the figures made from that: the row of the final table."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NOT_STEADY_STEPS = 10  # a process's first steps: compilation, the profile, allocator and clocks settle

# A line of metrics.jsonl, see experiments.training.metrics; `mfu_logged` is what other programs' logs call their MFU.
_LISTS = {"losses": pa.float64(), "step_s": pa.float64(), "data_wait_s": pa.float64(), "not_steady": pa.int64()}
WINDOWS = pa.schema(
    [
        (name, pa.list_(_LISTS[name]) if name in _LISTS else pa.int64() if name == "step" else pa.float64())
        for name in ("step", "elapsed_s", "loss", "losses", "grad_norm", "lr", "tokens_per_s", "valid_tokens_per_s",
                     "step_s", "data_wait_s", "not_steady", "peak_memory_bytes", "mfu_bf16_peak", "mfu_fp8_peak",
                     "mfu_mixed_peak", "mfu_logged")
    ]
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run left behind, whichever files it was read from. None is unknown; units as in `row`.

    Args:
        windows: one row a log window, columns `WINDOWS`.
        problems: one sentence for each record that is missing or damaged.
        fp8_product: how FP8 matrices were multiplied, and why so.
        attention: whose kernels computed it in the profiled step.
        fp8_flops: FLOPs per step of one device that were seen to run in FP8.
        orphans: trainable parameters that were in no optimizer, as the recipe asked.
        phases: seconds of each phase of the warm-up.
        study_budget_s: the time budget of the study that it was part of.
        steps_planned: what it was asked for before it was cut, see `equally_long`.
        start: ISO 8601.
    """

    path: Path
    source: str
    windows: pa.Table
    problems: list[str]
    recipe: str
    status: str
    seed: int | None = None
    error: str | None = None
    device: str | None = None
    device_type: str | None = None
    overlays: list[str] | None = None
    steps_asked: int | None = None
    study_budget_s: float | None = None
    steps_planned: int | None = None
    warm_up_s: float | None = None
    wall_s: float | None = None
    compile_cache: str | None = None
    fp8_share: float | None = None
    fp8_emulated: bool | None = None
    fp8_product: str | None = None
    attention: str | None = None
    fp8_flops: float | None = None
    orphans: int | None = None
    peak_bf16: float | None = None
    peak_fp8: float | None = None
    peak_source: str | None = None
    world_size: int | None = None
    flops_per_token: float | None = None
    flops_per_token_causal: float | None = None
    parameters: int | None = None
    flavor: str | None = None
    float8: str | None = None
    compiled: bool | None = None
    phases: dict[str, float] | None = None
    start: str | None = None

    @property
    def steps(self) -> int:
        """The last step on record."""
        return self.windows["step"][-1].as_py() if len(self.windows) else 0

    @property
    def tokens_per_step(self) -> float | None:
        """Over all devices, padding included; a whole number but for the rounding of logged times."""
        if not len(self.windows):
            return None
        seconds = self.windows["step_s"][0].as_py()
        return _known(self.windows["tokens_per_s"][0].as_py() * sum(seconds) / len(seconds))

    def row(self) -> dict:
        """The row of the final table, see `analysis.summary.summarize`."""
        warm_up, wall, by_step = self.warm_up_s, self.wall_s, per_step(self.windows)
        memory = pc.max(self.windows["peak_memory_bytes"]).as_py()
        return {
            "recipe": self.recipe,
            "seed": self.seed,
            "status": self.status,
            "error": self.error,
            "device": self.device,
            "device_type": self.device_type,
            "overlays": self.overlays,
            "steps": self.steps,
            "steps_asked": self.steps_asked,
            "final_loss": self._final_loss(by_step),
            "warm_up_s": warm_up,
            "compile_cache": self.compile_cache,
            "wall_s": wall,
            "wall_s_without_warm_up": wall - warm_up if wall and warm_up else None,
            "fp8_share": self.fp8_share,
            "fp8_emulated": self.fp8_emulated,
            "fp8_product": self.fp8_product,
            "orphans": self.orphans,
            "peak_memory_bytes": None if memory is None else int(memory),
            "peak_source": self.peak_source,
            **self._rates(by_step),
        }

    def _final_loss(self, by_step: dict[str, np.ndarray]) -> float | None:
        """Mean over the last tenth of the steps, as far as they were logged; None where one is not finite."""
        first = final_from(self.steps)
        if (
            not len(self.windows)
            or self.windows["loss"].filter(pc.greater_equal(self.windows["step"], first)).null_count
        ):
            return None
        return _known(float(np.nanmean(by_step["loss"][by_step["step"] >= first])))

    def _rates(self, steps: dict[str, np.ndarray]) -> dict:
        """Steady rates, and the MFUs that follow from the median; None with fewer than two steady steps."""
        rates = dict.fromkeys(
            ("tokens_per_s", "tokens_per_s_q1", "tokens_per_s_q3", "valid_tokens_per_s", "data_wait_share",
             "mfu_bf16_peak", "mfu_fp8_peak", "mfu_mixed_peak")
        )  # fmt: skip
        seconds, waits = steps["seconds"][steps["steady"]], steps["data_wait_s"][steps["steady"]]
        if len(seconds) < 2 or not self.tokens_per_step:
            return rates
        slow, median, fast = (self.tokens_per_step / q for q in np.quantile(seconds, [0.75, 0.5, 0.25]).tolist())
        rates |= {"tokens_per_s": median, "tokens_per_s_q1": slow, "tokens_per_s_q3": fast}
        rates["valid_tokens_per_s"] = _known(median * valid_share(self.windows))
        rates["data_wait_share"] = _known(float(waits.sum() / seconds.sum()))
        if not (self.world_size and self.flops_per_token and self.peak_bf16):
            return rates
        per_device, flops = median / self.world_size, self.flops_per_token
        rates["mfu_bf16_peak"] = per_device * flops / self.peak_bf16
        if self.peak_fp8:
            rates["mfu_fp8_peak"] = per_device * flops / self.peak_fp8
            if self.fp8_flops is not None:
                in_fp8 = self.fp8_flops * self.world_size / self.tokens_per_step
                rates["mfu_mixed_peak"] = per_device * (in_fp8 / self.peak_fp8 + (flops - in_fp8) / self.peak_bf16)
        return rates


def equally_long(runs: list[Run]) -> list[Run]:
    """`runs`, of which those that a study's budget has stopped are cut to the steps that all of these made.

    They count as completed then, at the end of a log window that all of them have. Runs of the study that did complete
    are cut as well.
    """
    within = [r for r in runs if r.study_budget_s and r.status in ("completed", "interrupted") and len(r.windows)]
    if all(run.status == "completed" for run in within):
        return runs
    shared = set.intersection(*(set(run.windows["step"].to_pylist()) for run in within))
    cut = {run.path for run in within} if shared else {}
    return [_cut(run, max(shared)) if run.path in cut else run for run in runs]


def _cut(run: Run, last: int) -> Run:
    windows = run.windows.filter(pc.less_equal(run.windows["step"], last))
    problems = [p for p in run.problems if not p.startswith(f"{run.path}: interrupted at step")]
    ends = {"wall_s": windows["elapsed_s"][-1].as_py(), "status": "completed", "error": None}
    return replace(run, windows=windows, steps_asked=last, steps_planned=run.steps_asked, problems=problems, **ends)


def final_from(last: int) -> int:
    """The first step of the last tenth of `last` steps (of fewer than ten the last): the final loss is their mean.

    A share of the run, whatever its length and however often it logs, that is long enough to average batches out and
    short enough to be its end.
    """
    return last - max(1, last // 10) + 1


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None


def flat(lists: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """(all values in order with NaN for null, the length of each list); a null list has length 0."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    return pc.list_flatten(lists).to_numpy(), lengths.to_numpy()


def per_step(windows: pa.Table) -> dict[str, np.ndarray]:
    """One entry a step of `windows` (columns step, losses, step_s, data_wait_s, not_steady; of any runs).

    Returns:
        window: index of the step's row; step; loss, seconds, data_wait_s: NaN where unknown (a log that has only its
        windows' last loss gives the last step that one); steady: after a process's first 10 steps, and not after one
        that saved a checkpoint.
    """
    seconds, lengths = flat(windows["step_s"])
    ends, last = np.cumsum(lengths), windows["step"].to_numpy()
    window = np.repeat(np.arange(len(lengths)), lengths)
    found = {
        "window": window,
        "step": last[window] - (ends[window] - 1 - np.arange(len(window))),
        "seconds": seconds,
        "steady": np.ones(len(window), dtype=bool),
    }
    for name, column in (("loss", "losses"), ("data_wait_s", "data_wait_s")):
        values, counts = flat(windows[column])
        behind = np.repeat(np.cumsum(counts), counts) - np.arange(len(values))  # 1 for a window's last value
        found[name] = np.full(len(window), np.nan)
        found[name][np.repeat(ends, counts) - behind] = values
    not_steady, counts = flat(windows["not_steady"])
    found["steady"][np.repeat(ends - 1 - last, counts) + not_steady] = False
    return found


def valid_share(windows: pa.Table) -> float:
    """Fraction of all tokens of `windows` that are not padding, NaN where a window does not say."""
    seconds, lengths = flat(windows["step_s"])
    duration = np.add.reduceat(seconds, np.cumsum(lengths) - lengths)
    tokens, valid = (windows[name].to_numpy() @ duration for name in ("tokens_per_s", "valid_tokens_per_s"))
    return float(valid / tokens)


def windows_table(step: np.ndarray, count: np.ndarray, seconds: np.ndarray, **columns) -> pa.Table:
    """Windows of a log that times no single steps.

    Args:
        step, count, seconds: of each window, its last step, its number of steps, and its duration: spread over them
            evenly, and summed up for `elapsed_s`.
        columns: further columns of `WINDOWS`, NaN where unknown; `loss` is the last step's.
    """
    rows = list(zip(step.tolist(), count.tolist(), seconds.tolist(), strict=True))
    before = rows[0][0] - rows[0][1]
    columns |= {
        "step": step,
        "elapsed_s": np.cumsum(seconds),
        "losses": [[loss] for loss in columns["loss"].tolist()],
        "step_s": [[duration / n] * n for _, n, duration in rows],
        "not_steady": [
            list(range(last - n + 1, last + 1)) if last - n - before < NOT_STEADY_STEPS else [] for last, n, _ in rows
        ],
    }
    unknown = [None] * len(rows)
    return pa.table(
        [pa.array(columns.get(field.name, unknown), field.type, from_pandas=True) for field in WINDOWS], WINDOWS
    )
