"""The time that a study has left: recorded timings of studies, replayed without waiting."""

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.jobs.durations import (
    Duration,
    RunProgress,
    RunSize,
    Workload,
    describe_estimate,
    estimate_remaining,
    find_earlier_duration,
)
from experiments.records.run import RunRecord
from tests.make_runs import write_run
from tests.runs import change_record

EAGER = Workload("baseline")
COMPILED = Workload("baseline_compiled", is_compiled=True)
ROWWISE = Workload("rowwise_fp8_compiled", is_compiled=True, in_fp8=True, step_factor=3)
TENSORWISE = Workload("tensorwise_fp8_compiled", is_compiled=True, in_fp8=True, step_factor=3)
# Seconds besides the steps, and of a step
QUIET = {  # the kept study of two quiet CPU cores
    EAGER: Duration(4.8, 0.05),
    COMPILED: Duration(21.5, 0.05),
    ROWWISE: Duration(31.7, 0.3),
    TENSORWISE: Duration(27.9, 0.24),
}
BUSY = {  # recorded on two cores that other programs used too
    EAGER: Duration(8.6, 0.376),
    COMPILED: Duration(59.7, 0.211),
    ROWWISE: Duration(87.9, 0.705),
    TENSORWISE: Duration(52.6, 1.168),
}
MIXED = {  # compilation of 20 to 70 s
    EAGER: Duration(6, 0.3),
    COMPILED: Duration(20, 0.28),
    ROWWISE: Duration(70, 0.9),
    TENSORWISE: Duration(45, 0.7),
}


def replay(timings: dict[Workload, Duration], steps: int, earlier=None, n_seeds: int = 1):
    """Yield (number of the run under way, estimated, true seconds left) every five seconds."""
    runs = [*timings.items()] * n_seeds
    ends = []
    for _, duration in runs:
        ends.append((ends[-1] if ends else 0) + duration.overhead_s + steps * duration.step_s)
    for now in range(5, int(ends[-1]), 5):
        progresses = [
            watch_run(workload, duration, steps, now - end)
            for (workload, duration), end in zip(runs, ends, strict=True)
        ]
        number = sum(end <= now for end in ends) + 1
        yield number, estimate_remaining(progresses, earlier or {}, 1), ends[-1] - now


def watch_run(workload: Workload, duration: Duration, steps: int, since_end_s: float):
    """Say what is known of a run so many seconds after its end; before it they are negative."""
    elapsed_s = duration.overhead_s + steps * duration.step_s + since_end_s
    if since_end_s >= 0:
        return RunProgress(workload, 0, duration=duration, has_ended=True)
    if elapsed_s <= 0:
        return RunProgress(workload, steps)
    in_steps_s = elapsed_s - duration.overhead_s
    done = int(max(0.0, in_steps_s) / duration.step_s)
    if not done:
        return RunProgress(workload, steps, elapsed_s)
    measured = duration
    if done == 1:
        measured = Duration(duration.overhead_s + duration.step_s, None)
    since_record_s = in_steps_s - done * duration.step_s
    return RunProgress(workload, steps - done, elapsed_s, since_record_s, measured)


@pytest.mark.parametrize("timings", [QUIET, BUSY, MIXED])
@pytest.mark.parametrize("n_seeds", [1, 3])
def test_the_time_left_is_right_within_a_factor_from_the_second_run_on(timings, n_seeds):
    for number, estimate, left in replay(timings, 60, n_seeds=n_seeds):
        if number >= 2:
            assert left / 1.5 <= estimate <= left * 1.5, (number, estimate, left)


def test_earlier_runs_make_the_first_estimate_right():
    """The machine is busier than it was, all recipes alike."""
    earlier = {}
    for workload, duration in BUSY.items():
        earlier[workload.recipe] = Duration(duration.overhead_s / 1.2, duration.step_s / 1.2)
    estimates = [*replay(BUSY, 200, earlier)]
    assert {number for number, _, _ in estimates} == {1, 2, 3, 4}
    for number, estimate, left in estimates:
        assert left / 1.25 <= estimate <= left * 1.25, (number, estimate, left)


def test_several_gpus_share_the_runs():
    runs = [RunProgress(EAGER, 100)] * 3
    earlier = {EAGER.recipe: Duration(10, 1)}
    assert estimate_remaining(runs, earlier, 1) == 330
    assert estimate_remaining(runs, earlier, 2) == 220
    assert estimate_remaining(runs, earlier, 4) == 110


def test_without_a_step_the_time_is_unknown():
    assert estimate_remaining([RunProgress(COMPILED, 9)], {}, 1) is None
    assert "unknown" in describe_estimate([RunProgress(COMPILED, 9)], {}, 1)


def test_an_estimate_names_what_it_guesses():
    earlier = {EAGER.recipe: Duration(10, 1)}
    runs = [RunProgress(EAGER, 50), RunProgress(COMPILED, 50)]
    assert estimate_remaining(runs, earlier, 1) == pytest.approx(140, abs=20)
    sentence = describe_estimate(runs, earlier, 1)
    assert "3 minutes" in sentence and "baseline_compiled" in sentence
    assert "guess" not in describe_estimate(runs[:1], earlier, 1)


def test_earlier_runs_count_if_they_are_alike(tmp_path: Path):
    """Not those of another size, of another machine, without an end, or with kept kernels."""
    old, new = tmp_path / "old", tmp_path / "new"
    write_run(old / "baseline/seed0", seconds=[1.0] + [0.4] * 29, warm_up=7)
    write_run(old / "baseline/seed1", seconds=[1.0] + [0.6] * 29, warm_up=9)
    record = RunRecord.read(old / "baseline/seed0/run.json")
    size = RunSize(record.last_attempt.hardware.name, record.parameters, record.seq_len, 1, 4096)
    assert find_earlier_duration([new, old], "baseline", size) == Duration(
        pytest.approx(7.5), pytest.approx(0.5)
    )
    assert find_earlier_duration([new, old], "baseline_compiled", size) is None
    for change in (
        {"parameters": 1},
        {"seq_len": 8},
        {"step_tokens": 8},
        {"device_name": "abacus"},
    ):
        assert find_earlier_duration([old], "baseline", replace(size, **change)) is None
    (old / "baseline/seed1/run.json").write_text("{")
    assert find_earlier_duration([old], "baseline", size).step_s == pytest.approx(0.4)
    change_record(old / "baseline/seed0", status="interrupted")
    assert find_earlier_duration([old], "baseline", size) is None
