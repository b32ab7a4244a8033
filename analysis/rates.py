"""How fast, and from when on it pays: rates, their ratio, break-even.

Processes of one recipe differ in speed from start to start, which cannot be seen within one of
them. An interval therefore comes from several runs, or there is none. The rate of a run is that of
its mean steady step, because the mean adds up to the wall time.
"""

import math
import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from analysis.load import DRIFT, PARTS, Frames
from experiments.records.run import NOT_STEADY_STEPS

LEVEL = 0.95  # confidence of the intervals of rates, ratios and break-even steps
MIN_STEADY = 20  # steady steps that a run needs for a rate
MIN_STEPS = MIN_STEADY + NOT_STEADY_STEPS
SMALL = 0.01  # of the speed: two recipes that are so near are as fast
SHRINKS = 0.1  # of a lead: where more is lost from the first third to another, it may end
REPEATS = (3, 5, 10)  # runs of which the width of the interval is foretold


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


def half_widths(variance: float, level: float, samples: int = 1) -> dict[int, float]:
    """Foretell half of the interval's width with so many runs, by the variance that was seen.

    Args:
        variance: of one sample, or the sum of both variances of two `samples`.
    """
    widths = {}
    for runs in REPEATS:
        critical = stats.t.ppf((1 + level) / 2, samples * (runs - 1))
        widths[runs] = float(critical * math.sqrt(variance / runs))
    return widths


class Rate(NamedTuple):
    """Steady tokens/s of a recipe over all devices; NaN where no run has `MIN_STEADY` steady
    steps."""

    mean: float  # of several runs the geometric mean
    low: float  # 95 % interval over the runs; NaN with one run
    high: float
    by_run: pd.Series  # of each run that has a rate, indexed by its name

    @property
    def runs(self) -> int:
        return len(self.by_run)


class Completed(NamedTuple):
    """The completed runs of one recipe of a study. Only they count."""

    recipe: str
    runs: pd.DataFrame  # their rows in the frames of analysis.load
    windows: pd.DataFrame
    steps: pd.DataFrame

    @property
    def timed(self) -> pd.DataFrame:
        """The runs that are long enough for a rate."""
        return self.runs[self.runs["steady_steps"] >= MIN_STEADY]

    @property
    def rate(self) -> Rate:
        by_run = self.timed.set_index("run")["tokens_per_s"].astype(float)
        mean, (low, high) = np.log(by_run).mean(), interval(np.log(by_run))
        return Rate(mean=np.exp(mean), low=np.exp(low), high=np.exp(high), by_run=by_run)


def completed_runs(recipe: str, frames: Frames) -> Completed:
    """Choose the completed runs of a recipe."""
    done = frames.runs.query("recipe == @recipe and status == 'completed'")
    logs = (frame[frame["run"].isin(done["run"])] for frame in (frames.windows, frames.steps))
    return Completed(recipe, done, *logs)


class Ratio(NamedTuple):
    """A's tokens/s over B's by one column with seconds of a step; above 1, A is faster. NaN where
    no run of one has that column, the ends also with a single run of one."""

    mean: float
    low: float
    high: float

    @property
    def unclear(self) -> bool:
        """Whether these runs cannot tell which is faster."""
        return not (self.low > 1 or self.high < 1)

    @property
    def words(self) -> str:
        """The ratio, with its interval where there is one."""
        interval = f" ({self.low:.2f} to {self.high:.2f})" * math.isfinite(self.low)
        return f"{self.mean:.2f} times{interval}"


class Change(NamedTuple):
    """How a lead is another one in some part of the steps."""

    kind: str  # "drift": it turns, or moves by more than `DRIFT`; "shrinks": by `SHRINKS` of itself
    first: float  # the ratio by the median step of the first third
    last: float
    part: str  # one of `PARTS`, which `last` is of


@dataclass(frozen=True)
class SpeedUp:
    """A's tokens/s over B's, by the mean steady step."""

    by: dict[str, Ratio]  # by each column of `SECONDS`
    runs: int  # of the recipe with fewer
    tries: int  # how many recipes were compared: the interval is wider with each
    half_widths: dict[int, float]  # of the interval with more runs; empty with less than 3 runs

    @property
    def ratio(self) -> float:
        return self.by["step_s"].mean

    @property
    def unclear(self) -> bool:
        return self.by["step_s"].unclear

    @property
    def as_fast(self) -> bool:
        return abs(self.ratio - 1) < SMALL

    @property
    def change(self) -> Change | None:
        """How a part of the steps says otherwise than the first third; None where all say the same.

        Steps are noisy, so the change has to be certain, and of a single run it has to be large.
        """
        first, found = self.by["first_third_s"].mean, []
        for part, column in PARTS.items():
            moves = self.by[column]
            last, far = first * moves.mean, abs(moves.mean - 1) > DRIFT
            turns = min(first, last) < 1 - SMALL and max(first, last) > 1 + SMALL
            certain = far if self.runs == 1 else not moves.unclear
            if certain and (turns or far):
                found.append(Change("drift", first, last, part))
            elif certain and first > 1 and first - last > max(SMALL, SHRINKS * (first - 1)):
                found.append(Change("shrinks", first, last, part))
        return min(found, key=lambda change: change.kind, default=None)

    @property
    def word(self) -> str:
        """The ratio and how certain it is, for a table."""
        if not self.runs:
            return "-"
        if self.runs == 1:
            return f"{self.ratio:.2f}, one run"
        return "{:.2f} ({:.2f} to {:.2f})".format(*self.by["step_s"])


# Columns of `Frames.runs` by which a ratio is worked out: the mean steady step; by the clock, over
# all steps after the first ten; without slow steps; without stalls; the median of the first third,
# and how many times that other parts take.
SECONDS = ("step_s", "clock_s", "usual_s", "without_stalls_s", "first_third_s", *PARTS.values())


def speed_up(a: Completed, b: Completed, tries: int = 1) -> SpeedUp:
    """Divide the rates of two recipes. Intervals are Welch's, of the logarithms, or by pairs where
    these share places.

    Args:
        tries: how many recipes are compared with `b`. The level of each interval is that of
            Bonferroni, so that all of them hold together; so do those of all `PARTS`.
    """
    level = 1 - (1 - LEVEL) / tries
    of_parts = 1 - (1 - level) / len(PARTS)
    by, widths, runs = {}, {}, min(len(a.timed), len(b.timed))
    for column in SECONDS:
        samples = _logarithms(a.timed, b.timed, column)
        mean, *less = [sample.mean() for sample in samples]
        ends = interval(*samples, level=of_parts if column in PARTS.values() else level)
        by[column] = Ratio(*map(float, np.exp([mean - sum(less), *ends])))
    if runs >= min(REPEATS):
        samples = _logarithms(a.timed, b.timed, "step_s")
        variance = sum(sample.var() for sample in samples)
        widths = half_widths(variance, level, len(samples))
    return SpeedUp(by, runs, tries, widths)


def _logarithms(a: pd.DataFrame, b: pd.DataFrame, column: str) -> list[pd.Series]:
    """Work out the logarithms of the tokens/s of A and of B, or of their ratio by seed."""
    logs = [
        np.log((of["tokens_per_step"] / of[column]).astype(float)).set_axis(of["seed"])
        for of in (a, b)
    ]
    samples = [logs[0] - logs[1]] if _same_places(a, b) else logs
    return [sample.dropna() for sample in samples]


def _same_places(a: pd.DataFrame, b: pd.DataFrame) -> bool:
    """Tell whether both runs of each seed had the same host and GPUs, and not all seeds did.

    Machines then differ by more than recipes, and ratios are paired by seed.
    """
    place = ["host", "visible_devices"]
    pairs = a.dropna(subset="host").merge(b, on=["seed", *place])
    return len(pairs) == len(a) == len(b) and len(pairs[place].drop_duplicates()) > 1


# When A has taken less wall time than B. AHEAD: always. FROM a step on; UNTIL a step, and not after
# it. A is behind at the end, and NEVER: no faster per step; UNKNOWN: the runs are too short for a
# rate; UNCLEAR: they cannot tell which is faster per step.
AHEAD, FROM, UNTIL = "from the start", "from", "until"
NEVER, UNKNOWN, UNCLEAR, NO_COMMON_STEP = "never", "too short", "cannot tell", "no common step"
_SENTENCES = {
    AHEAD: "{a} is ahead of {b} from the start, first step (compile) included.",
    FROM: "{a} overtakes {b} at step {step:,} ({facts}).",
    UNTIL: "{a} is ahead of {b} until step {step:,} ({facts}), and behind after it.",
    NEVER: "{a} never overtakes {b}: it is behind at the end, and is no faster per step.",
    UNKNOWN: "{a} may or may not overtake {b}: it is behind at the end, and the runs are too short "
    f"to say which is faster per step (that takes {MIN_STEPS} steps).",
    UNCLEAR: "{a} may or may not overtake {b}: it is behind at the end, and these runs cannot tell "
    "which will be faster per step.",
    NO_COMMON_STEP: "The wall times of {a} and {b} cannot be compared: they have no timed step in "
    "common.",
}


@dataclass(frozen=True)
class BreakEven:
    """Whether and when recipe A has taken less wall time than recipe B in total, first step
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
    is faster, or a part of their steps says otherwise than the first third. The interval has the
    steps at which a t-test over the runs, as of the ratio, does not reject that both have cost the
    same.
    """
    timed = pd.concat([a.windows, b.windows]).dropna(subset="elapsed_s")
    by_run = timed.groupby("run")["step"]
    common = timed["step"].between(by_run.min().max(), by_run.max().min())
    steps = np.unique(timed.loc[common, "step"])
    if timed["recipe"].nunique() < 2 or not len(steps):
        return BreakEven(a.recipe, b.recipe, NO_COMMON_STEP)
    last, gain = steps[-1], speed_up(a, b)
    tells = gain.runs == 1 or not gain.unclear
    clear = tells and gain.ratio != 1 and not gain.change
    if clear:
        gap = spent(a, steps[-1:]).mean() - spent(b, steps[-1:]).mean()
        gained = b.timed["step_s"].mean() - a.timed["step_s"].mean()  # by each further step
        steps = np.append(steps, last + np.geomspace(1, 2 + 100 * abs(gap / gained), 2000))
    spent_a, spent_b = spent(a, steps), spent(b, steps)
    mean_a = spent_a.mean(axis=0)
    gap = mean_a - spent_b.mean(axis=0)
    same_places = _same_places(a.runs, b.runs) and len(spent_a) == len(spent_b)
    low, high = interval(spent_a - spent_b) if same_places else interval(spent_a, spent_b)
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
    return BreakEven(
        a=a.recipe,
        b=b.recipe,
        outcome=outcome,
        step=step,
        low=ends[0],
        high=ends[1],
        beyond=bool(step > last),
        tokens=float(step * a.runs["tokens_per_step"].median()),
        device_hours=float(seconds / 3600 * a.runs["world_size"].median()),
    )


def spent(of: Completed, steps: np.ndarray) -> np.ndarray:
    """Work out the wall seconds (runs by seed, steps) that runs had taken by `steps`, the first
    included.

    Beyond its log a run goes on at its mean seconds of a steady step (the recipe's, where it has no
    rate of its own).
    """
    seconds = of.timed.set_index("run")["step_s"]
    lines = []
    by_seed = of.windows.dropna(subset="elapsed_s").groupby(["seed", "run"], dropna=False)
    for (_, name), run in by_seed:
        logged = np.interp(steps, run["step"], run["elapsed_s"])
        beyond = np.clip(steps - run["step"].iloc[-1], 0, None)
        lines.append(logged + np.nan_to_num(beyond * seconds.get(name, seconds.mean())))
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
