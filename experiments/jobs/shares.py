"""The time budget of a study, shared out so that it ends in time and its runs have made equally
many steps.

Each run gets the same share of the time that is left, its warm-up included. Once a run has ended,
the later ones stop at as many steps, even before their share is spent, and the time that they do
not use goes to the runs after them. The comparison is over the steps that all runs have made. A run
whose warm-up takes much of its share lowers that number for all; how long a warm-up will take is
not known beforehand.
"""

import math
import time

END_S = 5  # seconds from a run's last step to its end, without a checkpoint
CHECKPOINT_RATE = 1e9  # bytes/s, assumed until a run has written one
BUDGET = "STUDY_BUDGET_S"  # in the environment of a study's runs: their manifests say so


class Shares:
    """The time left, and the fewest steps that a run before has made."""

    def __init__(self, seconds: float, places: int, end_s: float = END_S):
        """`seconds` are left of the budget, `places` runs go at once, and each takes `end_s` to end
        once asked."""
        self.end = time.monotonic() + seconds
        self.places = places
        self.end_s = end_s
        self.fewest = math.inf
        self._ends_s = []

    def until(self, waiting: int) -> float:
        """Return the time at which a run that starts now is to be asked to stop; `waiting` others
        come after it."""
        turns = math.ceil((waiting + 1) / self.places)
        now = time.monotonic()
        return now + (self.end - now) / turns - self.end_s

    @property
    def over(self) -> bool:
        """Whether a run that starts now would be asked to stop at once."""
        return time.monotonic() >= self.end - self.end_s

    def spent(self, until: float, step: int) -> bool:
        """Whether a run that is at `step` is to stop."""
        return time.monotonic() >= until or step >= self.fewest

    def ended(self, step: int, asked_at: float) -> None:
        """Note that a run that was asked to stop at time `asked_at` has ended after `step` steps,
        0 within its warm-up."""
        if step:
            self.fewest = min(self.fewest, step)
        self._ends_s.append(time.monotonic() - asked_at)
        self.end_s = max(self._ends_s)
