"""How fast, and from when on it pays: rates, their ratio, break-even.

Processes of one recipe differ in speed from start to start, which cannot be seen within one of
them. An interval therefore comes from several runs, or there is none. The rate of a run is that of
its mean step, because the mean adds up to the wall time; the median leaves slow steps out.
"""

import math
import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from analysis.runs import NOT_STEADY_STEPS

LEVEL = 0.95  # confidence of the intervals of rates, ratios and break-even steps
MIN_STEADY = 20  # steady steps that a run needs for a rate
MIN_STEPS = MIN_STEADY + 10  # the first 10 steps of a process are never steady
POWER = 0.8  # chance of telling a difference that `needed` runs have
MOST_NEEDED = 100  # above so many runs each, nobody repeats a study
FAR = 1e12  # lines are extended to so many times the length of the runs: without end, for any rate


def interval(a: np.ndarray, b: np.ndarray | None = None, level: float = LEVEL) -> np.ndarray:
    """Estimate an interval of the mean of `a`, or of how far it is above the mean of `b`.

    Args:
        a, b: samples (runs, ...). Student's t interval of one, Welch's of two.

    Returns:
        (2, ...): the low and the high end, NaN where a sample has less than two runs.
    """
    with warnings.catch_warnings(action="ignore"):  # samples that are small, or have no spread
        test = stats.ttest_1samp(a, 0.0) if b is None else stats.ttest_ind(a, b, equal_var=False)
        return np.array(test.confidence_interval(level))


@dataclass(frozen=True)
class Rate:
    """Steady tokens/s of a recipe over all devices; NaN where no run has `MIN_STEADY` steady
    steps."""

    mean: float  # by each run's mean step time; of several runs the geometric mean
    median: float  # the same by the median step time
    low: float  # 95 % interval of `mean` over the runs; NaN with one run
    high: float
    clock: float  # by the clock, see `_by_clock`
    by_run: pd.Series  # tokens/s by the mean step of each run that has a rate, indexed by its name

    @property
    def runs(self) -> int:
        return len(self.by_run)


class Completed(NamedTuple):
    """The completed runs of one recipe of a study. Only they count."""

    recipe: str
    runs: pd.DataFrame  # their rows in the frames of analysis.load
    windows: pd.DataFrame
    steps: pd.DataFrame
    tokens_per_step: float
    rate: Rate


def completed(
    recipe: str, runs: pd.DataFrame, windows: pd.DataFrame, steps: pd.DataFrame
) -> Completed:
    """Choose the completed runs of a recipe; `steps` as from `analysis.load.steps`."""
    done = runs[(runs["recipe"] == recipe) & (runs["status"] == "completed")]
    windows, steps = (frame[frame["run"].isin(done["run"])] for frame in (windows, steps))
    tokens = done["tokens_per_step"].median()
    by_run = steps[steps["steady"]].groupby("run")["seconds"].agg(["mean", "median", "count"])
    rates = tokens / by_run.loc[by_run["count"] >= MIN_STEADY, ["mean", "median"]]
    logs = np.log(rates)
    ends = np.exp(interval(logs["mean"]))
    clock = tokens * _steps_by_clock(done, windows)
    rate = Rate(*np.exp(logs.mean()), *ends, clock, rates["mean"])
    return Completed(recipe, done, windows, steps, tokens, rate)


def _steps_by_clock(runs: pd.DataFrame, windows: pd.DataFrame) -> float:
    """Work out steps/s by the clock, over all steps after the first ten, steady or not.

    NaN where no run has enough of them. Resumed runs are left out: their clock also counts the
    steps that were repeated.
    """
    resumed = runs.loc[runs["attempt"] > 1, "run"]
    late = windows[~windows["run"].isin(resumed) & (windows["step"] >= NOT_STEADY_STEPS)]
    by_run = late.dropna(subset="elapsed_s").groupby("run")[["step", "elapsed_s"]]
    passed = (by_run.max() - by_run.min()).query(f"step >= {MIN_STEADY}")
    return float(np.exp(np.log(passed["step"] / passed["elapsed_s"]).mean()))


@dataclass(frozen=True)
class SpeedUp:
    """A's tokens/s over B's, by the mean step; above 1, A is faster. NaN where one has no rate."""

    ratio: float
    by_median: float  # the same ratio by the median step
    by_clock: float  # and by the clock
    low: float  # 95 % interval of `ratio` (Welch's, of the logarithms)
    high: float  # both NaN with a single run of one
    runs: int  # of the recipe with fewer
    # Runs of each recipe with which the ratio that was seen would be told from 1 in 80 % of
    # studies, by the spread that was seen; None where the interval tells already, or where it would
    # take more than 100.
    needed: int | None

    @property
    def unclear(self) -> bool:
        """Whether these runs cannot tell which is faster."""
        return not (self.low > 1 or self.high < 1)

    @property
    def word(self) -> str:
        """The ratio and how certain it is, for a table."""
        if not self.runs:
            return "-"
        if self.runs == 1:
            return f"{self.ratio:.2f}, one run"
        return f"{self.ratio:.2f} ({self.low:.2f} to {self.high:.2f})"


def speed_up(a: Rate, b: Rate) -> SpeedUp:
    """Divide two rates."""
    logs_a, logs_b = np.log(a.by_run), np.log(b.by_run)
    low, high = np.exp(interval(logs_a, logs_b))
    needed = None
    if low < 1 < high:
        needed = _needed(logs_a.mean() - logs_b.mean(), logs_a.var() + logs_b.var())
    ratios = a.mean / b.mean, a.median / b.median, a.clock / b.clock
    return SpeedUp(*ratios, low, high, min(a.runs, b.runs), needed)


def _needed(difference: float, variance: float) -> int | None:
    """See `SpeedUp.needed`; the power of a two-sided t-test of two samples, from the noncentral t
    distribution."""
    runs = np.arange(2, MOST_NEEDED + 1)
    freedom, errors = 2 * (runs - 1), np.sqrt(variance / runs)
    critical = stats.t.ppf((1 + LEVEL) / 2, freedom)
    power = stats.nct.sf(critical, freedom, abs(difference) / errors)
    return next(iter(runs[power >= POWER].tolist()), None)


# When A has taken less wall time than B. AHEAD: always. FROM a step on; UNTIL a step, and not after
# it. A is behind at the end, and NEVER: no faster per step; UNKNOWN: the runs are too short for a
# rate; UNCLEAR: they cannot tell which is faster per step.
AHEAD, FROM, UNTIL = "from the start", "from", "until"
NEVER, UNKNOWN, UNCLEAR, NO_COMMON_STEP = "never", "too short", "cannot tell", "no common step"
_SENTENCES = {
    AHEAD: "{a} is ahead of {b} from the start, warm-up included.",
    FROM: "{a} breaks even with {b} at step {step:,} ({facts}).",
    UNTIL: "{a} is ahead of {b} until step {step:,} ({facts}), and behind after it.",
    NEVER: "{a} never breaks even with {b}: it is behind at the end, and is no faster per step.",
    UNKNOWN: "{a} may or may not break even with {b}: it is behind at the end, and the runs are "
    f"too short to say which is faster per step (that takes {MIN_STEPS} steps).",
    UNCLEAR: "{a} may or may not break even with {b}: it is behind at the end, and these runs "
    "cannot tell which is faster per step.",
    NO_COMMON_STEP: "The wall times of {a} and {b} cannot be compared: they have no timed step in "
    "common.",
}


@dataclass(frozen=True)
class BreakEven:
    """Whether and when recipe A has taken less wall time than recipe B in total, warm-up
    included."""

    a: str
    b: str
    outcome: str
    # 0 with AHEAD; with FROM the first whole step at which A is ahead, with UNTIL the last.
    step: int | None = None
    low: float | None = None  # 95 % interval of `step` with several runs of both
    high: float | None = None  # infinite where A may never be
    beyond: bool = False  # `step` is beyond the runs: lines go on at the mean steady step time
    tokens: float | None = None  # that a run has seen by `step`
    device_hours: float | None = None  # A's wall time by then, times its devices (GPUs)

    @property
    def word(self) -> str:
        """When A is ahead, for a table."""
        if not self.step:
            return self.outcome
        about = "about " * self.beyond
        return f"{self.outcome} {about}step {self.step:,}"

    def sentence(self) -> str:
        """For people, with units."""
        facts = []
        if self.low is not None:
            high = f"{self.high:,.0f}".replace("inf", "no end")
            facts.append(f"95 % interval: step {self.low:,.0f} to {high}")
        if self.step is not None:
            millions = self.tokens / 1e6
            facts.append(f"{millions:,.3g} M tokens, {self.device_hours:,.3g} device-hours")
        if self.beyond:
            facts.append("beyond the end of these runs")
        return _SENTENCES[self.outcome].format(**vars(self), facts="; ".join(facts))


def break_even(a: Completed, b: Completed) -> BreakEven:
    """From which step on, or until which, recipe `a` has cost less wall time than recipe `b`.

    It is where the difference of the mean `elapsed_s` of both recipes' runs changes its sign for
    good. Within the runs that is measured, between log windows on a straight line. Beyond them each
    run goes on at its mean seconds of a steady step, unless several runs cannot tell which recipe
    is faster. The interval has the steps at which Welch's t-test over the runs does not reject that
    both have cost the same.
    """
    timed = pd.concat([a.windows, b.windows]).dropna(subset="elapsed_s")
    by_run = timed.groupby("run")["step"]
    common = timed["step"].between(by_run.min().max(), by_run.max().min())
    steps = np.unique(timed.loc[common, "step"])
    if timed["recipe"].nunique() < 2 or not len(steps):
        return BreakEven(a.recipe, b.recipe, NO_COMMON_STEP)
    last, gain = steps[-1], speed_up(a.rate, b.rate)
    clear = gain.runs == 1 or not gain.unclear
    if clear:
        steps = np.concatenate([steps, last * (1 + np.geomspace(1e-3, FAR, 4000))])
    spent_a, spent_b = spent(a, steps), spent(b, steps)
    mean_a = spent_a.mean(axis=0)
    gap = mean_a - spent_b.mean(axis=0)
    low, high = interval(spent_a, spent_b)
    if gap[-1] < 0:
        step, *ends = (_below_from(steps, line) for line in (gap, low, high))
        outcome = FROM if step else AHEAD
    else:
        step, *ends = (max(0, _below_from(steps, -line) - 1) for line in (gap, high, low))
        outcome = UNTIL
        if step in (0, math.inf):
            behind = NEVER if clear else UNCLEAR
            return BreakEven(a.recipe, b.recipe, behind if gain.runs else UNKNOWN)
    if np.isnan(low).any():
        ends = None, None
    seconds = np.interp(step, steps, mean_a, left=0.0)
    hours = float(seconds / 3600 * a.runs["world_size"].median())
    beyond, tokens = bool(step > last), float(step * a.tokens_per_step)
    return BreakEven(a.recipe, b.recipe, outcome, step, *ends, beyond, tokens, hours)


def spent(of: Completed, steps: np.ndarray) -> np.ndarray:
    """Work out the wall seconds (runs, steps) that runs had taken by `steps`, warm-up included.

    Beyond its log a run goes on at its mean seconds of a steady step (the recipe's, where it has no
    rate of its own).
    """
    lines = []
    for name, run in of.windows.dropna(subset="elapsed_s").groupby("run"):
        seconds = of.tokens_per_step / of.rate.by_run.get(name, of.rate.mean)
        more = 2 * FAR * run["step"].iloc[-1]
        end = run[["step", "elapsed_s"]].iloc[-1] + [more, more * seconds]
        step, elapsed = np.vstack([run[["step", "elapsed_s"]], end]).T
        lines.append(np.interp(steps, step, elapsed))
    return np.array(lines) if lines else np.full((1, len(steps)), math.nan)


def _below_from(steps: np.ndarray, gap: np.ndarray) -> float:
    """The first whole step from which on `gap` is below zero for good: 0 if everywhere, infinite if
    not at the end."""
    behind = np.flatnonzero(~(gap < 0))
    if not len(behind):
        return 0
    last = behind[-1]
    if last == len(gap) - 1:
        return math.inf
    part = gap[last] / (gap[last] - gap[last + 1])
    return math.floor(steps[last] + part * (steps[last + 1] - steps[last])) + 1
