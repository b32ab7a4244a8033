"""Find the break-even step: from then on a recipe has taken less wall time than its reference.

The first step (compile) is included.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from analysis.agreement import SpeedUp
from analysis.runs import Run
from analysis.speed import difference

BEYOND = np.geomspace(1, 1e9, 3000)  # steps after the runs' end, at which wall times are foretold


class When(StrEnum):
    """When a recipe is ahead: it has taken less wall time in total."""

    START = "from the start"
    FROM = "from step"  # behind at first, ahead from this step on
    UNTIL = "until step"  # ahead at first, behind after this step
    NEVER = "never"  # behind at the end, and no faster per step
    NOT_YET = "at no step of these runs"  # behind at the end; perhaps faster per step
    NOT_COMPARED = "cannot tell"  # the recipes' clocks do not compare


@dataclass(frozen=True)
class BreakEven:
    """When a recipe has taken less wall time than its reference.

    Args:
        step: the first step ahead with FROM, the last step ahead with UNTIL.
        low, high: 95 % interval of the step, over the runs; NaN with a single run. `high` is
            infinite if the recipe may never be ahead, or never lose its lead.
        beyond: the step comes after the runs' end, and is foretold from their mean steady step.
    """

    when: When = When.NOT_COMPARED
    step: float = math.nan
    low: float = math.nan
    high: float = math.nan
    beyond: bool = False

    def __str__(self) -> str:
        """Write it as "from step about 1,234 (1,100 to 1,400)"."""
        if math.isnan(self.step):
            return self.when
        about = "about " if self.beyond else ""
        interval = f" ({self.low:,.0f} to {self.high:,.0f})" if self.low >= 0 else ""
        return f"{self.when} {about}{self.step:,.0f}{interval}".replace("inf", "never")


def break_even(own: list[Run], others: list[Run], gain: SpeedUp) -> BreakEven:
    """Find where the difference of the mean wall times of two recipes changes its sign for good.

    Wall times are measured within the runs, on straight lines between log intervals. After their
    end each step is the mean steady step, if the ratio of speeds is certain. The interval holds the
    steps at which a t-test over the runs does not reject equal wall times.
    """
    warm = [{run.facts.get("compile_cache") == "warm" for run in runs} for runs in (own, others)]
    if not (own and others) or warm[0] != warm[1]:
        return BreakEven()
    clocks = [run.clock.index for run in own + others]
    last = min(clock[-1] for clock in clocks)
    steps = np.arange(max(clock[0] for clock in clocks), last + 1)
    certain = (gain.ratio.clear or gain.runs == 1) and not gain.caveats
    if certain:
        steps = np.append(steps, last + BEYOND)
    lines = difference(own, others, lambda runs: wall_times(runs, steps))
    ahead = lines[0, -1] < 0
    if not ahead:
        lines = -lines[[0, 2, 1]]  # the reference's lead
    # 0 and inf are signals: a line is negative throughout, or not at its end.
    step, low, high = (negative_from(steps, line) for line in lines)
    beyond = step > last
    if ahead:
        return BreakEven(When.FROM, step, low, high, beyond) if step else BreakEven(When.START)
    if step in (0, math.inf):
        return BreakEven(When.NEVER if certain else When.NOT_YET)
    return BreakEven(When.UNTIL, step - 1, max(low - 1, 0), high - 1, beyond)


def wall_times(runs: list[Run], steps: np.ndarray) -> np.ndarray:
    """Work out the wall seconds (runs, steps) of runs at the end of `steps`.

    After the end of a log each step is the run's mean steady step.
    """
    lines = []
    for run in runs:
        after = steps - run.clock.index[-1]
        beyond = np.where(after > 0, after * run.steady["seconds"].mean(), 0)
        lines.append(np.interp(steps, run.clock.index, run.clock) + beyond)
    return np.array(lines)


def negative_from(steps: np.ndarray, line: np.ndarray) -> float:
    """Find the first whole step of a line's last stretch below zero.

    0 if the whole line is below zero, infinite if its end is not, NaN if the line is unknown.
    """
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
