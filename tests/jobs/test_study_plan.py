"""What a study would run, and where, without training."""

import errno
from unittest.mock import Mock

import pytest

from analysis import report
from experiments import study
from experiments.config import studies
from experiments.records.files import claim_folder, lock_file, new_folder
from experiments.training import plan as plans
from models import device
from models.errors import InputError
from tests.make_runs import write_run

PLAN = "description: x\nrecipes: [baseline]\nbaseline: baseline\nseeds: [0]\noverlays: [cpu]\n"


def test_a_study_of_named_recipes():
    plan = studies.load(["tensorwise_fp8_compiled", "baseline"])
    assert plan.recipes == ["tensorwise_fp8_compiled", "baseline"] and plan.baseline == "baseline"
    assert studies.load(["rowwise_fp8_compiled"]).baseline == "rowwise_fp8_compiled"


# ---- folders ----


@pytest.mark.parametrize("name", ["study.yaml", ".hidden", "log.txt"])
def test_a_folder_is_locked_by_one_at_a_time(name, tmp_path):
    (tmp_path / name).touch()
    with (
        claim_folder(tmp_path, "study", "study.yaml"),
        pytest.raises(InputError, match="another study that is alive"),
    ):
        claim_folder(tmp_path, "study", "study.yaml")
    claim_folder(tmp_path, "study", "study.yaml").close()


def test_a_file_system_without_locks_costs_a_warning(tmp_path, monkeypatch, caplog):
    no_locks = OSError(errno.ENOLCK, "No locks available")
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=no_locks))
    lock_file(tmp_path / ".lock", wait=False).close()
    assert "No locks available" in caplog.text


def test_a_folder_that_another_starts_in_the_same_second_too(tmp_path):
    made = [new_folder(tmp_path / "runs/four_way").name for _ in range(3)]
    assert made == ["four_way", "four_way-2", "four_way-3"]


def test_what_is_refused_leaves_no_folder(fails, tmp_path):
    fails(study.main, "baseline", "--overlay", "cpu", "--out", tmp_path / "out", "--budget", 3)
    assert not (tmp_path / "out").exists()


def test_a_report_that_fails_costs_no_run(tmp_path, monkeypatch, capsys):
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(report, "write_page", full)
    monkeypatch.setattr(study, "_incomplete", lambda *cell: [])
    (tmp_path / "study.yaml").write_text(PLAN)
    run = write_run(tmp_path / "baseline/seed0")
    assert study.main([str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "No space left on device" in said and f"python -m analysis.report {tmp_path}" in said
    assert (run / "manifest.json").exists()


def test_an_override_may_be_longer_than_a_files_name(fails):
    fails(study.main, "baseline", "--overlay", "cpu", f"data.cache={'x' * 300}")


# ---- plans ----


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", [0, 1, 2]), ("0, 1,2", [0, 1, 2]), ("3,", [3]), ("4,3", [4, 3])]
)
def test_seeds_are_a_number_of_them_or_a_list(text, seeds):
    assert study.seeds(text) == seeds


def test_each_run_of_a_study_is_there_once(tmp_path):
    (tmp_path / "study.yaml").write_text(
        PLAN.replace("[0]", "[1, 0, 1]").replace("[baseline]", "[baseline, baseline]")
    )
    assert list(studies.read(tmp_path / "study.yaml").runs()) == [("baseline", 1), ("baseline", 0)]


def test_a_dry_run_says_what_would_run_and_a_folder_may_have_an_equals_sign(tmp_path, capsys):
    plan = tmp_path / "lr=1e-3/study.yaml"
    plan.parent.mkdir()
    plan.write_text(PLAN)
    assert study.main([str(plan.parent), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Seeds: 0.\n")
    assert f"into {plan.parent / 'baseline/seed0'}" in printed
    assert "60 steps, " in printed and " M parameters, " in printed


def test_scale_follows_the_machine(monkeypatch):
    monkeypatch.setattr(device, "TYPE", "cuda")
    monkeypatch.setattr(device, "name", lambda: "NVIDIA H200")
    for gib, overlay in (
        (141, "no_recompute"),
        (80, "no_recompute"),
        (65, "full_recompute"),
        (24, "cpu"),
    ):
        monkeypatch.setattr(device, "memory_bytes", lambda gib=gib: gib * 2**30)
        overlays, why = plans.choose_scale()
        assert overlays == [overlay] and f"NVIDIA H200 has {gib} GiB" in why
    monkeypatch.setattr(device, "TYPE", "cpu")
    assert plans.choose_scale()[0] == ["cpu"]
