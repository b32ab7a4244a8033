"""Count how often the analysis is wrong, on hundreds of studies with a known truth.

    python -m tools.benchmarks.coverage [STUDIES]

Coverage must be about 95 %, a false "faster" at most 2.5 %, a false "the same" at most 5 %. Where
recipes ran on nodes or GPUs of their own, no interval is due, and a plain answer would be wrong.
The other shares are the power: how often a fault of that size is told.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from analysis.comparison import ComparisonResult, Outcome, compare
from analysis.losses import MARGIN_SHARE, SAME
from analysis.study import read_study
from experiments.jobs.command import EXIT_COMPLETED, CommandLine, exit_with
from tests.analysis.planted import FP8, study

STUDIES = 200  # of each design
SEEDS = 3
SEEDS_OF_NODES = 4  # a node has four GPUs
NODE_SPREAD = 0.02  # standard deviation of the speeds of nodes
GPU_SPREAD = 0.005  # of the GPUs of a node
WORDS = {"recipes": "CT", "steps": 200, "sd": 0.02, "rho": 0.0, "pair": 0.0015}
PLAIN = {Outcome.YES, Outcome.FOR_SPEED, Outcome.NO_GAIN, Outcome.SLOWER}


# ---- where runs take place ----


def one_gpu(rng: np.random.Generator) -> list[dict]:
    """All runs on one GPU."""
    return []


def node_a_recipe(rng: np.random.Generator) -> list[dict]:
    """Each recipe on a node of its own, each seed on another GPU of it."""
    changes = []
    for recipe in "CT":
        changes += node(
            rng, f"boot-{recipe}", [f"{recipe}/{seed}" for seed in range(SEEDS_OF_NODES)]
        )
    return changes


def node_a_seed(rng: np.random.Generator) -> list[dict]:
    """Each seed on a node of its own, its two recipes on two GPUs of it."""
    changes = []
    for seed in range(SEEDS_OF_NODES):
        changes += node(rng, f"boot-{seed}", [f"C/{seed}", f"T/{seed}"])
    return changes


def node_a_run(rng: np.random.Generator) -> list[dict]:
    """Each run on a node of its own."""
    changes = []
    for recipe in "CT":
        for seed in range(SEEDS_OF_NODES):
            changes += node(rng, f"boot-{recipe}{seed}", [f"{recipe}/{seed}"])
    return changes


def node(rng: np.random.Generator, machine: str, runs: list[str]) -> list[dict]:
    """Put some runs on a node, each on a GPU of its own."""
    slow = rng.normal(0, NODE_SPREAD)
    changes = []
    for number, run in enumerate(runs):
        place = {"machines": [machine], "gpus": [f"{machine} GPU {number}"]}
        time = math.exp(slow + rng.normal(0, GPU_SPREAD)) - 1
        changes.append({"runs": [run], "seconds": {"by": time}} | place)
    return changes


def two_gpus_a_recipe(rng: np.random.Generator) -> list[dict]:
    """One node without a boot id, a container with a host name of its own for each run: bf16 on two
    GPUs, FP8 on two others."""
    slow = [math.exp(each) - 1 for each in rng.normal(0, GPU_SPREAD, 4)]
    changes = []
    for recipe, first in ("C", 0), ("T", 2):
        for seed in range(SEEDS_OF_NODES):
            gpu = first + seed % 2
            place = {"host": f"{rng.integers(16**12):012x}", "hardware": {"uuid": f"GPU-{gpu}"}}
            changes.append({"runs": [f"{recipe}/{seed}"], "seconds": {"by": slow[gpu]}} | place)
    return changes


# ---- what is counted ----


def covers(truth: float) -> Callable[[ComparisonResult], bool]:
    """Whether the interval covers the true ratio."""
    return lambda found: found.speed.ratio.low < truth < found.speed.ratio.high


def is_faster(found: ComparisonResult) -> bool:
    """Whether the interval lies above 1."""
    return found.speed.ratio.low > 1


def is_plain(found: ComparisonResult) -> bool:
    """Whether the speed gets a plain answer."""
    return found.outcome in PLAIN


def is_told(found: ComparisonResult) -> bool:
    """Whether something contradicts the ratio."""
    return bool(found.speed.caveats)


def is_same(found: ComparisonResult) -> bool:
    """Whether the loss is called the same."""
    return found.loss.word == SAME


@dataclass
class Design:
    """Studies of one kind.

    Args:
        name: what the share is of.
        holds: what is counted.
        speed: the true ratio.
        fault: what is wrong with FP8, as a change of planted.yaml.
        places: draws where the runs take place.
    """

    name: str
    holds: Callable[[ComparisonResult], bool]
    speed: float = 1.1
    fault: dict | None = None
    places: Callable[[np.random.Generator], list[dict]] = one_gpu

    @property
    def seeds(self) -> range:
        return range(SEEDS if self.places is one_gpu else SEEDS_OF_NODES)

    def share(self, studies: int) -> float:
        """Make studies. Returns the share in which `holds` is true."""
        count = 0
        for number in range(studies):
            rng = np.random.default_rng([*self.name.encode(), number])
            changes = [{"runs": ["T/*"], "speed": self.speed}, *self.places(rng)]
            if self.fault:
                changes.append({"runs": ["T/*"]} | self.fault)
            with TemporaryDirectory() as folder:
                path = Path(folder) / f"{self.name} {number}"
                study(path, seeds=self.seeds, changes=changes, **WORDS)
                count += self.holds(compare(read_study(path)).results[FP8])
        return count / studies


DESIGNS = [
    Design("the interval covers the true ratio", covers(1.1)),
    Design('"faster" is said of a recipe that is not', is_faster, speed=1.0),
    Design('"the same" is said at the margin', is_same, fault={"losses": {"by": MARGIN_SHARE}}),
    Design("a sound lead of 1.1 gets a caveat", is_told),
    Design("a node a seed: the interval covers the true ratio", covers(1.1), places=node_a_seed),
    Design("a node a seed: a sound lead of 1.1 gets a caveat", is_told, places=node_a_seed),
    Design("a node a run: the interval covers the true ratio", covers(1.1), places=node_a_run),
    Design(
        "a node a recipe: a plain answer is given (true ratio 1)",
        is_plain,
        1.0,
        places=node_a_recipe,
    ),
    Design(
        "a node a recipe: a plain answer is given (true ratio 1.1)", is_plain, places=node_a_recipe
    ),
    Design(
        "two GPUs a recipe: a plain answer is given (true ratio 1)",
        is_plain,
        1.0,
        places=two_gpus_a_recipe,
    ),
    Design(
        "FP8 that slows by 10 % over the run is told",
        is_told,
        speed=1.26,
        fault={"seconds": {"by": 0.1, "shape": ["grow", 200]}},
    ),
    Design(
        "FP8 that slows by 20 % over the run is told",
        is_told,
        speed=1.32,
        fault={"seconds": {"by": 0.2, "shape": ["grow", 200]}},
    ),
    Design(
        "one FP8 run that slows by 30 % in its second half is told",
        is_told,
        speed=1.2,
        fault={"runs": ["T/0"], "seconds": {"by": 0.3, "steps": [101, 200]}},
    ),
]


def main(argv: list[str] | None = None) -> int:
    parser = CommandLine("tools.benchmarks.coverage", __doc__)
    parser.add_argument("studies", nargs="?", type=int, default=STUDIES, metavar="STUDIES")
    studies = parser.parse_arguments(argv).studies
    print(f"{studies} studies of each design")
    for design in DESIGNS:
        print(f"{design.share(studies):7.1%}  {design.name}", flush=True)
    return EXIT_COMPLETED


if __name__ == "__main__":
    exit_with(main)
