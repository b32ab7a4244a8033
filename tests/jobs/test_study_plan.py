"""What a study would run, and where, without training."""

import errno
import re
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from analysis import report
from experiments import run, study
from experiments.config import recipes
from experiments.records.files import lock_file, lock_folder
from experiments.records.run import RECIPE
from experiments.training import plan
from models import device
from models.errors import InputError
from tests.make_runs import write_run

PLAN = (
    "description: baseline\nrecipes: [baseline]\nreference: baseline\nseeds: [0]\noverlays: [cpu]\n"
)


def write_study(folder: Path, *keys: str) -> None:
    """Write a completed study of a run, whose recipe had some keys."""
    run = folder / "baseline/seed0"
    write_run(run)
    made = recipes.load("baseline", ["cpu"], keys).with_seed(0)
    (run / RECIPE).write_text(recipes.to_yaml(made))
    (folder / "study.yaml").write_text(PLAN)


def test_a_study_of_named_recipes():
    assert study.load_study_plan(["tensorwise_fp8_compiled", "baseline"]).reference == "baseline"
    pair = ["tensorwise_fp8_compiled", "baseline_compiled"]
    assert {study.load_study_plan(names).reference for names in (pair, pair[::-1])} == {
        "baseline_compiled"
    }
    assert study.load_study_plan(["rowwise_fp8_compiled"]).reference == "rowwise_fp8_compiled"


@pytest.mark.parametrize("command", ["{}", "baseline --overlay cpu --out {}"])
def test_a_study_goes_on_with_more_seeds_each_once(command, tmp_path, capsys):
    """A folder's name may have an equals sign."""
    folder = tmp_path / "lr=1e-3"
    write_study(folder)
    words = [*command.format(folder).split(), "--seeds", "0,1,2,1", "--dry-run"]
    assert study.main(words) == 0
    printed = capsys.readouterr().out
    assert f"complete already: {folder}/baseline/seed0" in printed
    runs = re.findall(r"would run .*: 60 steps, .*, into (.*)\n", printed)
    assert runs == [f"{folder}/baseline/seed{seed}" for seed in (1, 2)]


def test_a_dry_run_says_how_long_the_runs_take(tmp_path, capsys):
    """By an earlier run beside the study: 60 steps of 2 s after 61 s of start, for two seeds."""
    command = ["baseline", "--overlay", "cpu", "--seeds", "2", "--dry-run", "--out"]
    out = str(tmp_path / "new")
    assert study.main([*command, out]) == 0
    printed = capsys.readouterr().out
    assert "Runs to make: 2" in printed and "Time: unknown" in printed
    planned = plan.plan(recipes.load("baseline", ["cpu"]))
    write_run(
        tmp_path / "old/baseline/seed0",
        seconds=[1.0] + [2.0] * 59,
        losses=[10.0] * 60,
        warm_up=63.0,
        log={"tokens": planned.tokens},
        parameters=planned.args.parameters(),
        seq_len=planned.config.training.seq_len,
        hardware={"name": device.name()},
    )
    assert study.main([*command, out]) == 0
    assert "Time: about 7 minutes, by earlier runs" in capsys.readouterr().out


def test_a_study_chooses_its_size_once(tmp_path, capsys, monkeypatch):
    """A study file asks for it; the file of the started study has the chosen overlays."""
    (tmp_path / "study.yaml").write_text(PLAN.replace("overlays: [cpu]", "size: auto"))
    assert study.main([str(tmp_path), "--dry-run"]) == 0
    assert "would run baseline seed 0: 60 steps" in capsys.readouterr().out
    monkeypatch.setattr(study, "run_all", lambda runs, *_: setattr(runs[0], "exit_code", 0))
    monkeypatch.setattr(study, "_report_study", Mock(return_value=0))
    assert study.main([str(tmp_path)]) == 0
    written = study.read_study_plan(tmp_path / "study.yaml")
    assert written.overlays == ["cpu"] and written.size is None


@pytest.mark.parametrize(
    ("size", "key"),
    [("", "overlays"), ("size: auto\noverlays: [cpu]", "size"), ("size: big", "size")],
)
def test_a_study_file_has_a_size_or_overlays(size, key, tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(PLAN.replace("overlays: [cpu]", size))
    with pytest.raises(InputError, match=rf"study.yaml:\d: {key}: "):
        study.read_study_plan(path)


# ---- folders ----


def test_a_cleaned_study_begins_again(fails, tmp_path, capsys):
    """Some file systems delete what nobody has read for long, and keep its folders."""
    folder, mine = tmp_path / "cleaned", tmp_path / "mine"
    for path in (folder / "baseline/seed0/checkpoint/step-2", mine):
        path.mkdir(parents=True)
    (mine / "thesis.tex").touch()
    assert f"--out {folder}" in fails(study.main, folder)
    assert f"--out {folder}/baseline/seed0" in fails(run.main, folder / "baseline/seed0")
    assert "study.yaml" in fails(study.main, mine) and "recipe.yaml" in fails(run.main, mine)
    assert study.main(["baseline", "--overlay", "cpu", "--out", str(folder), "--dry-run"]) == 0


def test_a_completed_run_without_its_records_is_named(tmp_path, capsys):
    write_study(tmp_path)
    assert study.main([str(tmp_path), "--dry-run"]) == 0
    assert "metrics.jsonl" not in capsys.readouterr().out
    (tmp_path / "baseline/seed0/metrics.jsonl").unlink()
    assert study.main([str(tmp_path), "--dry-run"]) == 0
    assert "metrics.jsonl" in capsys.readouterr().out


def test_a_study_has_no_completed_run_of_another_recipe(fails, tmp_path):
    """As after a change of the recipe's file."""
    write_study(tmp_path, "optimizer.lr=1e-4")
    assert "another recipe" in fails(study.main, tmp_path, "--seeds", 2)


def test_a_folder_is_one_studys_at_a_time(fails, tmp_path):
    (tmp_path / "study.yaml").write_text(PLAN)
    with lock_folder(tmp_path, "study"):
        assert "is alive" in fails(study.main, tmp_path)


def test_a_file_system_without_locks_costs_a_warning(tmp_path, monkeypatch, caplog):
    no_locks = OSError(errno.ENOLCK, "No locks available")
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=no_locks))
    lock_file(tmp_path / ".lock", wait=False).close()
    assert "No locks available" in caplog.text


def test_a_report_that_fails_costs_no_run(tmp_path, monkeypatch, capsys):
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(report, "write_page", full)
    out = tmp_path / "a study"
    write_study(out)
    assert study.main([str(out)]) == 1
    again = f"-m analysis.report '{out}' --html '{out}/report.html'"
    assert again in capsys.readouterr().out


# ---- the machine ----


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of 144 GiB without FP8 units."""
    monkeypatch.setattr(device, "TYPE", "cuda")
    monkeypatch.setattr(device, "name", lambda: "NVIDIA A100")
    monkeypatch.setattr(device, "memory_bytes", lambda: 144 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_gpu_without_fp8_is_refused_before_anything_is_written(
    more, fails, gpu, monkeypatch, tmp_path
):
    monkeypatch.setattr(plan, "open_data", Mock(side_effect=AssertionError))
    command = ["tensorwise_fp8_compiled", "--overlay", "no_recompute", "--out", tmp_path / "out"]
    assert "has no FP8 units" in fails(study.main, *command, *more)
    assert not (tmp_path / "out").exists()
