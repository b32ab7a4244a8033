"""Run directories, read: attempts, records that are damaged or missing, and what is no study."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from analysis.study import StudyError, read_study
from tests.analysis.planted import study
from tests.make_runs import write_run

BOMB = "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in pairwise("bcdefghijk"))


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines(keepends=True)


def test_a_resumed_run_counts_its_attempts_once(tmp_path):
    """The first process lost steps 21 to 25, which the second made again, after 4 s of start-up.
    The second stopped on purpose."""
    attempts = [[20, 25, "running"], [30, 30, "interrupted"]]
    resumed = {"earlier": attempts, "seconds": {"to": 0.5}, "warm_up": 4.5}
    words = {"seeds": [0], "steps": 40, "start_spread": 0.0, "changes": [resumed]}
    [run] = read_study(study(tmp_path, "C", **words)).runs
    assert run.completed and run.earlier == ["running or killed"]
    assert run.steps.index.tolist() == list(range(1, 41))
    assert run.steps["process"].tolist() == [0] * 20 + [1] * 10 + [2] * 10
    assert run.steps["elapsed"].iloc[-1] == pytest.approx(3 * 4 + 45 * 0.5)


def test_a_resumed_run_keeps_the_values_of_its_attempts(tmp_path):
    """Another machine shows; that the run was made longer is no difference."""
    study(tmp_path, "C", [0], steps=40, changes=[{"earlier": [[20, 20, "interrupted"]]}])
    file = tmp_path / "baseline_compiled/seed0/attempt1/manifest.json"
    manifest = json.loads(file.read_text()) | {"steps": 20, "python": "3.0"}
    file.write_text(json.dumps(manifest))
    [run] = read_study(tmp_path).runs
    assert run.facts["steps"] == 40 and run.facts["python"].startswith("3.0, then ")


def test_a_gpu_is_its_uuid(tmp_path):
    """Slurm calls every GPU of a node 0."""
    gpus = [{"visible_devices": "0"}, {"visible_devices": "0", "uuid": "GPU-1"}]
    for number, gpu in enumerate(gpus):
        write_run(tmp_path / f"seed{number}", seed=number, hardware=gpu)
    places = [run.place for run in read_study(tmp_path).runs]
    assert places == ["GPU 0 of nid001", "GPU-1"]


def test_runs_that_do_not_count_are_there_with_their_ending(tmp_path):
    changes = [
        {"runs": ["B/1"], "status": "failed", "error": "full:\nno room on 7"},
        {"runs": ["B/2"], "made": 35},
        {"runs": ["B/4"], "absent": True},
    ]
    study(tmp_path, "B", range(5), steps=40, changes=changes)
    (tmp_path / "baseline/seed3/metrics.jsonl").write_text("{}\n")
    found = read_study(tmp_path, tmp_path)  # a folder that is given twice is one study
    assert [run.ending for run in found.runs] == [
        "completed", "failed: no room on #", "too short a log", "unreadable records",
        "left no record",
    ]  # fmt: skip
    assert [run.seed for run in found.completed["baseline"]] == ["0"]
    assert len(found.problems) == 1 and "metrics.jsonl" in found.problems[0]


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("metrics.jsonl", lambda file: file.write_text("".join(lines(file)[5:]))),
        ("metrics.jsonl", lambda file: file.write_text("".join(lines(file)[:5] + lines(file)[6:]))),
        ("attempt1/metrics.jsonl", Path.unlink),
        ("attempt1/timing.json", Path.unlink),
        ("timing.json", Path.unlink),
        ("recipe.yaml", lambda file: file.write_text("a: &a [1, 2]\nb: &b [*a, *a]\n" + BOMB)),
        ("recipe.yaml", lambda file: file.write_text("[" * 10_000)),
        ("recipe.yaml", lambda file: file.write_text("1: [2001-01-01]")),
        ("recipe.yaml", lambda file: file.write_bytes(b"\xff\xfe")),
    ],
)
def test_a_run_with_lost_or_impossible_records_is_left_out_by_name(tmp_path, name, act):
    """Of a run whose first attempt made 20 steps, and the second the others."""
    attempts = {"runs": ["C/0"], "earlier": [[20, 20, "interrupted"]]}
    study(tmp_path, "C", [0, 1], steps=40, changes=[attempts])
    assert len(read_study(tmp_path).completed["baseline_compiled"]) == 2
    act(tmp_path / "baseline_compiled/seed0" / name)
    found = read_study(tmp_path)
    assert [run.seed for run in found.completed["baseline_compiled"]] == ["1"]
    [problem] = found.problems
    assert problem.startswith(str(tmp_path / "baseline_compiled/seed0"))


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
    damaged, foreign = tmp_path / "damaged", tmp_path / "foreign"
    write_run(damaged / "run")
    (damaged / "study.yaml").write_text("reference: [1]\n")
    write_run(foreign, layout_version=99)
    for path in tmp_path / "nowhere", tmp_path / "baseline.jsonl", damaged, foreign:
        with pytest.raises(StudyError):
            read_study(path)
