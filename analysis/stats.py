"""How fast, and from when on it pays: rates with intervals, wall times, break-even. Takes the frames of analysis.load.

A recipe is looked up by its name in `runs`, and only its completed runs count. Pass the runs of one study: what is in
`runs` is pooled, whatever machine it comes from.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy import stats

from analysis.record import FINAL_WINDOWS

RESAMPLES = 2000  # bootstrap replicates: of a long run, about 45 are below and 45 above its 95 % interval
LEVEL = 0.95  # confidence of every interval of this module
BATCH_VALUES = 2**22  # step times held in memory at once while resampling


def completed(runs: pd.DataFrame, frame: pd.DataFrame, recipe: str) -> pd.DataFrame:
    """Rows of `frame` (runs, windows or steps) that belong to the completed runs of `recipe`."""
    chosen = runs.loc[(runs["recipe"] == recipe) & (runs["status"] == "completed"), "run"]
    return frame[frame["run"].isin(chosen)]


def steady_seconds(runs: pd.DataFrame, steps: pd.DataFrame, recipe: str) -> list[np.ndarray]:
    """Seconds of each steady step, in order: one array for each completed run of `recipe` that has any."""
    mine = completed(runs, steps, recipe)
    mine = mine[mine["steady"]].sort_values("step")
    return [run["seconds"].to_numpy(float) for _, run in mine.groupby("run")]


@dataclass(frozen=True)
class Rate:
    """Tokens/s over all devices: median and quartiles of the steady steps, and the median's 95 % interval."""

    median: float
    q1: float
    q3: float
    low: float
    high: float
    steps: int
    runs: int
    tail: float = field(repr=False)  # share of the resampled medians that the interval leaves out at either end
    resampled: np.ndarray = field(repr=False, compare=False)  # (RESAMPLES,) medians, tokens/s


def steady_rate(seconds: list[np.ndarray], tokens_per_step: float) -> Rate:
    """The steady rate of a recipe.

    `seconds` has one array a run, the duration of each steady step in order; the steps of all runs are pooled, which
    expects runs of about equal length. Steps follow one another's speed (clocks, data, neighbours), so the interval
    comes from a moving-block bootstrap (Künsch 1989, Annals of Statistics 17): blocks of 2 n^(1/3) consecutive steps,
    at most n/2, n being the steady steps of the shortest run; n^(1/3) is the rate at which the best block grows (Hall,
    Horowitz and Jing 1995, Biometrika 82), and 20 steps of 1,000 also cover a log that spreads a window's time over
    its 5 or 10 steps. The percentiles are taken further out, by Student's t for the number of blocks, since few blocks
    vary too little (Hesterberg 2015, The American Statistician 69); 91 to 96 % of intervals then cover the truth, for
    100 to 1,000 steps and correlations up to 0.7 from one to the next. No block crosses runs. Where there are several,
    runs are drawn first, with replacement, and blocks within them, so that what differs between processes counts too;
    where that is most of the noise, three runs cover the truth in about three of four studies, not in 95 %.
    The generator is seeded: the same input gives the same interval. Below two steps every figure is NaN.
    """
    seconds = [run for run in seconds if len(run)]
    pooled = np.concatenate([*seconds, np.empty(0)])
    if len(pooled) < 2:
        return Rate(*[math.nan] * 5, len(pooled), len(seconds), math.nan, np.full(RESAMPLES, math.nan))
    shortest = min(map(len, seconds))
    block = max(1, min(math.ceil(2 * shortest ** (1 / 3)), shortest // 2))
    blocks_per_run = round(len(pooled) / len(seconds) / block)
    resampled = tokens_per_step / _resampled_medians(seconds, block, blocks_per_run)
    blocks = len(seconds) * blocks_per_run
    tail = float(stats.norm.sf(math.sqrt(blocks / (blocks - 1)) * stats.t.ppf((1 + LEVEL) / 2, blocks - 1)))
    q1, median, q3 = (tokens_per_step / np.quantile(pooled, [0.75, 0.5, 0.25])).tolist()
    return Rate(median, q1, q3, *_ends(resampled, tail), len(pooled), len(seconds), tail, resampled)


def _resampled_medians(runs: list[np.ndarray], block: int, blocks_per_run: int) -> np.ndarray:
    """(RESAMPLES,) medians of step times, drawn run by run and block by block."""
    random = np.random.default_rng(0)
    lengths = np.array([len(run) for run in runs])
    begins, pooled = np.cumsum(lengths) - lengths, np.concatenate(runs)
    batch = max(1, BATCH_VALUES // (len(runs) * blocks_per_run * block))
    medians = []
    for count in (min(batch, RESAMPLES - done) for done in range(0, RESAMPLES, batch)):
        drawn = random.integers(len(runs), size=(count, len(runs), 1))
        starts = random.integers(lengths[drawn] - block + 1, size=(count, len(runs), blocks_per_run))
        steps = (begins[drawn] + starts)[..., None] + np.arange(block)
        medians.append(np.median(pooled[steps.reshape(count, -1)], axis=1))
    return np.concatenate(medians)


def _ends(resampled: np.ndarray, tail: float) -> list[float]:
    """The values that leave out a share of `tail` below and above; NaN where that is unknown."""
    return [math.nan] * 2 if math.isnan(tail) else np.quantile(resampled, [tail, 1 - tail]).tolist()


def rate_of(runs: pd.DataFrame, steps: pd.DataFrame, recipe: str) -> Rate:
    """`steady_rate` of a recipe's completed runs, pooled."""
    return steady_rate(steady_seconds(runs, steps, recipe), completed(runs, runs, recipe)["tokens_per_step"].median())


@dataclass(frozen=True)
class SpeedUp:
    """A's median tokens/s over B's, with its 95 % interval; above 1, A is faster."""

    ratio: float
    low: float
    high: float


def speed_up(a: Rate, b: Rate) -> SpeedUp:
    """Ratio of two rates, NaN where one is; both are resampled, independently, being from different processes."""
    shuffled = np.random.default_rng(1).permutation(b.resampled)  # both were drawn with the same numbers
    return SpeedUp(a.median / b.median, *_ends(a.resampled / shuffled, min(a.tail, b.tail)))


def warm_up(run: pd.Series) -> float:
    """Seconds from the start of the process to the end of its first step; `run` is a row of `runs`."""
    return run["warm_up_s"]


def wall(run: pd.Series, with_warm_up: bool) -> float:
    """Seconds to the end of the last step, from the start of the process or from the end of the first step."""
    return run["wall_s" if with_warm_up else "wall_s_without_warm_up"]


@dataclass(frozen=True)
class Reached:
    """Where a run first was: last step of the window, and wall-clock seconds then, warm-up included."""

    step: int
    seconds: float


def time_to_loss(windows: pd.DataFrame, loss: float, smooth: int = FINAL_WINDOWS) -> Reached | None:
    """The first window of a run at which the mean loss of the last `smooth` windows is at most `loss`; None if never.

    `windows` are those of one run. The trailing mean is a fair judge of when: it uses nothing from later on, and lags
    every recipe by the same (smooth - 1) / 2 windows.
    """
    windows = windows.sort_values("step")
    there = windows[windows["loss"].rolling(smooth).mean() <= loss]
    return None if there.empty else Reached(int(there["step"].iloc[0]), float(there["elapsed_s"].iloc[0]))


@dataclass(frozen=True)
class BreakEven:
    """From which step on A has taken less wall time than B in total, warm-up included.

    outcome    "ahead from the start", "reached" (within the runs), "extrapolated", "never"; or, where A is behind at
               the end, "unknown" (the runs are too short for a steady rate) or "unclear" (mean and median of the
               steady steps disagree on which is faster)
    step       the first whole step at which A is ahead, 0 from the start, None if there is none to tell
    tokens     tokens a run has seen by then; device_hours: A's wall time by then, times its devices (GPUs)
    lost_at    where A is ahead at the end but slower per step: the step, extrapolated, at which B overtakes it
    """

    a: str
    b: str
    outcome: str
    step: int | None
    tokens: float | None
    device_hours: float | None
    lost_at: int | None

    def sentence(self) -> str:
        """For people, with units."""
        if self.step is None:
            reason = {"never": "it is behind at the end and no faster per step",
                      "unknown": "it is behind at the end, and the runs are too short for a steady rate",
                      "unclear": "it is behind at the end, and mean and median of the step times disagree on which is "
                                 "faster, so a few slow steps decide"}  # fmt: skip
            word = "never breaks even with" if self.outcome == "never" else "may or may not break even with"
            return f"{self.a} {word} {self.b}: {reason[self.outcome]}."
        lost = "" if self.lost_at is None else f", but is slower per step and loses the lead at about {self.lost_at:,}"
        if self.step == 0:
            return f"{self.a} is ahead of {self.b} from the start{lost}."
        how = "reached in the runs" if self.outcome == "reached" else "extrapolated"
        cost = f"{self.tokens / 1e6:,.3g} M tokens, {self.device_hours:,.3g} device-hours"
        return f"{self.a} breaks even with {self.b} at step {self.step:,} ({cost}; {how}){lost}."


def break_even(runs: pd.DataFrame, windows: pd.DataFrame, steps: pd.DataFrame, a: str, b: str) -> BreakEven:
    """The step from which on recipe `a` has cost less wall time than recipe `b`, for good.

    Where the curves cross within the runs it is read off the measured `elapsed_s` (between windows on a straight line;
    of several runs their mean). Else both go on from their last common step at their mean seconds per steady step:
    the mean, since that is what adds up; the median leaves out the slow tail. On the published logs the mean gives
    3,851 for rowwise against compiled, the median the quoted 3,800. Where the two rank the recipes differently, a tail
    that another run need not have decides, and nothing is extrapolated.
    """
    grid, spent_a, spent_b = _curves(completed(runs, windows, a), completed(runs, windows, b))
    steady_a, steady_b = (steady_seconds(runs, steps, recipe) for recipe in (a, b))
    slope_a, slope_b = _pooled(np.mean, steady_a), _pooled(np.mean, steady_b)
    unclear = (slope_a - slope_b) * (_pooled(np.median, steady_a) - _pooled(np.median, steady_b)) < 0
    gap = spent_a - spent_b
    meeting = grid[-1] + gap[-1] / (slope_b - slope_a) if slope_a != slope_b else math.nan  # of the extrapolated lines
    if gap[-1] >= 0:
        if math.isnan(slope_b - slope_a):
            return BreakEven(a, b, "unknown", None, None, None, None)
        if unclear:
            return BreakEven(a, b, "unclear", None, None, None, None)
        if slope_a >= slope_b:
            return BreakEven(a, b, "never", None, None, None, None)
        outcome, crossing, seconds = "extrapolated", meeting, spent_a[-1] + (meeting - grid[-1]) * slope_a
    elif (gap < 0).all():
        outcome, crossing, seconds = "ahead from the start", None, 0.0
    else:
        outcome, last = "reached", np.flatnonzero(gap >= 0)[-1]
        crossing = grid[last] + gap[last] / (gap[last] - gap[last + 1]) * (grid[last + 1] - grid[last])
        seconds = np.interp(crossing, grid, spent_a)
    step = 0 if crossing is None else math.floor(crossing) + 1
    rows = completed(runs, runs, a)
    lost_at = math.ceil(meeting) if gap[-1] < 0 and slope_a > slope_b and not unclear else None
    device_hours = float(seconds * rows["world_size"].median() / 3600)
    return BreakEven(a, b, outcome, step, float(step * rows["tokens_per_step"].median()), device_hours, lost_at)


def _curves(a: pd.DataFrame, b: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps that all runs cover, and the mean seconds that the runs of `a` and those of `b` had taken by each."""
    if a.empty or b.empty:
        raise ValueError("break-even needs a completed run of each of the two recipes; choose recipes that have one.")
    sides = [[run.sort_values("step") for _, run in side.groupby("run")] for side in (a, b)]
    every = [*sides[0], *sides[1]]
    first, last = max(run["step"].min() for run in every), min(run["step"].max() for run in every)
    grid = np.unique(np.concatenate([run["step"] for run in every]))
    grid = grid[(first <= grid) & (grid <= last)]
    means = [np.mean([np.interp(grid, run["step"], run["elapsed_s"]) for run in side], axis=0) for side in sides]
    return grid, *means


def _pooled(statistic, seconds: list[np.ndarray]) -> float:
    return float(statistic(np.concatenate(seconds))) if seconds else math.nan
