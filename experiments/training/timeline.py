"""Where the warm-up goes: every second from process start to the end of the first step belongs to
one phase."""

from torch._dynamo.utils import calculate_time_spent

from models import device


def compiled_s() -> float:
    """Seconds that torch.compile took of this process so far, backward graphs included."""
    return calculate_time_spent().get("total_wall_time", 0.0)


class Timeline:
    """Seconds by phase, in the order in which phases were first marked."""

    def __init__(self):
        self.phases: dict[str, float] = {}
        self._last = 0.0

    def mark(self, phase: str) -> None:
        """The time since the last mark belongs to `phase`."""
        now = device.seconds_since_process_start()
        self.phases[phase] = self.phases.get(phase, 0.0) + now - self._last
        self._last = now

    def end_first_step(self) -> None:
        """The device is done with a run's first step. What torch.compile took of it is a phase of
        its own.

        `compiled_s` counts from the start of the process, which may have trained before.
        """
        self.mark("first_step")
        before, self.phases["compile"] = self.phases.get("compile", 0.0), compiled_s()
        self.phases["first_step"] -= self.phases["compile"] - before

    def marked(self, build, before: str, after: str | None = None):
        """`build`, with the time until its call marked as `before`, and its own as `after`."""

        def marked(*args, **kwargs):
            self.mark(before)
            built = build(*args, **kwargs)
            if after:
                self.mark(after)
            return built

        return marked


TIMELINE = Timeline()
