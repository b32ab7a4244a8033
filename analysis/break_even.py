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

# How many steps after the end of the runs wall times are foretold: at points 0.7 % apart.
STEPS_BEYOND = np.geomspace(1, 1e9, 3000)


class When(StrEnum):
    """When a recipe is ahead of its reference: it has taken less wall time in total."""

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
        step: the first step ahead with FROM, the last step ahead with UNTIL; else NaN.
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
        interval = ""
        if self.low >= 0:
            high = "never" if math.isinf(self.high) else f"{self.high:,.0f}"
            interval = f" ({self.low:,.0f} to {high})"
        return f"{self.when} {about}{self.step:,.0f}{interval}"


def find_break_even(runs: list[Run], reference_runs: list[Run], speed: SpeedUp) -> BreakEven:
    """Find where the difference of the mean wall times of two recipes changes its sign for good.

    Within the runs wall times are measured, on straight lines between log intervals. After the
    runs' end they are foretold if the ratio of speeds is certain. The interval holds the steps at
    which a t-test over the runs does not reject equal wall times. Recipes are not compared if one
    of them had more of its compiled code in a cache.
    """
    if (
        not runs
        or not reference_runs
        or list_cache_states(runs) != list_cache_states(reference_runs)
    ):
        return BreakEven()
    all_runs = runs + reference_runs
    first_step = max(run.clock.index[0] for run in all_runs)
    last_step = min(run.clock.index[-1] for run in all_runs)
    steps = np.arange(first_step, last_step + 1)
    is_certain = (speed.ratio.is_clear or speed.runs == 1) and not speed.caveats
    if is_certain:
        steps = np.append(steps, last_step + STEPS_BEYOND)
    delays = compare_means(
        runs,
        reference_runs,
        pd.DataFrame(interpolate_wall_s(runs, steps)),
        pd.DataFrame(interpolate_wall_s(reference_runs, steps)),
    )  # (mean, low, high) of the recipe's seconds behind the reference, at each step
    mean_delay, lowest_delay, highest_delay = delays
    is_ahead = mean_delay[-1] < 0
    if is_ahead:
        step = find_last_sign_change(steps, mean_delay)
        low = find_last_sign_change(steps, lowest_delay)
        high = find_last_sign_change(steps, highest_delay)
    else:  # from this step on the reference is ahead
        step = find_last_sign_change(steps, -mean_delay)
        low = find_last_sign_change(steps, -highest_delay)
        high = find_last_sign_change(steps, -lowest_delay)
    is_beyond = step > last_step
    if is_ahead and step == 0:
        return BreakEven(When.START)
    if is_ahead:
        return BreakEven(When.FROM, step, low, high, is_beyond)
    if step in (0, math.inf):
        return BreakEven(When.NEVER if is_certain else When.NOT_YET)
    return BreakEven(When.UNTIL, step - 1, max(low - 1, 0), high - 1, is_beyond)


def list_cache_states(runs: list[Run]) -> set[bool]:
    """List whether the cache of compiled code was warm: both if runs of a recipe differ."""
    return {run.facts.get("compile_cache") == "warm" for run in runs}


def interpolate_wall_s(runs: list[Run], steps: np.ndarray) -> np.ndarray:
    """Work out the wall seconds (runs, steps) of runs at the end of `steps`.

    After the end of a log each step is the run's mean steady step: NaN without a steady step.
    """
    wall_s = []
    for run in runs:
        clock = run.clock
        steps_beyond = np.maximum(steps - clock.index[-1], 0)
        seconds_beyond = steps_beyond * run.steady_steps["step_s"].mean()
        seconds_beyond = np.where(steps_beyond > 0, seconds_beyond, 0)  # 0 times NaN is NaN
        wall_s.append(np.interp(steps, clock.index, clock) + seconds_beyond)
    return np.array(wall_s)


def find_last_sign_change(steps: np.ndarray, line: np.ndarray) -> float:
    """Find the step from which a line is below zero to its end.

    0 if the whole line is below zero, infinite if its end is not, NaN if the line is unknown.
    """
    if np.isnan(line).any():
        return math.nan
    places_not_below = np.flatnonzero(line >= 0)
    if not len(places_not_below):
        return 0
    last_place = places_not_below[-1]
    if last_place == len(line) - 1:
        return math.inf
    neighbours = [last_place + 1, last_place]  # np.interp wants ascending values of the line
    zero = np.interp(0, line[neighbours], steps[neighbours])
    return math.floor(zero) + 1
