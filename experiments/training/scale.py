"""Which overlays suit this machine, and which runs it can hold."""

from experiments.config import recipes
from experiments.jobs import placement
from experiments.records.run import Fit
from experiments.training.plan import Plan, plan
from models import device
from models.flops import memory_finding
from models.gpus import GPUS

MOST = 0.95  # of the memory: the estimate is what PyTorch allocates, and CUDA and gaps come on top


def choose_scale(processes: int = 1) -> tuple[list[str], str]:
    """Choose overlays for runs of so many processes on this machine, and say why in a sentence."""
    device.check_driver()
    if device.TYPE == "cpu":
        small = "a small Llama of the same architecture, because there is no GPU here"
        return ["cpu"], f"the CPU scale, {small}"
    have = f"{device.name()} has {device.memory_bytes() / 2**30:.0f} GiB"
    for overlay in ("no_recompute", "full_recompute"):
        needed = plan(recipes.load("baseline", [overlay]), processes).memory_needed
        gib = f"{needed / 2**30:.0f} GiB"
        if needed <= MOST * device.memory_bytes():
            size = f"the published size (overlay {overlay})"
            return [overlay], f"{size}, because it needs about {gib} and {have}"
    return ["cpu"], f"the CPU scale, because the published size needs {gib} even so and {have}"


def fit(values: dict[str, str | int], plans: list[Plan], gpu: str | None = None) -> Fit:
    """Compare the neediest run of a sweep's cell with this machine, or with GPUs of a kind."""
    processes = plans[0].world_size
    needed = max(planned.memory_needed for planned in plans)
    here, available, obstacle = placement.gpus(), device.memory_bytes(), None
    if gpu:
        available = GPUS[gpu].memory
    elif device.TYPE == "cpu":  # its processes share it
        available /= processes
    if needed > available:
        obstacle = f"needs {memory_finding(needed, available)}"
    elif gpu and not GPUS[gpu].datasheet.fp8 and any(planned.fp8_layers for planned in plans):
        obstacle = f"{GPUS[gpu].driver_name} has no FP8 units"
    elif not gpu and here != [None] and processes > len(here):
        obstacle = f"takes {processes} GPUs, and {len(here)} are here"
    return Fit(values=values, needed=needed, available=available, obstacle=obstacle)
