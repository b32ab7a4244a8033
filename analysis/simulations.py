"""Simulate studies with a known truth, and count how often the tool's own functions are wrong.

    python -m analysis.simulations --studies 1500

Prints what must be about 95 % (coverage), at most 2.5 % (a false "faster") or 5 % (a false "the
same"), and the power of ratios that are paired by seed.

Exit codes: 0, 2 for a wrong command line.
"""

import argparse
import sys

import numpy as np
import pandas as pd

from analysis.losses import SAME, judge
from analysis.rates import SECONDS, Completed, Ratio, speed_up

SPREAD = 0.01  # standard deviation of the speeds of processes of one recipe, and of paired losses
NODES = 0.10  # of the speeds of nodes
MARGIN = 0.0165  # 0.25 % of a loss of 6.6


def measured(speeds: np.ndarray, host=None) -> Completed:
    """Make completed runs with these tokens/s."""
    step_s = 1 / speeds
    runs = pd.DataFrame({"run": range(len(speeds)), "seed": range(len(speeds)), "host": host})
    runs = runs.assign(**dict.fromkeys(SECONDS, step_s), tokens_per_step=1)
    return Completed("", runs.assign(steady_steps=100, visible_devices="0"), None, None)


def ratio(a: Completed, b: Completed, tries: int = 1) -> Ratio:
    return speed_up(a, b, tries).by["step_s"]


def simulate(studies: int, runs: int, random: np.random.Generator) -> pd.Series:
    """Simulate studies of so many runs of each recipe; returns shares of these studies."""

    def speeds(ratio=1.0, nodes=0.0):
        return np.exp(np.log(ratio) + nodes + SPREAD * random.normal(size=runs))

    hosts = [f"node{number}" for number in range(runs)]
    found = []
    for _ in range(studies):
        gain = ratio(measured(speeds(1.1)), measured(speeds()))
        opponent = measured(speeds())
        three = [ratio(measured(speeds()), opponent, tries=3) for _ in range(3)]
        nodes = NODES * random.normal(size=runs)
        fast, slow = speeds(1.05, nodes), speeds(1.0, nodes)
        losses = MARGIN + SPREAD * random.normal(size=(runs, 3)) / 5
        found.append(
            {
                "speed: the interval covers the truth": gain.low < 1.1 < gain.high,
                'speed: "faster" of any of 3 that are not': any(each.low > 1 for each in three),
                "speed: 5 % is told, paired by node": (
                    ratio(measured(fast, hosts), measured(slow, hosts)).low > 1
                ),
                "speed: 5 % is told, not paired": (ratio(measured(fast), measured(slow)).low > 1),
                'loss: "the same" at the margin': judge(losses[:, 0], MARGIN) == SAME,
                'loss: "the same" of any of 3 at the margin': (
                    judge(losses, MARGIN, tries=3) == SAME
                ).any(),
            }
        )
    return pd.DataFrame(found).astype(float).mean()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.simulations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--studies", type=int, default=1500, help="of each kind (default: 1500)")
    parser.add_argument("--runs", type=int, default=3, help="of each recipe (default: 3)")
    args = parser.parse_args(argv)
    shares = simulate(args.studies, args.runs, np.random.default_rng(0))
    print(f"{args.studies:,} studies of {args.runs} runs of each recipe")
    for what, share in shares.items():
        print(f"{share:7.1%}  {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
