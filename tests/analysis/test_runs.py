"""Run directories, read: attempts, records that are damaged or missing, and what is no study."""

import json
import os
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from analysis.answer import list_left_out
from analysis.comparison import compare
from analysis.study import StudyError, read_study
from tests.analysis.planted import FP8, study
from tests.make_runs import write_run

BOMB = "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in pairwise("bcdefghijk"))


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines(keepends=True)


def change_attempts(file: Path, change: Callable[[list], object]) -> None:
    record = json.loads(file.read_text())
    change(record["attempts"])
    file.write_text(json.dumps(record))


def test_a_resumed_run_counts_its_attempts_once(tmp_path):
    """The first process lost steps 21 to 25, which the second made again, after 4 s of start-up.
    The second stopped on purpose. Neither counts as a loss: the run has what it would have had."""
    attempts = [[20, 25, "running"], [30, 30, "interrupted"]]
    resumed = {"earlier": attempts, "seconds": {"to": 0.5}, "warm_up": 4.5}
    words = {"seeds": [0], "steps": 40, "start_spread": 0.0, "changes": [resumed]}
    [run] = read_study(study(tmp_path, "C", **words)).runs
    assert run.completed and run.lost_endings == []
    assert run.steps.index.tolist() == list(range(1, 41))
    assert run.steps["attempt"].tolist() == [1] * 20 + [2] * 10 + [3] * 10
    assert run.steps["wall_s"].iloc[-1] == pytest.approx(3 * 4 + 45 * 0.5)


@pytest.mark.parametrize(
    ("attempt", "earlier"),
    [
        ([20, 30, "failed"], ["failed: illegal memory access"]),
        ([20, 30, "diverged"], ["diverged"]),
        ([30, 30, "failed"], []),  # no step was made again
        ([20, 30, "interrupted"], []),
    ],
)
def test_a_failure_counts_whose_steps_were_made_again(tmp_path, attempt, earlier):
    change = {"earlier": [attempt], "error": "illegal memory access"}
    [run] = read_study(study(tmp_path, "C", [0], steps=40, changes=[change])).runs
    assert run.completed and run.lost_endings == earlier


def test_a_resumed_run_keeps_the_values_of_its_attempts(tmp_path):
    """Another machine shows."""
    study(tmp_path, "C", [0], steps=40, changes=[{"earlier": [[20, 20, "interrupted"]]}])
    file = tmp_path / "baseline_compiled/seed0/run.json"
    record = json.loads(file.read_text())
    record["attempts"][0]["python"] = "3.0"
    file.write_text(json.dumps(record))
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
        "completed", "failed: no room on 7", "too short a log", "unreadable records",
        "left no record",
    ]  # fmt: skip
    assert [run.seed for run in found.completed_by_recipe["baseline"]] == ["0"]
    assert len(found.problems) == 1 and "metrics.jsonl" in found.problems[0]


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("metrics.jsonl", lambda file: file.write_text("".join(lines(file)[5:]))),
        ("metrics.jsonl", lambda file: file.write_text("".join(lines(file)[:5] + lines(file)[6:]))),
        ("metrics.jsonl", lambda file: file.write_text("".join(reversed(lines(file))))),
        ("run.json", lambda file: change_attempts(file, lambda attempts: attempts.pop(0))),
        ("run.json", lambda file: change_attempts(file, lambda attempts: attempts.pop())),
        ("run.json", lambda file: change_attempts(file, lambda each: each[0].pop("timing"))),
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
    assert len(read_study(tmp_path).completed_by_recipe["baseline_compiled"]) == 2
    act(tmp_path / "baseline_compiled/seed0" / name)
    found = read_study(tmp_path)
    assert [run.seed for run in found.completed_by_recipe["baseline_compiled"]] == ["1"]
    [problem] = found.problems
    assert problem.startswith(str(tmp_path / "baseline_compiled/seed0"))


@pytest.mark.parametrize(
    "other",
    [
        {"seq_len": 51},
        {"data": "c4"},
    ],
)
def test_what_is_not_one_training_is_refused(tmp_path, other):
    """GPUs, steps, learning rates and tokens a step that differ, planted.yaml has."""
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", **{"recipe": "baseline_compiled"} | other)
    with pytest.raises(StudyError):
        read_study(tmp_path)


# ---- runs that are left out ----


@pytest.fixture
def usual(tmp_path):
    """A study of two recipes and three seeds."""
    return study(tmp_path / "study", "CT", steps=40)


def names(found) -> list[str]:
    return [f"{run.name} {run.ending}" for run in found.runs]


COMPLETED = [
    f"{recipe}/seed{seed} completed"
    for recipe in ("baseline_compiled", "tensorwise_fp8_compiled")
    for seed in range(3)
]


@pytest.mark.parametrize("copy", ["baseline_compiled/seed0.bak", "copy", "baseline/seed5"])
def test_a_copy_is_left_out_by_name(usual, copy):
    shutil.copytree(usual / "baseline_compiled/seed0", usual / copy)
    found = read_study(usual)
    assert names(found) == COMPLETED and all(run.path != usual / copy for run in found.runs)
    assert len(found.problems) == 1 and copy in found.problems[0]


def test_a_copy_that_was_made_while_the_run_ran_is_left_out(tmp_path):
    resumed = [{"runs": ["C/0"], "earlier": [[20, 20, "interrupted"]]}]
    folder = study(tmp_path, "CT", steps=40, changes=resumed) / "baseline_compiled"
    copy = shutil.copytree(folder / "seed0", folder / "before")
    change_attempts(copy / "run.json", lambda attempts: attempts.pop())
    (copy / "metrics.jsonl").write_text("".join(lines(copy / "metrics.jsonl")[:4]))
    assert names(read_study(tmp_path)) == COMPLETED


def test_a_second_run_of_a_seed_is_left_out(usual):
    """Whichever is the quicker: the run counts that is in its place."""
    write_run(usual / "again", "baseline_compiled", [0.4] * 40, [9.0] * 40, begin=-1e5)
    found = read_study(usual)
    assert len(found.problems) == 1 and "again" in found.problems[0]
    assert names(found) == COMPLETED and all(run.path.name != "again" for run in found.runs)


OTHER_GPU = {"hardware": {"name": "NVIDIA B200"}}
OTHER_RATE = {"log": {"lr": 1e-4}}


@pytest.mark.parametrize("other", [OTHER_GPU, OTHER_RATE])
def test_an_odd_run_is_left_out_by_name(usual, other):
    """A trial that is not of the study, whatever its seed. The study goes on."""
    for place, seed in ("trial", 0), ("baseline_compiled/seed7", 7):
        facts = {"seed": seed, "begin": -1e5} | other
        write_run(usual / place, "baseline_compiled", [0.4] * 40, [9.0] * 40, **facts)
    found = read_study(usual)
    assert names(found) == COMPLETED
    [problem] = found.problems
    assert "trial" in problem and "baseline_compiled/seed7" in problem


@pytest.mark.parametrize(("seeds", "left"), [(4, True), (3, False)])
def test_a_planned_run_of_another_training_is_left_out_where_three_are_left(tmp_path, seeds, left):
    odd = [{"runs": ["T/1"]} | OTHER_GPU]
    study(tmp_path, "CT", range(seeds), steps=40, changes=odd)
    if left:
        endings = [run.ending for run in read_study(tmp_path).runs]
        assert endings.count("of another training") == 1
    else:
        with pytest.raises(StudyError, match="seed1"):
            read_study(tmp_path)


# ---- links ----


def test_a_link_to_a_folder_is_followed_once(usual, tmp_path):
    """Also in a circle, and to what is there anyway."""
    kept = tmp_path / "kept"
    shutil.move(usual / "baseline_compiled", kept / "baseline_compiled")
    (usual / "baseline_compiled").symlink_to(kept / "baseline_compiled")
    (usual / "again").symlink_to(kept)
    (usual / "circle").symlink_to(usual)
    (usual / "above").symlink_to(tmp_path)
    (usual / "nowhere").symlink_to(tmp_path / "nothing")
    assert names(read_study(usual)) == COMPLETED


def test_a_link_does_not_lead_out_of_what_somebody_else_sent(usual, tmp_path, monkeypatch):
    """Its owner is neither this user nor whose folder it leads to."""
    shutil.move(usual / "baseline_compiled", tmp_path / "private")
    link = usual / "baseline_compiled"
    link.symlink_to(tmp_path / "private")
    lstat = Path.lstat
    sender = os.stat_result([0, 0, 0, 0, os.geteuid() + 1, *[0] * 5])
    monkeypatch.setattr(Path, "lstat", lambda path: sender if path == link else lstat(path))
    assert {run.recipe for run in read_study(usual).runs if run.length} == {FP8}


def test_a_study_within_a_study_changes_no_plan(usual, tmp_path):
    """Its runs are copies or second runs, left out by name."""
    study(usual / "old", "C", [0, 1], steps=40)
    found = read_study(usual)
    assert names(found) == COMPLETED and len(found.problems) == 2
    assert found.file.recipes == json.loads((usual / "study.yaml").read_text())["recipes"]


# ---- places ----


def test_a_machine_is_its_boot_id_or_a_host_name_that_several_runs_have(tmp_path):
    """A container invents a name for one run."""
    places = [
        {"host": "nid1"},
        {"host": "nid1"},
        {"host": "3f2a"},
        {"host": "9c1d", "machines": ["boot-1"], "gpus": ["GPU-1"]},
        {"host": "77aa", "machines": ["boot-1", "boot-2"], "gpus": ["GPU-2", "GPU-3"]},
    ]
    for seed, place in enumerate(places):
        write_run(tmp_path / f"seed{seed}", seed=seed, begin=1e4 * seed, **place)
    runs = read_study(tmp_path).runs
    assert [sorted(run.machines) for run in runs] == [
        ["nid1"], ["nid1"], [], ["boot-1"], ["boot-1", "boot-2"],
    ]  # fmt: skip
    assert [sorted(run.gpus) for run in runs] == [
        ["GPU 0 of nid1"], ["GPU 0 of nid1"], [], ["GPU-1"], ["GPU-2", "GPU-3"],
    ]  # fmt: skip


def test_packages_are_those_of_the_environment_file(usual):
    """Of what torch loads and of others. A file that only some runs have, all runs know."""
    packages = {"torch": "2.13.0+cu130", "nvidia-cublas": "13.1", "jupyter": "1.0"}
    file = json.dumps({"packages": packages, "diff": None})
    (usual / "environment-0.json").write_text(file)
    [run, *_] = read_study(usual).runs
    assert run.facts["packages.nvidia-cublas"] == "13.1"
    assert run.facts["other_packages.jupyter"] == "1.0"


# ---- what cannot be read ----


def test_a_folder_that_is_missing_is_not_there(tmp_path):
    with pytest.raises(StudyError, match="is not there"):
        read_study(tmp_path / "nowhere")


def test_what_cannot_be_read_is_an_error(tmp_path):
    (tmp_path / "baseline.jsonl").touch()
    damaged, foreign = tmp_path / "damaged", tmp_path / "foreign"
    write_run(damaged / "run")
    (damaged / "study.yaml").write_text("reference: [1]\n")
    write_run(foreign, layout_version=99)
    for path in tmp_path / "nowhere", tmp_path / "baseline.jsonl", damaged, foreign:
        with pytest.raises(StudyError):
            read_study(path)


def test_runs_of_one_cause_are_one_line_with_its_numbers(tmp_path):
    for seed in range(2):
        error = f"RuntimeError: it needs {seed + 7}5 MB"
        write_run(tmp_path / f"a/seed{seed}", seed=seed, status="failed", error=error)
    [line] = list_left_out(compare(read_study(tmp_path)))
    assert "75 MB" in line and "baseline/seed0, baseline/seed1" in line
