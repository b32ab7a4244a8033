"""Which overlays suit this machine."""

from experiments.config import recipes
from experiments.training import preflight
from models import device


def choose_scale(processes: int = 1) -> tuple[list[str], str]:
    """Overlays for runs of so many processes on this machine, and one sentence of why."""
    if device.TYPE == "cpu":
        return ["cpu"], "the CPU scale, a small Llama of the same architecture, because there is no GPU here"
    have = f"{device.name()} has {device.memory_bytes() / 2**30:.0f} GiB"
    for overlay in ("h200", "h100"):  # as it is; with its activations recomputed
        need = preflight.memory_needed(recipes.load("baseline", [overlay]).config, processes)
        if need <= device.memory_bytes():
            gib = f"about {need / 2**30:.0f} GiB"
            return [overlay], f"the published size (overlay {overlay}), because it needs {gib} and {have}"
    return ["cpu"], f"the CPU scale, because the published size needs {need / 2**30:.0f} GiB even so and {have}"
