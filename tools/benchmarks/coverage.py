"""How often the analysis is wrong, and what it misses: studies with known truth by the hundred.

    python -m tools.benchmarks.coverage

Coverage must be about 95 %, a false "faster" at most 2.5 %, a false "the same" at most 5 %. The
other shares are the power: how often a fault of that size is told.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from analysis.comparison import Finding, compare
from analysis.losses import SAME, TOLERANCE
from analysis.study import read_study
from tests.analysis.planted import FP8, study

STUDIES = 150  # of each kind, of 3 runs of each recipe
WORDS = {"recipes": "CT", "steps": 200, "sd": 0.02, "rho": 0.0, "pair": 0.0015}


def told(found: Finding) -> bool:
    """Whether something contradicts the ratio."""
    return bool(found.speed.caveats)


KINDS = {  # the true lead, what is wrong with FP8, and what is counted
    "the interval covers the true ratio": (
        1.1, {}, lambda found: found.speed.ratio.low < 1.1 < found.speed.ratio.high),
    '"faster" is said of a recipe that is not': (
        1.0, {}, lambda found: found.speed.ratio.low > 1),
    '"the same" is said at the margin': (
        1.1, {"losses": {"by": TOLERANCE}}, lambda found: found.loss.word == SAME),
    "a sound lead of 1.1 gets a caveat": (
        1.1, {}, told),
    "FP8 that slows by 10 % over the run is told": (
        1.26, {"seconds": {"by": 0.1, "shape": ["grow", 200]}}, told),
    "FP8 that slows by 20 % over the run is told": (
        1.32, {"seconds": {"by": 0.2, "shape": ["grow", 200]}}, told),
    "one FP8 run that slows by 30 % in its second half is told": (
        1.2, {"runs": ["T/0"], "seconds": {"by": 0.3, "steps": [101, 200]}}, told),
}  # fmt: skip


def main() -> None:
    print(f"{STUDIES} studies of each kind")
    for what, (speed, wrong, holds) in KINDS.items():
        changes, count = [{"runs": ["T/*"], "speed": speed}, {"runs": ["T/*"]} | wrong], 0
        for number in range(STUDIES):
            with TemporaryDirectory() as folder:
                written = study(Path(folder) / f"{what} {number}", changes=changes, **WORDS)
                count += holds(compare(read_study(written)).findings[FP8])
        print(f"{count / STUDIES:7.1%}  {what}")


if __name__ == "__main__":
    main()
