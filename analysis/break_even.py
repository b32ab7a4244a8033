"""From which step has a recipe taken less wall time than its reference, first step included?"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from analysis.agreement import SpeedUp
from analysis.runs import Run
from analysis.speed import MIN_STEPS, difference

BEYOND = np.geomspace(1, 1e9, 3000)  # steps after the runs' end, at which wall times are foretold


class When(StrEnum):
    """When a recipe is ahead: it has taken less wall time in total."""

    START = "from the start"
    FROM = "from"  # a step on
    UNTIL = "until"  # a step, and not after it
    NEVER = "never"  # it is behind at the end, and no faster per step
    CANNOT_TELL = "cannot tell"
    NOT_COMPARED = "-"  # the recipes' clocks do not compare


SENTENCES = {
    When.START: "{a} is ahead of {b} from the start, first step (compile) included.",
    When.FROM: "{a} is ahead of {b} from step {step} on{interval}, first step (compile) included.",
    When.UNTIL: "{a} is ahead of {b} until step {step}{interval}, and behind after it.",
    When.NEVER: "{a} never catches up with {b}: it is behind at the end, and no faster per step.",
    When.CANNOT_TELL: "{a} may or may not catch up with {b}: it is behind at the end, and these "
    f"runs cannot tell which is faster per step (that takes {MIN_STEPS} steps, and several runs "
    "that agree).",
    When.NOT_COMPARED: "The wall times of {a} and {b} do not compare: one has no completed run, or "
    "reused compiled kernels in its first steps.",
}


@dataclass(frozen=True)
class BreakEven:
    """When a recipe has taken less wall time than its reference.

    Args:
        step: the first step ahead with FROM, the last step ahead with UNTIL.
        low, high: 95 % interval of the step, over the runs; `high` is infinite if the recipe may
            never be ahead. NaN with a single run.
        beyond: the step comes after the runs' end, and is foretold from their mean steady step.
    """

    when: When = When.NOT_COMPARED
    step: float = math.nan
    low: float = math.nan
    high: float = math.nan
    beyond: bool = False

    @property
    def number(self) -> str:
        return f"about {self.step:,.0f}" if self.beyond else f"{self.step:,.0f}"

    def __str__(self) -> str:
        """For a table."""
        if math.isnan(self.step):
            return self.when
        return f"until {self.number}" if self.when == When.UNTIL else self.number

    def sentence(self, a: str, b: str) -> str:
        interval = ""
        if not math.isnan(self.low):
            interval = f" (95 % interval {self.low:,.0f} to {self.high:,.0f})"
        return SENTENCES[self.when].format(a=a, b=b, step=self.number, interval=interval)


def break_even(own: list[Run], others: list[Run], gain: SpeedUp) -> BreakEven:
    """Find where the difference of the mean wall times of two recipes changes its sign for good.

    Wall times are measured within the runs, on straight lines between log windows. After their end
    each step is the mean steady step, if the ratio of speeds is certain. The interval holds the
    steps at which a t-test over the runs does not reject equal wall times.
    """
    warm = [{run.facts.get("compile_cache") == "warm" for run in runs} for runs in (own, others)]
    if not (own and others) or warm[0] != warm[1]:
        return BreakEven()
    clocks = [run.steps["elapsed"].dropna().index for run in own + others]
    last = min(clock[-1] for clock in clocks)
    steps = np.arange(max(clock[0] for clock in clocks), last + 1)
    certain = (gain.ratio.clear or gain.runs == 1) and not gain.caveats
    if certain:
        steps = np.append(steps, last + BEYOND)
    lines = difference(own, others, lambda runs: wall_times(runs, steps))
    ahead = lines[0, -1] < 0
    if not ahead:
        lines = -lines[[0, 2, 1]]  # the reference's lead
    ends = np.array([negative_from(steps, line) for line in lines])
    if ahead and ends[0] == 0:
        return BreakEven(When.START)
    if ahead:
        return BreakEven(When.FROM, *ends, beyond=ends[0] > last)
    if ends[0] in (0, math.inf):
        return BreakEven(When.NEVER if certain else When.CANNOT_TELL)
    ends = np.maximum(0, ends - 1)
    return BreakEven(When.UNTIL, *ends, beyond=ends[0] > last)


def wall_times(runs: list[Run], steps: np.ndarray) -> np.ndarray:
    """Work out the seconds (runs, steps) that runs had taken at the end of `steps`.

    After the end of a log each step is the run's mean steady step.
    """
    lines = []
    for run in runs:
        clock = run.steps["elapsed"].dropna()
        usual = run.steady["seconds"].mean()
        after = steps - clock.index[-1]
        lines.append(np.interp(steps, clock.index, clock) + np.where(after > 0, after * usual, 0))
    return np.array(lines)


def negative_from(steps: np.ndarray, line: np.ndarray) -> float:
    """Find the first whole step from which on a line stays below zero: 0 if the whole line does,
    infinite if its end does not, NaN if the line is unknown."""
    if np.isnan(line).any():
        return math.nan
    above = np.flatnonzero(line >= 0)
    if not len(above):
        return 0
    last = above[-1]
    if last == len(line) - 1:
        return math.inf
    around = [last + 1, last]
    return math.floor(np.interp(0, line[around], steps[around])) + 1
