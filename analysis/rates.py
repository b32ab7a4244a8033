"""How fast, and from when on it pays: rates with intervals, break-even. Takes the frames of analysis.load.

A recipe is looked up by its name in `runs`, and only its completed runs count. Pass the runs of one study: what is in
`runs` is pooled, whatever machine it comes from.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy import stats

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
    tail: float = field(repr=False)  # share of the resampled medians that the bootstrap leaves out at either end
    resampled: np.ndarray = field(repr=False, compare=False)  # (RESAMPLES,) medians, tokens/s
    medians: np.ndarray = field(repr=False, compare=False)  # (runs,) tokens/s


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
    runs are drawn first, with replacement, and blocks within them, so that what differs between processes counts too.
    A bootstrap of few runs cannot leave their range, so the interval is no narrower than Student's t of the runs'
    medians (their logarithms). One run says nothing of what another process would do.
    The generator is seeded: the same input gives the same interval. Runs of fewer than two steps do not count; without
    others every figure is NaN.
    """
    seconds = [run for run in seconds if len(run) > 1]
    pooled = np.concatenate([*seconds, np.empty(0)])
    medians = tokens_per_step / np.array([np.median(run) for run in seconds])
    if not seconds:
        return Rate(*[math.nan] * 5, len(pooled), len(seconds), math.nan, np.full(RESAMPLES, math.nan), medians)
    shortest = min(map(len, seconds))
    block = max(1, min(math.ceil(2 * shortest ** (1 / 3)), shortest // 2))
    blocks_per_run = round(len(pooled) / len(seconds) / block)
    resampled = tokens_per_step / _resampled_medians(seconds, block, blocks_per_run)
    blocks = len(seconds) * blocks_per_run
    tail = float(stats.norm.sf(math.sqrt(blocks / (blocks - 1)) * stats.t.ppf((1 + LEVEL) / 2, blocks - 1)))
    q1, median, q3 = (tokens_per_step / np.quantile(pooled, [0.75, 0.5, 0.25])).tolist()
    low, high = _at_least_between_runs(_ends(resampled, tail), medians)
    return Rate(median, q1, q3, low, high, len(pooled), len(seconds), tail, resampled, medians)


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


def _at_least_between_runs(ends: list[float], *medians: np.ndarray) -> list[float]:
    """`ends` (low, high), widened to the interval that the runs' medians give, Welch's if of two recipes.

    Args:
        medians: (runs,) of one recipe, or of both whose ratio is meant; of single runs nothing is known.
    """
    if min(map(len, medians)) < 2:
        return ends
    logs = [np.log(of_one) for of_one in medians]
    errors = np.array([log.var(ddof=1) / len(log) for log in logs])
    if not errors.any():
        return ends
    freedom = errors.sum() ** 2 / (errors**2 / [len(log) - 1 for log in logs]).sum()
    half = stats.t.ppf((1 + LEVEL) / 2, freedom) * math.sqrt(errors.sum())
    centre = logs[0].mean() - sum(log.mean() for log in logs[1:])
    return [min(ends[0], math.exp(centre - half)), max(ends[1], math.exp(centre + half))]


def rate_of(runs: pd.DataFrame, steps: pd.DataFrame, recipe: str) -> Rate:
    """`steady_rate` of a recipe's completed runs, pooled."""
    return steady_rate(steady_seconds(runs, steps, recipe), completed(runs, runs, recipe)["tokens_per_step"].median())


@dataclass(frozen=True)
class SpeedUp:
    """A's median tokens/s over B's, with its 95 % interval; above 1, A is faster.

    `runs` are those of the recipe with fewer: with one, the interval is only of the noise within the runs.
    """

    ratio: float
    low: float
    high: float
    runs: int

    @property
    def unclear(self) -> bool:
        """Whether these runs cannot tell which is faster."""
        return self.low <= 1 <= self.high

    def interval(self) -> str:
        """For people."""
        within = "" if self.runs > 1 else "; of single runs, so without what differs between starts or GPUs"
        return f"95 % interval {self.low:.2f} to {self.high:.2f}{within}"


def speed_up(a: Rate, b: Rate) -> SpeedUp:
    """Ratio of two rates, NaN where one is; both are resampled, independently, being from different processes.

    As `steady_rate`'s, the interval is no narrower than that of the runs' medians: Welch's, where both have several.
    """
    shuffled = np.random.default_rng(1).permutation(b.resampled)  # both were drawn with the same numbers
    ends = _ends(a.resampled / shuffled, min(a.tail, b.tail))
    return SpeedUp(a.median / b.median, *_at_least_between_runs(ends, a.medians, b.medians), min(a.runs, b.runs))


@dataclass(frozen=True)
class BreakEven:
    """From which step on A has taken less wall time than B in total, warm-up included.

    outcome    "ahead from the start", "reached" (within the runs), "extrapolated", "never"; or, where A is behind at
               the end, "unknown" (the runs are too short for a steady rate) or "unclear" (which is faster per step
               cannot be told)
    step       the first whole step at which A is ahead, 0 from the start, None if there is none to tell
    tokens     tokens a run has seen by then; device_hours: A's wall time by then, times its devices (GPUs)
    lost_at    where A is ahead at the end but slower per step: the step, extrapolated, at which B overtakes it
    warm       those of the two whose runs all found compiled kernels, which hides a part of what they cost
    """

    a: str
    b: str
    outcome: str
    step: int | None
    tokens: float | None
    device_hours: float | None
    lost_at: int | None
    warm: tuple[str, ...] = ()

    def sentence(self) -> str:
        """For people, with units."""
        if self.step is None:
            reason = {
                "never": "it is behind at the end and no faster per step",
                "unknown": "it is behind at the end, and the runs are too short for a steady rate",
                "unclear": "it is behind at the end, and which is faster per step cannot be told",
            }
            word = "never breaks even with" if self.outcome == "never" else "may or may not break even with"
            return f"{self.a} {word} {self.b}: {reason[self.outcome]}."
        lost = f", but slower per step, and loses the lead at about step {self.lost_at:,}" if self.lost_at else ""
        warm = f"{' and '.join(self.warm)} with a warm compile cache" if self.warm else ""
        if self.step == 0:
            return f"{self.a} is ahead of {self.b} from the start{warm and f' ({warm})'}{lost}."
        how = "reached in the runs" if self.outcome == "reached" else "extrapolated"
        cost = f"{self.tokens / 1e6:,.3g} M tokens, {self.device_hours:,.3g} device-hours"
        return f"{self.a} breaks even with {self.b} at step {self.step:,} ({cost}; {how}{warm and f'; {warm}'}){lost}."


def paying(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs that show what compiling costs: of each recipe those that found no compiled kernels; all if each did."""
    done = runs[runs["status"] == "completed"]
    cold = done["compile_cache"] != "warm"
    return done[cold | ~cold.groupby(done["recipe"]).transform("any")]


def break_even(
    runs: pd.DataFrame, windows: pd.DataFrame, steps: pd.DataFrame, a: str, b: str, gain: SpeedUp
) -> BreakEven:
    """The step from which on recipe `a` has cost less wall time than recipe `b`, for good.

    Where the curves of the runs that paid for compilation cross it is read off the measured `elapsed_s` (between
    windows on a straight line; of several runs their mean). Else both go on from their last common step at the mean
    seconds of a steady step of all runs: the mean, since that is what adds up; the median leaves out the slow tail. On
    the published logs the mean gives 3,851 for rowwise against compiled, the median the quoted 3,800. Nothing is
    extrapolated where `gain`, the speed-up of `a` over `b`, may be none, or where mean and median rank the two
    differently: then a tail decides that another run need not have.
    """
    paid = paying(runs)
    grid, spent_a, spent_b = _curves(completed(paid, windows, a), completed(paid, windows, b))
    steady_a, steady_b = (steady_seconds(runs, steps, recipe) for recipe in (a, b))
    slope_a, slope_b = _mean(steady_a), _mean(steady_b)
    unclear = gain.unclear or (slope_a - slope_b) * (gain.ratio - 1) > 0
    gap = spent_a - spent_b
    meeting = grid[-1] + gap[-1] / (slope_b - slope_a) if slope_a != slope_b else math.nan  # of the extrapolated lines
    if gap[-1] >= 0:
        if math.isnan(gain.ratio):
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
    warm = tuple(recipe for recipe in (a, b) if (completed(paid, paid, recipe)["compile_cache"] == "warm").all())
    lost_at = math.ceil(meeting) if gap[-1] < 0 and slope_a > slope_b and gain.high < 1 else None
    device_hours = float(seconds * rows["world_size"].median() / 3600)
    return BreakEven(a, b, outcome, step, float(step * rows["tokens_per_step"].median()), device_hours, lost_at, warm)


def _curves(a: pd.DataFrame, b: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps that all runs cover, and the mean seconds that the runs of `a` and those of `b` had taken by each."""
    sides = [[run.sort_values("step") for _, run in side.groupby("run")] for side in (a, b)]
    every = [*sides[0], *sides[1]]
    first, last = max(run["step"].min() for run in every), min(run["step"].max() for run in every)
    grid = np.unique(np.concatenate([run["step"] for run in every]))
    grid = grid[(first <= grid) & (grid <= last)]
    means = [np.mean([np.interp(grid, run["step"], run["elapsed_s"]) for run in side], axis=0) for side in sides]
    return grid, *means


def _mean(seconds: list[np.ndarray]) -> float:
    return float(np.concatenate(seconds).mean()) if seconds else math.nan
