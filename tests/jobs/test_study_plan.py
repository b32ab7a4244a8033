"""What a study would run, and where, without training."""

import errno
import re
from unittest.mock import Mock

import pytest
import torch

from analysis import report
from experiments import study
from experiments.config import studies
from experiments.jobs import command
from experiments.records.files import check_folder, lock_file, lock_folder
from experiments.training import machine, plan
from models import device
from models.errors import InputError
from tests.make_runs import write_run

PLAN = (
    "description: baseline\nrecipes: [baseline]\nbaseline: baseline\nseeds: [0]\noverlays: [cpu]\n"
)


def test_a_study_of_named_recipes():
    assert studies.load(["tensorwise_fp8_compiled", "baseline"]).baseline == "baseline"
    assert studies.load(["rowwise_fp8_compiled"]).baseline == "rowwise_fp8_compiled"


@pytest.mark.parametrize("command", ["{}", "baseline --overlay cpu --out {}"])
def test_a_study_goes_on_with_more_seeds(command, tmp_path, capsys):
    (tmp_path / "study.yaml").write_text(PLAN)
    write_run(tmp_path / "baseline" / "seed0")
    arguments = command.format(tmp_path).split()
    assert study.main([*arguments, "--seeds", "3", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "complete already" in printed and printed.count("would run baseline seed") == 2


# ---- folders ----


def test_a_folder_is_locked_by_one_at_a_time(tmp_path):
    for name in ("study.yaml", "another", ".hidden"):
        (tmp_path / name).touch()
    for _ in range(2):
        check_folder(tmp_path, "study", "study.yaml")
        with lock_folder(tmp_path, "study"), pytest.raises(InputError, match="is alive"):
            lock_folder(tmp_path, "study")


def test_a_file_system_without_locks_costs_a_warning(tmp_path, monkeypatch, caplog):
    no_locks = OSError(errno.ENOLCK, "No locks available")
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=no_locks))
    lock_file(tmp_path / ".lock", wait=False).close()
    assert "No locks available" in caplog.text


def test_what_is_refused_leaves_no_folder(fails, tmp_path):
    bad = f"data.cache={'x' * 300}"  # more characters than a file's name may have
    fails(study.main, "baseline", "--overlay", "cpu", "--out", tmp_path / "out", bad)
    assert not (tmp_path / "out").exists()


def test_a_report_that_fails_costs_no_run(tmp_path, monkeypatch, capsys):
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(report, "write_page", full)
    (tmp_path / "study.yaml").write_text(PLAN)
    run = write_run(tmp_path / "baseline/seed0")
    assert study.main([str(tmp_path)]) == 1
    assert f"-m analysis.report {tmp_path}" in capsys.readouterr().out
    assert (run / "manifest.json").exists()


# ---- plans ----


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", [0, 1, 2]), ("0,1,2", [0, 1, 2]), ("3,", [3]), ("4,3", [4, 3])]
)
def test_seeds_are_a_number_of_them_or_a_list(text, seeds):
    assert command.seeds(text) == seeds


def test_a_dry_run_lists_each_run_once_and_a_folder_may_have_an_equals_sign(tmp_path, capsys):
    folder = tmp_path / "lr=1e-3"
    folder.mkdir()
    (folder / "study.yaml").write_text(PLAN.replace("[0]", "[1, 0, 1]"))
    assert study.main([str(folder), "--dry-run"]) == 0
    runs = re.findall(r"would run .*: 60 steps, .*, into (.*)\n", capsys.readouterr().out)
    assert runs == [f"{folder}/baseline/seed{seed}" for seed in "10"]


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of 144 GiB without FP8 units."""
    monkeypatch.setattr(device, "TYPE", "cuda")
    monkeypatch.setattr(device, "name", lambda: "NVIDIA A100")
    monkeypatch.setattr(device, "memory_bytes", lambda: 144 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))


@pytest.mark.parametrize(
    ("gib", "overlay"), [(79, "no_recompute"), (65, "full_recompute"), (11, "llama_1b_1024")]
)
def test_size_follows_the_machines_free_memory(gib, overlay, gpu, monkeypatch):
    monkeypatch.setattr(device, "free_bytes", lambda: gib * 2**30)
    overlays, why = machine.choose_size()
    assert overlays == [overlay] and f"has {gib} GiB" in why


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_gpu_without_fp8_is_refused_before_data_are_prepared(more, fails, gpu, monkeypatch):
    monkeypatch.setattr(plan, "open_data", Mock(side_effect=AssertionError))
    errors = fails(study.main, "tensorwise_fp8_compiled", "--overlay", "no_recompute", *more)
    assert "has no FP8 units" in errors
