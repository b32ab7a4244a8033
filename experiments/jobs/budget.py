"""Share the time budget of a study among its runs.

Each run gets the same share of the time that is left, its warm-up included. Once a run has ended,
the later ones stop at as many steps, even before their share is spent, and the time that they do
not use goes to the runs after them. The comparison is over the steps that all runs have made. A
run whose warm-up takes much of its share lowers that number for all; how long a warm-up will take
is not known beforehand.

A sweep's cells run one after the other, and each is a comparison of its own. A cell begins if it
would end in time should it take as long as the longest.
"""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from models.errors import InputError

TABLE_S = 10  # what a study's table and page take at the end
END_S = 5  # from a run's last step to its end, without a checkpoint
CHECKPOINT_RATE = 1e9  # bytes/s, assumed until a run has written one
STUDY_BUDGET = "STUDY_BUDGET_S"  # in the environment of a study's runs: their manifests say so


def begin_budget(limit_s: float | None, checkpoint_bytes: float) -> "Budget":
    """Begin the budget of a study, whose seconds count from this process's start; None: no limit.

    Raises `InputError` if no run could make a step.
    """
    if limit_s is None:
        return Budget()
    from models.device import seconds_since_process_start  # torch

    budget = Budget(limit_s - seconds_since_process_start())
    budget.check(checkpoint_bytes)
    os.environ[STUDY_BUDGET] = str(math.ceil(limit_s))
    return budget


class Budget:
    """The time that is left for runs, and the fewest steps that one of this cell has made."""

    def __init__(self, seconds: float = math.inf, clock: Callable[[], float] = time.monotonic):
        """`seconds` are left for runs, table and page."""
        self.clock = clock
        self.end = clock() + seconds - TABLE_S
        self.longest_cell_s = 0.0
        self._begin(0)

    @property
    def is_limited(self) -> bool:
        return self.end < math.inf

    def _begin(self, checkpoint_bytes: float) -> None:
        self.end_s = END_S + checkpoint_bytes / CHECKPOINT_RATE  # from being asked to its end
        self.fewest = math.inf
        self._ends_s: list[float] = []

    def check(self, checkpoint_bytes: float) -> None:
        """Raise `InputError` if no run could make a step."""
        self._begin(checkpoint_bytes)
        if self.over:
            raise InputError(
                "--budget is too little: start-up, the end of a run and the table alone take "
                f"{TABLE_S + self.end_s:.0f} s and more"
            )

    @contextmanager
    def cell(self, checkpoint_bytes: float) -> Iterator[bool]:
        """Measure a cell of runs; yields whether it may begin."""
        self._begin(checkpoint_bytes)
        began = self.clock()
        yield self.end - began > self.longest_cell_s
        self.longest_cell_s = max(self.longest_cell_s, self.clock() - began)

    def until(self, waiting: int, places: int) -> float:
        """Return the time at which a run that starts now is to be asked to stop.

        `waiting` others come after it, and `places` of them run at once.
        """
        turns = math.ceil((waiting + 1) / places)
        now = self.clock()
        return now + (self.end - now) / turns - self.end_s

    @property
    def over(self) -> bool:
        """Whether a run that starts now would be asked to stop at once."""
        return self.clock() >= self.end - self.end_s

    def spent(self, until: float, step: int) -> bool:
        """Whether a run that is at `step` is to stop."""
        return self.clock() >= until or step >= self.fewest

    def ended(self, step: int, asked_at: float) -> None:
        """Note that a run that was asked to stop at time `asked_at` has ended after `step` steps,
        0 within its warm-up."""
        if step:
            self.fewest = min(self.fewest, step)
        self._ends_s.append(self.clock() - asked_at)
        self.end_s = max(self._ends_s)
