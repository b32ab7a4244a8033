"""Where the warm-up goes: every second from process start to the end of the first step belongs to
one phase."""

from torch._dynamo.utils import calculate_time_spent, counters

from experiments.records.run import Timing
from models import device


def compiled_s() -> float:
    """Return the seconds that torch.compile took of this process, backward graphs included."""
    return calculate_time_spent().get("total_wall_time", 0.0)


def compile_cache() -> str:
    """`cold` if inductor compiled any graph, `warm` if all came from its cache, `none` without
    any.

    Some graphs cannot be cached (bypass): a block's with recomputation, whose random numbers are an
    operator that inductor has no key for.
    """
    found, graphs = counters["inductor"], counters["aot_autograd"]["autograd_cache_hit"]
    if found["fxgraph_cache_miss"] + found["fxgraph_cache_bypass"]:
        return "cold"
    return "warm" if graphs + found["fxgraph_cache_hit"] else "none"


class Timeline:
    """Seconds by phase, in the order in which phases were first marked."""

    def __init__(self):
        self.phases: dict[str, float] = {}
        self._last = 0.0

    def mark(self, phase: str) -> None:
        """Count the time since the last mark for `phase`."""
        now = device.seconds_since_process_start()
        self.phases[phase] = self.phases.get(phase, 0.0) + now - self._last
        self._last = now

    def marked(self, build, before: str = "", after: str = ""):
        """Wrap `build`: count the time until its call for `before`, its own for `after`."""

        def marked(*args, **kwargs):
            if before:
                self.mark(before)
            built = build(*args, **kwargs)
            if after:
                self.mark(after)
            return built

        return marked

    def end_first_step(self) -> Timing:
        """Count what torch.compile took of a run's first step as a phase of its own; return all.

        `compiled_s` counts from the start of the process, which may have trained before.
        """
        self.mark("first_step")
        before, self.phases["compile"] = self.phases.get("compile", 0.0), compiled_s()
        self.phases["first_step"] -= self.phases["compile"] - before
        return Timing(
            warm_up_s=sum(self.phases.values()),
            phases=dict(self.phases),
            compile_cache=compile_cache(),
        )


TIMELINE = Timeline()
