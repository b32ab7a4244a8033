"""How often the analysis is wrong, and what it misses: studies with known truth by the thousand.

    python -m tests.analysis.coverage --studies 1000

Coverage must be about 95 %, a false "faster" at most 2.5 %, a false "the same" at most 5 %. The
other shares are the power: how often a fault of that size is told.
"""

import argparse

import numpy as np
import pandas as pd

from analysis.agreement import speed_up
from analysis.losses import SAME, verdict
from tests.analysis.formulas import run

STEPS = 200
STARTS = 0.003  # standard deviation of the speeds of processes of one recipe
NOISE = 0.02  # of step times
PAIRED = 0.2  # of the differences of paired losses, in margins
MARGIN = 0.0025 * 3.0


def study(random: np.random.Generator, ratio: float, runs: int, slow=1.0, loss=0.0):
    """Runs of FP8 and of bf16.

    Args:
        slow: factors of FP8's step times (runs or 1, steps or 1).
        loss: how far FP8 ends above, in margins.
    """
    starts, noise = (np.exp(STARTS * random.normal(size=(2, runs, 1))),
                     np.exp(NOISE * random.normal(size=(2, runs, STEPS))))  # fmt: skip
    seconds = 0.5 * starts * noise
    seconds[0] *= slow / ratio
    levels = 3.0 + 0.05 * random.normal(size=runs)
    above = MARGIN * (loss + PAIRED * random.normal(size=runs))
    return (
        [run("a", k, seconds[0, k], levels[k] + above[k], STEPS) for k in range(runs)],
        [run("b", k, seconds[1, k], levels[k], STEPS) for k in range(runs)],
    )


def simulate(studies: int, runs: int) -> pd.Series:
    """Simulate so many studies of each kind; returns shares of them."""
    random, found = np.random.default_rng(0), []
    late = np.outer(np.arange(runs) == 0, np.arange(STEPS) >= STEPS // 2)  # of one run
    slowing = {
        "FP8 that slows by 10 % over the run is told": np.linspace(0.95, 1.05, STEPS),
        "FP8 that slows by 20 % over the run is told": np.linspace(0.9, 1.1, STEPS),
        "one FP8 run that slows by 30 % in its second half is told": 1 + 0.3 * late,
    }
    for _ in range(studies):
        faster, equal = (speed_up(*study(random, ratio, runs)) for ratio in (1.1, 1.0))
        at_margin = verdict(*study(random, 1.1, runs, loss=1.0))
        of_study = {
            "the interval covers the true ratio": faster.ratio.low < 1.1 < faster.ratio.high,
            '"faster" is said of a recipe that is not': equal.ratio.low > 1,
            '"the same" is said at the margin': at_margin.word == SAME,
            "a sound lead of 1.1 gets a caveat": bool(faster.caveats),
        }
        for what, slow in slowing.items():
            of_study[what] = bool(speed_up(*study(random, 1.2, runs, slow)).caveats)
        found.append(of_study)
    return pd.DataFrame(found).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=1000, help="of each kind (default: 1000)")
    parser.add_argument("--runs", type=int, default=3, help="of each recipe (default: 3)")
    args = parser.parse_args()
    print(f"{args.studies:,} studies of {args.runs} runs of each recipe")
    for what, share in simulate(args.studies, args.runs).items():
        print(f"{share:7.1%}  {what}")


if __name__ == "__main__":
    main()
