"""Which overlays suit this machine, and which runs it can hold."""

from collections.abc import Iterable
from typing import NamedTuple

from experiments.config import recipes
from experiments.jobs import placement
from experiments.training import preflight
from models import device
from models.gpus import GPUS


def choose_scale(processes: int = 1) -> tuple[list[str], str]:
    """Overlays for runs of so many processes on this machine, and one sentence of why."""
    if device.TYPE == "cpu":
        return [
            "cpu"
        ], "the CPU scale, a small Llama of the same architecture, because there is no GPU here"
    have = f"{device.name()} has {device.memory_bytes() / 2**30:.0f} GiB"
    for overlay in ("h200", "h100"):  # as it is; with its activations recomputed
        need = preflight.memory_needed(recipes.load("baseline", [overlay]).config, processes)
        if need <= device.memory_bytes():
            gib = f"about {need / 2**30:.0f} GiB"
            return [
                overlay
            ], f"the published size (overlay {overlay}), because it needs {gib} and {have}"
    return [
        "cpu"
    ], f"the CPU scale, because the published size needs {need / 2**30:.0f} GiB even so and {have}"


class Fit(NamedTuple):
    """Bytes that a run needs of each device by estimate, bytes that there are, and why it cannot
    run, if so."""

    needed: float
    available: float
    obstacle: str | None


def fit(configs: Iterable, processes: int, gpu: str | None = None) -> Fit:
    """Of the neediest of some runs of so many processes: on GPUs of the kind `gpu`, or else on this
    machine."""
    configs = list(configs)
    needed = max(preflight.memory_needed(config, processes) for config in configs)
    sharing = processes if device.TYPE == "cpu" else 1
    available = GPUS[gpu].memory if gpu else device.memory_bytes() / sharing
    here, obstacle = placement.gpus(), None
    if needed > available:
        obstacle = f"needs {preflight.memory_finding(needed, available)}"
    elif (
        gpu
        and not GPUS[gpu].datasheet.fp8
        and any(config.quantize.linear.float8.recipe_name for config in configs)
    ):
        obstacle = f"{GPUS[gpu].driver_name} has no FP8 units"
    elif not gpu and here != [None] and processes > len(here):
        obstacle = f"takes {processes} GPUs, and {len(here)} are here"
    return Fit(needed, available, obstacle)
