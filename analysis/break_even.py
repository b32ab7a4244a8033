"""Find the break-even step: from then on a recipe has taken less wall time than its reference.

The first step (compile) is included.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pandas as pd

from analysis.runs import Run
from analysis.speed import SpeedUp, compare_means

# Steps after the end of the runs, at which wall times are foretold: neighbours are 0.7 % apart.
STEPS_BEYOND = np.geomspace(1, 1e9, 3000)


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
        is_beyond: the step comes after the runs' end, and is foretold from their mean steady step.
    """

    when: When = When.NOT_COMPARED
    step: float = math.nan
    low: float = math.nan
    high: float = math.nan
    is_beyond: bool = False

    def __str__(self) -> str:
        """Write it as "from step about 1,234 (1,100 to 1,400)"."""
        if math.isnan(self.step):
            return self.when
        about = "about " if self.is_beyond else ""
        interval = f" ({self.low:,.0f} to {self.high:,.0f})" if self.low >= 0 else ""
        return f"{self.when} {about}{self.step:,.0f}{interval}".replace("inf", "never")


def find_break_even(runs: list[Run], reference_runs: list[Run], speed: SpeedUp) -> BreakEven:
    """Find where the difference of the mean wall times of two recipes changes its sign for good.

    Wall times are measured within the runs, on straight lines between log intervals. After their
    end each step is the mean steady step, if the ratio of speeds is certain. The interval holds the
    steps at which a t-test over the runs does not reject equal wall times.
    """
    has_warm_cache = {run.facts.get("compile_cache") == "warm" for run in runs}
    reference_has_warm_cache = {run.facts.get("compile_cache") == "warm" for run in reference_runs}
    if not runs or not reference_runs or has_warm_cache != reference_has_warm_cache:
        return BreakEven()
    clocks = [run.clock.index for run in runs + reference_runs]
    last_step = min(clock[-1] for clock in clocks)
    steps = np.arange(max(clock[0] for clock in clocks), last_step + 1)
    is_certain = (speed.ratio.is_clear or speed.runs == 1) and not speed.caveats
    if is_certain:
        steps = np.append(steps, last_step + STEPS_BEYOND)
    delays = compare_means(
        runs,
        reference_runs,
        pd.DataFrame(interpolate_wall_s(runs, steps)),
        pd.DataFrame(interpolate_wall_s(reference_runs, steps)),
    )  # (mean, low, high) of the recipe's seconds behind the reference, at each step
    is_ahead = delays[0, -1] < 0
    if not is_ahead:
        delays = -delays[[0, 2, 1]]  # of the reference behind the recipe
    # 0 and infinity are signals: negative throughout, or not at the end.
    step, low, high = (find_last_sign_change(steps, delay) for delay in delays)
    is_beyond = step > last_step
    if is_ahead and step == 0:
        return BreakEven(When.START)
    if is_ahead:
        return BreakEven(When.FROM, step, low, high, is_beyond)
    if step in (0, math.inf):
        return BreakEven(When.NEVER if is_certain else When.NOT_YET)
    return BreakEven(When.UNTIL, step - 1, max(low - 1, 0), high - 1, is_beyond)


def interpolate_wall_s(runs: list[Run], steps: np.ndarray) -> np.ndarray:
    """Work out the wall seconds (runs, steps) of runs at the end of `steps`.

    After the end of a log each step is the run's mean steady step.
    """
    wall_s = []
    for run in runs:
        clock = run.clock
        steps_beyond = np.maximum(steps - clock.index[-1], 0)
        seconds_beyond = steps_beyond * run.steady_steps["step_s"].mean()
        seconds_beyond = np.where(steps_beyond > 0, seconds_beyond, 0)  # no steady step: NaN
        wall_s.append(np.interp(steps, clock.index, clock) + seconds_beyond)
    return np.array(wall_s)


def find_last_sign_change(steps: np.ndarray, line: np.ndarray) -> float:
    """Find the first whole step of a line's last stretch below zero.

    0 if the whole line is below zero, infinite if its end is not, NaN if the line is unknown.
    """
    if np.isnan(line).any():
        return math.nan
    not_below = np.flatnonzero(line >= 0)
    if not len(not_below):
        return 0
    last = not_below[-1]
    if last == len(line) - 1:
        return math.inf
    neighbours = [last + 1, last]
    return math.floor(np.interp(0, line[neighbours], steps[neighbours])) + 1
