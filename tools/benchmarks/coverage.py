"""Measure how often the analysis is wrong, and how often it misses a fault, on simulated studies.

    python -m tools.benchmarks.coverage

Coverage must be about 95 %, a false "faster" at most 2.5 %, a false "the same" at most 5 %. The
other shares are the power: how often a fault of that size gets a caveat.
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from analysis.comparison import Finding, compare
from analysis.losses import SAME, TOLERANCE
from analysis.study import read_study
from tests.analysis.planted import FP8
from tests.analysis.planted import study as write_study

N_STUDIES = 150  # of each case, of 3 runs of each recipe
USUAL = {"recipes": "CT", "steps": 200, "sd": 0.02, "rho": 0.0, "pair": 0.0015}


class Case(NamedTuple):
    """Studies with a true ratio of speeds, and what is counted of them."""

    speed_ratio: float
    holds: Callable[[Finding], bool]
    fault: dict = {}  # of FP8's runs, as planted.yaml has it


def has_caveat(result: Finding) -> bool:
    """True if something contradicts the ratio."""
    return bool(result.speed.caveats)


def covers_truth(result: Finding) -> bool:
    return result.speed.ratio.low < 1.1 < result.speed.ratio.high


def is_called_faster(result: Finding) -> bool:
    return result.speed.ratio.low > 1


def is_called_same(result: Finding) -> bool:
    return result.loss.word == SAME


def slowing(**effect) -> dict:
    """Describe a fault of step times."""
    return {"seconds": effect}


# Names are seeds too: another name draws other studies.
CASES = {
    "the interval covers the true ratio": Case(1.1, covers_truth),
    '"faster" is said of a recipe that is not': Case(1.0, is_called_faster),
    '"the same" is said at the margin': Case(1.1, is_called_same, {"losses": {"by": TOLERANCE}}),
    "a sound lead of 1.1 gets a caveat": Case(1.1, has_caveat),
    "FP8 that slows by 10 % over the run is told": Case(
        1.26, has_caveat, slowing(by=0.1, shape=["grow", 200])
    ),
    "FP8 that slows by 20 % over the run is told": Case(
        1.32, has_caveat, slowing(by=0.2, shape=["grow", 200])
    ),
    "one FP8 run that slows by 30 % in its second half is told": Case(
        1.2, has_caveat, {"runs": ["T/0"]} | slowing(by=0.3, steps=[101, 200])
    ),
}


def count_cases(name: str, case: Case) -> int:
    """Count the studies of which a case holds."""
    changes = [{"runs": ["T/*"], "speed": case.speed_ratio}, {"runs": ["T/*"]} | case.fault]
    count = 0
    for number in range(N_STUDIES):
        with TemporaryDirectory() as folder:
            study = write_study(Path(folder) / f"{name} {number}", changes=changes, **USUAL)
            count += case.holds(compare(read_study(study)).findings[FP8])
    return count


def main() -> None:
    print(f"{N_STUDIES} studies of each case")
    for name, case in CASES.items():
        print(f"{count_cases(name, case) / N_STUDIES:7.1%}  {name}")


if __name__ == "__main__":
    main()
