"""How fast, and from when on it pays: rates, their ratio, break-even. Takes the frames of
analysis.load.

Processes of one recipe differ in speed from start to start, which cannot be seen within one of
them. An interval therefore comes from several runs, or there is none. The rate of a run is that of
its mean step, because the mean adds up to the wall time; the median leaves slow steps out.

A recipe is looked up by its name in `runs`, and only its completed runs count. Pass the runs of one
study.
"""

import math
from dataclasses import dataclass

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


def completed(runs: pd.DataFrame, frame: pd.DataFrame, recipe: str) -> pd.DataFrame:
    """Rows of `frame` (runs, windows or steps) that belong to the completed runs of `recipe`."""
    chosen = runs.loc[(runs["recipe"] == recipe) & (runs["status"] == "completed"), "run"]
    return frame[frame["run"].isin(chosen)]


def students(*samples: np.ndarray, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """Mean of one sample, or the difference of two samples' means, and half the width of its
    interval.

    Args:
        samples: one or two arrays (runs, ...). Student's t interval of one, Welch's of two.

    Returns:
        Two arrays (...); the second is NaN where a sample has a single run.
    """
    centre = samples[0].mean(axis=0) - sum(sample.mean(axis=0) for sample in samples[1:])
    if min(map(len, samples)) < 2:
        return centre, np.full(np.shape(centre), math.nan)
    errors = [sample.var(axis=0, ddof=1) / len(sample) for sample in samples]
    total = sum(errors)
    with np.errstate(invalid="ignore", divide="ignore"):
        freedom = total**2 / sum(
            error**2 / (len(s) - 1) for error, s in zip(errors, samples, strict=True)
        )
        half = stats.t.ppf((1 + level) / 2, freedom) * np.sqrt(total)
    return centre, np.where(total > 0, half, 0.0)


@dataclass(frozen=True)
class Rate:
    """Steady tokens/s of a recipe over all devices; NaN where no run has `MIN_STEADY` steady
    steps."""

    mean: float  # by each run's mean step time; of several runs the geometric mean
    median: float  # the same by the median step time
    low: float  # 95 % interval of `mean` over the runs; NaN with one run
    high: float
    by_run: pd.Series  # tokens/s by the mean step of each run that has a rate, indexed by its name

    @property
    def runs(self) -> int:
        return len(self.by_run)


def rate_of(runs: pd.DataFrame, steps: pd.DataFrame, recipe: str) -> Rate:
    """The steady rate of the completed runs of `recipe`; `steps` as from `analysis.load.steps`."""
    tokens = completed(runs, runs, recipe)["tokens_per_step"].median()
    by_run = completed(runs, steps[steps["steady"]], recipe).groupby("run")["seconds"]
    by_run = by_run.agg(["mean", "median", "count"]).query(f"count >= {MIN_STEADY}")
    if by_run.empty:
        return Rate(*[math.nan] * 4, by_run["mean"])
    logs = np.log(tokens / by_run[["mean", "median"]].to_numpy())
    (mean, median), (half, _) = students(logs)
    return Rate(*map(math.exp, (mean, median, mean - half, mean + half)), tokens / by_run["mean"])


def by_clock(runs: pd.DataFrame, windows: pd.DataFrame, recipe: str) -> float:
    """Work out the tokens/s of `recipe` by the clock, over all steps after the first ten, steady or
    not.

    NaN where no run has enough of them. Resumed runs are left out: their clock also counts the
    steps that were repeated.
    """
    never_resumed = runs[runs["attempt"].fillna(1) <= 1]
    rows = completed(never_resumed, windows, recipe).query(f"step >= {NOT_STEADY_STEPS}")
    by_run = rows.dropna(subset="elapsed_s").groupby("run")[["step", "elapsed_s"]]
    passed = (by_run.max() - by_run.min()).query(f"step >= {MIN_STEADY} and elapsed_s > 0")
    tokens = completed(runs, runs, recipe)["tokens_per_step"].median()
    return float(np.exp(np.log(tokens * passed["step"] / passed["elapsed_s"]).mean()))


@dataclass(frozen=True)
class SpeedUp:
    """A's tokens/s over B's, by the mean step; above 1, A is faster."""

    ratio: float
    by_median: float  # the same ratio by the median step
    low: (
        float  # 95 % interval of `ratio` (Welch's, of the logarithms); NaN with a single run of one
    )
    high: float
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
    """Divide two rates; NaN where one is."""
    fewer = min(a.runs, b.runs)
    if not fewer:
        return SpeedUp(*[math.nan] * 4, fewer, None)
    logs = [np.log(rate.by_run.to_numpy()) for rate in (a, b)]
    centre, half = map(float, students(*logs))
    needed = _needed(abs(centre), logs) if half > 0 and half >= abs(centre) else None
    ends = (math.exp(centre - half), math.exp(centre + half))
    return SpeedUp(math.exp(centre), a.median / b.median, *ends, fewer, needed)


def _needed(difference: float, logs: list[np.ndarray]) -> int | None:
    """See `SpeedUp.needed`; the power of a two-sided t-test of two samples, from the noncentral t
    distribution."""
    count = np.arange(2, MOST_NEEDED + 1)
    freedom, error = 2 * (count - 1), np.sqrt(sum(log.var(ddof=1) for log in logs) / count)
    power = stats.nct.sf(stats.t.ppf((1 + LEVEL) / 2, freedom), freedom, difference / error)
    return next(iter(count[power >= POWER].tolist()), None)


AHEAD, FROM, UNTIL = "from the start", "from", "until"
NEVER, UNKNOWN, UNCLEAR, NO_COMMON_STEP = "never", "too short", "cannot tell", "no common step"
_BEHIND = {
    NEVER: "never breaks even with {b}: it is behind at the end, and is no faster per step",
    UNKNOWN: "may or may not break even with {b}: it is behind at the end, and the runs are too "
    f"short to say which is faster per step (that takes {MIN_STEPS} steps)",
    UNCLEAR: "may or may not break even with {b}: it is behind at the end, and these runs cannot "
    "tell which is faster per step",
}


@dataclass(frozen=True)
class BreakEven:
    """Whether and when recipe A has taken less wall time than recipe B in total, warm-up included.

    Outcomes: ahead AHEAD; FROM a step on; UNTIL a step, and behind after it. NEVER: behind at the
    end and no faster per step; and, where A is behind at the end: UNKNOWN, as the runs are too
    short for a rate, or UNCLEAR, as the runs cannot tell which is faster per step. NO_COMMON_STEP:
    the logs cannot be compared.
    """

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
        return f"{self.outcome} {'about ' * self.beyond}step {self.step:,}"

    def sentence(self) -> str:
        """For people, with units."""
        if self.outcome == NO_COMMON_STEP:
            return (
                f"The wall times of {self.a} and {self.b} cannot be compared: they have no timed "
                "step in common."
            )
        if self.outcome in _BEHIND:
            return f"{self.a} {_BEHIND[self.outcome].format(b=self.b)}."
        if self.outcome == AHEAD:
            return f"{self.a} is ahead of {self.b} from the start, warm-up included."
        facts = [self._interval()] if self.low is not None else []
        if self.outcome == FROM:
            cost = f"{self.tokens / 1e6:,.3g} M tokens, {self.device_hours:,.3g} device-hours"
            facts.append(cost)
        facts += ["beyond the end of these runs"] * self.beyond
        words = f" ({'; '.join(facts)})" if facts else ""
        if self.outcome == FROM:
            return f"{self.a} breaks even with {self.b} at step {self.step:,}{words}."
        until = f"until step {self.step:,}{words}, and behind after it"
        return f"{self.a} is ahead of {self.b} {until}."

    def _interval(self) -> str:
        first, last = ("not at all", "no end") if self.outcome == UNTIL else ("the start", "never")
        low = f"step {self.low:,.0f}" if self.low else first
        high = last if math.isinf(self.high) else f"step {self.high:,.0f}"
        return f"95 % interval: {low} to {high}"


def break_even(
    runs: pd.DataFrame, windows: pd.DataFrame, a: str, b: str, rates: dict[str, Rate]
) -> BreakEven:
    """From which step on, or until which, recipe `a` has cost less wall time than recipe `b`.

    It is where the difference of the mean `elapsed_s` of both recipes' runs changes its sign for
    good. Within the runs that is measured, between log windows on a straight line. Beyond them each
    run goes on at its mean seconds of a steady step, unless several runs cannot tell which recipe
    is faster. The interval has the steps at which Welch's t-test over the runs does not reject that
    both have cost the same.
    """
    steps = _common_steps(completed(runs, windows, a), completed(runs, windows, b))
    if not len(steps):
        return BreakEven(a, b, NO_COMMON_STEP)
    gain, last = speed_up(rates[a], rates[b]), steps[-1]
    clear = gain.runs == 1 or (gain.runs > 1 and not gain.unclear)
    if clear:
        steps = np.concatenate([steps, last * (1 + np.geomspace(1e-3, FAR, 4000))])
    spent_a, spent_b = (spent(runs, windows, recipe, rates[recipe], steps) for recipe in (a, b))
    gap, half = students(spent_a, spent_b)
    crossing = _ahead_from(steps, gap)
    outcome, sign = FROM if crossing else AHEAD, 1
    if math.isinf(crossing):
        crossing, outcome, sign = _ahead_from(steps, -gap), UNTIL, -1
        if crossing == 0 or math.isinf(crossing):
            behind = NEVER if clear else UNCLEAR
            return BreakEven(a, b, behind if gain.runs else UNKNOWN)
    step = int(_whole(crossing, outcome))
    low, high = None, None
    if not np.isnan(half).any():
        ends = [_ahead_from(steps, sign * gap + side * half) for side in (-1, 1)]
        low, high = (_whole(end, outcome) for end in ends)
    facts = completed(runs, runs, a)[["world_size", "tokens_per_step"]].median()
    hours = np.interp(step, steps, spent_a.mean(axis=0)) / 3600 if step else 0.0
    cost = step * facts["tokens_per_step"], hours * facts["world_size"]
    return BreakEven(a, b, outcome, step, low, high, bool(step > last), *map(float, cost))


def spent(
    runs: pd.DataFrame, windows: pd.DataFrame, recipe: str, rate: Rate, steps: np.ndarray
) -> np.ndarray:
    """Wall seconds (runs, steps) that the completed runs of `recipe` had taken by `steps`, warm-up
    included.

    Beyond its log a run goes on at its mean seconds of a steady step (the recipe's, where it has no
    rate of its own).
    """
    tokens, lines = completed(runs, runs, recipe)["tokens_per_step"].median(), []
    rows = completed(runs, windows, recipe).dropna(subset="elapsed_s")
    for name, run in rows.groupby("run"):
        seconds = tokens / rate.by_run.get(name, rate.mean)
        more = np.clip(steps - run["step"].iloc[-1], 0, None)
        within = np.interp(steps, run["step"], run["elapsed_s"])
        lines.append(within + np.where(more > 0, more * seconds, 0.0))
    return np.array(lines) if lines else np.full((1, len(steps)), math.nan)


def _whole(crossing: float, outcome: str) -> float:
    """The first whole step after a crossing, or the last one before it."""
    if crossing == 0 or math.isinf(crossing):
        return crossing
    return math.ceil(crossing) - 1 if outcome == UNTIL else math.floor(crossing) + 1


def _ahead_from(steps: np.ndarray, gap: np.ndarray) -> float:
    """From where on `gap` is below zero for good: 0 if everywhere, infinite if not at the end."""
    behind = np.flatnonzero(~(gap < 0))
    if not len(behind):
        return 0.0
    last = behind[-1]
    if last == len(gap) - 1:
        return math.inf
    part = gap[last] / (gap[last] - gap[last + 1])
    return float(steps[last] + part * (steps[last + 1] - steps[last]))


def _common_steps(*recipes: pd.DataFrame) -> np.ndarray:
    """The logged steps that all runs in these windows cover; none where one of the recipes has no
    wall times."""
    timed = [windows.dropna(subset="elapsed_s") for windows in recipes]
    if any(windows.empty for windows in timed):
        return np.empty(0)
    windows = pd.concat(timed)
    steps, ends = np.unique(windows["step"]), windows.groupby("run")["step"].agg(["min", "max"])
    return steps[(ends["min"].max() <= steps) & (steps <= ends["max"].min())]
