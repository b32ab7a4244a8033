"""Log windows: lines of a metrics.jsonl as columns, the steps in them, and what is wrong with
them."""

import math
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Annotated, NotRequired

import numpy as np
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

NOT_STEADY_STEPS = (
    10  # a process's first steps: compilation, the profile, allocator and clocks settle
)
DRIFT = 0.15  # of the step time, between the first and the last third of the steady steps
MIN_DRIFT_STEPS = 30  # steady steps without which nothing is said of a drift
MOST_STEPS = 10**7  # no log has more; each step of one takes memory

HUGE = 1e30  # what is not below it counts as not finite, so that no figure overflows

Value = float | None  # null is what was not finite
Finite = Annotated[float, Field(gt=-HUGE, lt=HUGE)]
Positive = Annotated[float, Field(gt=1 / HUGE, lt=HUGE)]
Step = Annotated[int, Field(gt=0, le=MOST_STEPS)]


class _Line(TypedDict):
    """What is read of a line of metrics.jsonl, see experiments.training.metrics."""

    step: Step
    elapsed_s: Finite
    losses: tuple[Value, ...]
    tokens_per_s: Positive
    step_s: tuple[Value, ...]
    not_steady: tuple[int, ...]
    loss: NotRequired[Value]
    grad_norm: NotRequired[Value]
    lr: NotRequired[Value]
    valid_tokens_per_s: NotRequired[Value]
    data_wait_s: NotRequired[tuple[Value, ...]]
    peak_memory_bytes: NotRequired[Value]
    mfu_bf16_peak: NotRequired[Value]
    mfu_fp8_peak: NotRequired[Value]
    mfu_mixed_peak: NotRequired[Value]


TUPLES = ("losses", "step_s", "data_wait_s", "not_steady")
COLUMNS = (*_Line.__annotations__, "mfu_logged")

# One entry a window, in the order of steps: float arrays, `step` an int array, `TUPLES` object
# arrays of tuples, which unlike lists cost no garbage collection. NaN is unknown or not finite or,
# of step times, not above 0.
Windows = dict[str, np.ndarray]


def _fits_together(line: _Line) -> _Line:
    """Raise ValueError where a line's values belong to other steps than it says."""
    steps, last = len(line["step_s"]), line["step"]
    if (
        not 0 < steps <= last
        or len(line["losses"]) > steps
        or len(line.get("data_wait_s", ())) > steps
    ):
        raise ValueError
    if any([not last - steps < step <= last for step in line["not_steady"]]):  # noqa: C419  # a list is faster
        raise ValueError
    return line


METRICS = TypeAdapter(list[Annotated[_Line, AfterValidator(_fits_together)]])


def read_lines(path: Path, kind: TypeAdapter, problems: list[str]) -> list[dict]:
    """The lines of a file of JSON lines that make a list of `kind`; others are left out, and
    `problems` says so."""
    try:
        texts = path.read_bytes().splitlines()
    except OSError as error:
        problems.append(f"{path}: cannot be read ({error.strerror})")
        return []
    with suppress(ValidationError):  # all lines at once, which is faster
        if (
            len(sound := kind.validate_json(b"[%b]" % b",".join(texts), strict=True))
            == len(texts)
            > 0
        ):
            return sound
    lines, bad = [], []
    for number, text in enumerate(texts, start=1):
        try:
            lines += kind.validate_json(b"[%b]" % text, strict=True)
        except ValidationError:
            bad.append(number)
    if not texts:
        problems.append(f"{path}: is empty")
    elif bad == [len(texts)]:
        problems.append(f"{path}: the last line (line {bad[0]}) is cut off and left out")
    elif bad:
        problems.append(
            f"{path}: lines that cannot be read are left out: {len(bad)} of {len(texts)}, the first is line {bad[0]}"
        )
    return lines


def from_lines(lines: Iterable[dict]) -> Windows:
    """Windows of lines of metrics.jsonl, which are in the order of their steps."""
    lines = list(lines)
    windows = {}
    for name in COLUMNS:
        values = [line.get(name) for line in lines]
        if name in TUPLES:
            windows[name] = _tuples(
                [some or () for some in values], 1 / HUGE if name == "step_s" else -HUGE
            )
        else:
            column = np.array(values, dtype=int if name == "step" else float)
            windows[name] = (
                column if name == "step" else np.where(np.abs(column) < HUGE, column, math.nan)
            )
    return windows


def _tuples(tuples: list[tuple], least: float) -> np.ndarray:
    """An object array of tuples, with NaN for each value that is not finite or not above
    `least`."""
    flat = np.array(list(chain.from_iterable(tuples)), dtype=float)
    if not ((least < flat) & (flat < HUGE)).all():
        tuples = [
            tuple(v if v is not None and least < v < HUGE else math.nan for v in some)
            for some in tuples
        ]
    return np.fromiter(tuples, dtype=object, count=len(tuples))


def of_log(step: np.ndarray, count: np.ndarray, seconds: np.ndarray, **columns) -> Windows:
    """Windows of one process's log that times no single steps.

    Args:
        step, count, seconds: of each window, its last step, its number of steps, and its duration:
        spread over them
            evenly, and summed up for `elapsed_s`.
        columns: further columns of `Windows`, NaN where unknown; `loss` is the last step's.
    """
    first = step - count + 1
    columns |= {
        "step": step,
        "elapsed_s": np.cumsum(seconds),
        "losses": [(loss,) for loss in columns["loss"]],
        "step_s": [(duration / n,) * n for duration, n in zip(seconds, count, strict=True)],
        "not_steady": [
            tuple(range(a, b + 1)) if a < first[0] + NOT_STEADY_STEPS else ()
            for a, b in zip(first, step, strict=True)
        ],
    }
    return from_lines(
        dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
    )


def take(windows: Windows, which) -> Windows:
    """Some of the windows: `which` indexes arrays."""
    return {name: values[which] for name, values in windows.items()}


def join(parts: list[Windows]) -> Windows:
    """Windows one after another."""
    return {name: np.concatenate([part[name] for part in parts]) for name in COLUMNS}


def _flat(tuples: Iterable[tuple]) -> tuple[np.ndarray, np.ndarray]:
    """(all values in order, the length of each tuple)."""
    lengths = np.fromiter(map(len, tuples), dtype=int)
    return np.fromiter(chain.from_iterable(tuples), dtype=float, count=lengths.sum()), lengths


def per_step(windows) -> dict[str, np.ndarray]:
    """One entry a step of `windows`: `Windows`, or a frame with such columns, of any runs.

    Returns:
        window: index of the step's window; step; loss, seconds, data_wait_s: NaN where unknown (a
        log that has only its windows' last loss gives the last step that one); steady: the step's
        duration is known, and it is neither one of its process's first 10 nor after one that saved
        a checkpoint.
    """
    lengths = np.fromiter(map(len, windows["step_s"]), dtype=int)
    ends, last = lengths.cumsum(), np.asarray(windows["step"], dtype=int)
    window = np.repeat(np.arange(len(lengths)), lengths)
    steps = {"window": window, "step": np.repeat(last + 1 - ends, lengths) + np.arange(len(window))}
    for name, column in (("loss", "losses"), ("seconds", "step_s"), ("data_wait_s", "data_wait_s")):
        values, counts = _flat(windows[column])
        steps[name] = np.full(len(window), math.nan)
        # Where a window has fewer values than steps, they are those of its last steps.
        steps[name][np.repeat(ends - counts.cumsum(), counts) + np.arange(len(values))] = values
    steps["steady"] = np.isfinite(steps["seconds"])
    not_steady, counts = _flat(windows["not_steady"])
    steps["steady"][np.repeat(ends - 1 - last, counts) + not_steady.astype(int)] = False
    return steps


def durations(windows: Windows) -> np.ndarray:
    """Seconds of each window, NaN where a step's are unknown."""
    return np.fromiter(map(sum, windows["step_s"]), dtype=float)


def losses_finite(windows: Windows) -> np.ndarray:
    """Whether all logged losses of each window are finite."""
    return np.isfinite(np.fromiter(map(sum, windows["losses"]), dtype=float))


def first_steps(windows: Windows) -> np.ndarray:
    """The first step of each window."""
    return windows["step"] - np.fromiter(map(len, windows["step_s"]), dtype=int) + 1


def flaws(windows: Windows) -> list[str]:
    """What a reader of the figures should know of the windows: missing steps, bad step times, a
    drift."""
    sentences = []
    first, before = first_steps(windows), np.append(0, windows["step"][:-1])
    if len(gaps := np.flatnonzero(first > before + 1)):
        names = [
            f"{a} to {b}" if a < b else f"{a}"
            for a, b in zip(before[gaps] + 1, first[gaps] - 1, strict=True)
        ]
        count = (first - before - 1)[gaps].sum()
        sentences.append(
            f"steps missing from its log: {count:,} ({', '.join(names[:3])}{', ...' * (len(gaps) > 3)})"
        )
    steps = per_step(windows)
    if len(bad := steps["step"][np.isnan(steps["seconds"])]):
        sentences.append(
            f"step times that are missing, not finite or not above 0 are left out: {len(bad):,} of "
            f"{len(steps['step']):,}, the first is that of step {bad[0]}"
        )
    steady = steps["seconds"][steps["steady"]]
    if len(steady) >= MIN_DRIFT_STEPS:
        third = len(steady) // 3
        low, early, high = np.quantile(steady[:third], [0.25, 0.5, 0.75])
        late_low, late, late_high = np.quantile(steady[-third:], [0.25, 0.5, 0.75])
        if abs(late / early - 1) >= DRIFT and (
            late_low > high or low > late_high
        ):  # by more than their noise
            sentences.append(
                f"its step time drifts: of the steady steps the median is {early:.3g} s in the first third and "
                f"{late:.3g} s in the last, so its rate is a mixture"
            )
    return sentences
