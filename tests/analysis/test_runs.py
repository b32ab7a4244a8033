"""Run directories, read: attempts, records that are damaged or missing, and what is no study."""

import pytest

from analysis.runs import read_run
from analysis.study import StudyError, read_study
from tests.analysis.planted import study
from tests.make_runs import change_json, metrics_lines, write_run


def test_a_resumed_run_counts_its_attempts_once(tmp_path):
    """The first process lost steps 21 to 25, which the second made again, after 4 s of start-up."""
    resumed = {"earlier": [[20, 25, "running"]], "seconds": {"to": 0.5}, "warm_up": 4.5}
    words = {"recipes": "C", "seeds": 1, "steps": 40, "changes": [resumed]}
    [run] = read_study(study(tmp_path, **words)).runs
    assert run.completed and run.earlier == ["running or killed"]
    assert run.steps.index.tolist() == list(range(1, 41))
    assert run.steps["process"].tolist() == [0] * 20 + [1] * 20
    assert run.steps["elapsed"].iloc[-1] == pytest.approx(4 + 25 * 0.5 + 4 + 20 * 0.5)


def test_a_run_resumed_twice_counts_all_its_processes(tmp_path):
    """Each process takes 4 s of start-up, then half a second a step."""
    stopped = [[10, 10, "interrupted"], [20, 20, "interrupted"]]
    resumed = {"earlier": stopped, "seconds": {"to": 0.5}, "warm_up": 4.5}
    [run] = read_study(study(tmp_path, recipes="C", seeds=1, steps=40, changes=[resumed])).runs
    assert run.steps["elapsed"].iloc[-1] == pytest.approx(3 * 4 + 40 * 0.5)


def test_a_gpu_is_its_uuid(tmp_path):
    """Slurm calls every GPU of a node 0."""
    gpus = [{"visible_devices": "0"}, {"visible_devices": "0", "uuid": "GPU-1"}]
    runs = [read_run(write_run(tmp_path / str(n), hardware=gpu)) for n, gpu in enumerate(gpus)]
    assert [run.place for run in runs] == ["host here, GPU 0", "host here, GPU GPU-1"]


def test_runs_that_do_not_count_are_there_with_their_ending(tmp_path):
    write_run(tmp_path / "baseline/seed0")
    write_run(tmp_path / "baseline/seed1", seed=1, status="failed", error="full:\nno room on 7")
    write_run(tmp_path / "baseline/seed2", seed=2, steps=40, lines=metrics_lines())
    damaged = write_run(tmp_path / "baseline/seed3", seed=3)
    (damaged / "metrics.jsonl").write_text("{}\n")
    (tmp_path / "study.yaml").write_text("recipes: [baseline]\nseeds: [0, 1, 2, 3, 4]\n")
    study = read_study(tmp_path)
    assert [run.ending for run in study.runs] == [
        "completed", "failed: no room on #", "too short a log", "unreadable records",
        "left no record",
    ]  # fmt: skip
    assert [run.seed for run in study.completed["baseline"]] == ["0"]
    assert len(study.problems) == 1 and "metrics.jsonl" in study.problems[0]


@pytest.mark.parametrize(
    "other",
    [
        {"seq_len": 51},
        {"data": "c4"},
        {"recipe": "baseline"},  # the same run twice
    ],
)
def test_what_is_not_one_training_is_refused(tmp_path, other):
    """GPUs, steps, learning rates and tokens a step that differ, planted.yaml has."""
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", **{"recipe": "baseline_compiled"} | other)
    with pytest.raises(StudyError):
        read_study(tmp_path)


def test_what_cannot_be_read_is_an_error(tmp_path):
    (tmp_path / "baseline.jsonl").touch()
    run = write_run(tmp_path / "study" / "run")
    (run.parent / "study.yaml").write_text("baseline: [1]\n")
    foreign = write_run(tmp_path / "foreign")
    change_json(foreign / "manifest.json", layout_version=99)
    for path in tmp_path / "nowhere", tmp_path / "baseline.jsonl", run.parent, foreign:
        with pytest.raises(StudyError):
            read_study(path)
