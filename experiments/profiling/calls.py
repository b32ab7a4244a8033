"""What the small benchmarks share: their command line, and how they time calls."""

import argparse
import statistics
from collections.abc import Callable

from experiments.config import recipes
from experiments.training.scale import choose_scale
from models import device

SPAN = 0.05  # seconds for which a round repeats a call


def parse(program: str, argv: list[str] | None, rounds: int):
    """The recipe `baseline` at the scale of this machine, changed as the command line says, and a number of rounds.

    Raises `InputError` for what a recipe cannot be.
    """
    parser = argparse.ArgumentParser(prog=f"python -m experiments.{program}")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value")
    parser.add_argument("--overlay", action="append", metavar="O")
    parser.add_argument("--rounds", type=int, default=rounds, metavar="N", help="(default: %(default)s)")
    args = parser.parse_intermixed_args(argv)
    return recipes.load("baseline", args.overlay or choose_scale()[0], args.overrides).config, args.rounds


def median_seconds(calls: dict[str, Callable], rounds: int) -> dict[str, float]:
    """Seconds of each call, the median over rounds.

    In a round each call is repeated for about `SPAN`; the device is waited for before and after only, so that the
    device and not its host sets the pace.
    """
    times, seconds = {}, {name: [] for name in calls}
    for name, call in calls.items():
        call()  # loads or compiles a kernel
        times[name] = 1 + int(SPAN / (device.seconds(call, 5) / 5))
    for _ in range(rounds):
        for name, call in calls.items():
            seconds[name].append(device.seconds(call, times[name]) / times[name])
    return {name: statistics.median(values) for name, values in seconds.items()}
