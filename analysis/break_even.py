"""The break-even step: from which has a recipe taken less wall time, the first step included?"""

import math
import warnings
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy import stats

from analysis.agreement import SpeedUp
from analysis.runs import Run
from analysis.speed import LEVEL, MIN_STEPS, paired_by_seed, timed

POINTS = 2000  # steps beyond the runs at which wall times are worked out
FAR = 100  # times the expected break-even step: how far beyond the runs they go


class When(StrEnum):
    """When a recipe has taken less wall time in total."""

    START = "from the start"
    FROM = "from"  # a step on
    UNTIL = "until"  # a step, and not after it
    NEVER = "never"  # it is behind at the end, and no faster per step
    CANNOT_TELL = "cannot tell"
    NOT_COMPARED = "-"  # the recipes' clocks do not compare


SENTENCES = {
    When.START: "{a} is ahead of {b} from the start, first step (compile) included.",
    When.FROM: "{a} is ahead of {b} from step {step:,} on ({facts}).",
    When.UNTIL: "{a} is ahead of {b} until step {step:,} ({facts}), and behind after it.",
    When.NEVER: "{a} never catches up with {b}: it is behind at the end, and no faster per step.",
    When.CANNOT_TELL: "{a} may or may not catch up with {b}: it is behind at the end, and these "
    f"runs cannot tell which is faster per step (that takes {MIN_STEPS} steps, and several runs "
    "that agree).",
    When.NOT_COMPARED: "The wall times of {a} and {b} do not compare: they have no logged step in "
    "common, or the first steps of one reused compiled kernels.",
}


@dataclass(frozen=True)
class BreakEven:
    """When a recipe has taken less wall time than its reference.

    Args:
        step: with FROM the first step at which it is ahead, with UNTIL the last.
        low, high: 95 % interval of the step, over the runs; `high` is infinite where it may never
            be ahead. NaN with a single run.
        beyond: the step is beyond the runs, which go on as their mean steady step.
        tokens, device_hours: that a run has seen, and taken, by that step.
    """

    when: When = When.NOT_COMPARED
    step: float = math.nan
    low: float = math.nan
    high: float = math.nan
    beyond: bool = False
    tokens: float = math.nan
    device_hours: float = math.nan

    def __str__(self) -> str:
        """For a table."""
        if math.isnan(self.step):
            return self.when
        number = f"{'about ' * self.beyond}{self.step:,.0f}"
        return f"until {number}" if self.when == When.UNTIL else number

    def sentence(self, a: str, b: str) -> str:
        facts = []
        if not math.isnan(self.low):
            high = f"{self.high:,.0f}" if math.isfinite(self.high) else "no end"
            facts.append(f"95 % interval: step {self.low:,.0f} to {high}")
        facts.append(f"{self.tokens / 1e6:,.3g} M tokens, {self.device_hours:,.3g} device-hours")
        if self.beyond:
            facts.append("beyond the end of these runs")
        step = 0 if math.isnan(self.step) else int(self.step)
        return SENTENCES[self.when].format(a=a, b=b, step=step, facts="; ".join(facts))


def break_even(own: list[Run], others: list[Run], gain: SpeedUp) -> BreakEven:
    """Find where the difference of the mean wall times of two recipes changes its sign for good.

    Within the runs that is measured, between log windows on a straight line. Beyond them runs go on
    as their mean steady step, if the ratio of speeds is certain. The interval has the steps at
    which a t-test over the runs does not reject that both recipes have taken as long.
    """
    steps = common_steps(own + others)
    warm = [{run.compile_cache == "warm" for run in runs} for runs in (own, others)]
    if not (own and others and len(steps)) or warm[0] != warm[1]:
        return BreakEven()
    last = steps[-1]
    tells = gain.ratio.clear if gain.runs > 1 else gain.runs == 1 and gain.ratio.mean != 1
    if tells and not gain.caveats:
        steps = np.append(steps, beyond(own, others, last))
    taken, beside = wall_times(own, steps), wall_times(others, steps)
    mean = taken.mean(axis=0)
    behind = mean - beside.mean(axis=0)
    low, high = interval(taken, beside, paired_by_seed(own, others))
    if behind[-1] < 0:
        when = When.FROM
        step, *ends = (negative_from(steps, line) for line in (behind, low, high))
        if step == 0:
            return BreakEven(When.START)
    else:
        when = When.UNTIL
        step, *ends = (max(0, negative_from(steps, -line) - 1) for line in (behind, high, low))
        if step in (0, math.inf):
            return BreakEven(When.NEVER if steps[-1] > last else When.CANNOT_TELL)
    if np.isnan(low).any():
        ends = [math.nan, math.nan]
    hours = np.interp(step, steps, mean, left=0.0) / 3600
    return BreakEven(
        when=when,
        step=float(step),
        low=float(ends[0]),
        high=float(ends[1]),
        beyond=bool(step > last),
        tokens=float(step * own[0].steps["tokens"].median()),
        device_hours=float(hours * own[0].manifest.world_size),
    )


def common_steps(runs: list[Run]) -> np.ndarray:
    """List the steps that some run's clock has logged, as far as all runs have made them."""
    clocks = [run.steps["elapsed"].dropna().index for run in runs]
    if not clocks or not all(map(len, clocks)):
        return np.array([])
    steps = np.unique(np.concatenate(clocks))
    first, last = max(clock[0] for clock in clocks), min(clock[-1] for clock in clocks)
    return steps[(steps >= first) & (steps <= last)]


def beyond(own: list[Run], others: list[Run], last: int) -> np.ndarray:
    """List steps beyond the last common one, until long after the lines of both recipes meet."""
    at_end = np.array([last])
    behind = wall_times(own, at_end).mean() - wall_times(others, at_end).mean()
    a, b = (np.mean([seconds_a_step(run) for run in timed(runs)]) for runs in (own, others))
    return last + np.geomspace(1, 2 + FAR * abs(behind / (b - a)), POINTS)


def seconds_a_step(run: Run) -> float:
    """The mean of the steady steps."""
    return run.steps["seconds"][run.steps["steady"]].mean()


def wall_times(runs: list[Run], steps: np.ndarray) -> np.ndarray:
    """Work out the seconds (runs by seed, steps) that runs had taken by `steps`, first included.

    Beyond its log a run goes on as its mean steady step, or the recipe's if it has none.
    """
    usual = [seconds_a_step(run) for run in timed(runs)]
    lines = []
    for run in sorted(runs, key=lambda run: run.seed):
        clock = run.steps["elapsed"].dropna()
        pace = seconds_a_step(run) if timed([run]) else np.mean(usual or [math.nan])
        after_log = np.clip(steps - clock.index[-1], 0, None)
        lines.append(np.interp(steps, clock.index, clock) + np.nan_to_num(after_log * pace))
    return np.array(lines)


def interval(a: np.ndarray, b: np.ndarray, pairs: bool) -> tuple[np.ndarray, np.ndarray]:
    """Estimate the 95 % interval of how far the mean of `a` is above that of `b`, at each step.

    Args:
        a, b: (runs, steps)
    """
    with warnings.catch_warnings(action="ignore"):  # a single run, or runs that are equal
        test = stats.ttest_1samp(a - b, 0) if pairs else stats.ttest_ind(a, b, equal_var=False)
        return test.confidence_interval(LEVEL)


def negative_from(steps: np.ndarray, line: np.ndarray) -> float:
    """Find the first whole step from which on a line stays below zero: 0 if all of it does,
    infinite if its end does not."""
    above = np.flatnonzero(~(line < 0))
    if not len(above):
        return 0
    last = above[-1]
    if last == len(line) - 1:
        return math.inf
    part = line[last] / (line[last] - line[last + 1])
    return math.floor(steps[last] + part * (steps[last + 1] - steps[last])) + 1
