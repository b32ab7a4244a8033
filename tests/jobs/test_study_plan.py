"""What a study would run, and where, without training."""

import errno
import os
from unittest.mock import Mock

import pytest

from experiments import study
from experiments.config import studies
from experiments.jobs.files import lock
from experiments.training import scale
from models import device
from models.errors import InputError
from tests.make_runs import write_run

BASELINE = [study.main, "baseline", "--overlay", "cpu"]
PLAN = "description: x\nrecipes: [baseline]\nbaseline: baseline\nseeds: [0]\noverlays: [cpu]\n"


def test_a_study_of_named_recipes():
    plan = studies.load(["tensorwise_fp8_compiled", "baseline"])
    assert plan.recipes == ["tensorwise_fp8_compiled", "baseline"] and plan.baseline == "baseline"
    assert studies.load(["rowwise_fp8_compiled"]).baseline == "rowwise_fp8_compiled"


def test_folders_that_are_refused(tmp_path, fails):
    (tmp_path / "file").touch()
    assert "cannot be written, because of" in fails(
        *BASELINE, "--dry-run", "--out", tmp_path / "file/x"
    )
    (tmp_path / "other").mkdir()
    (tmp_path / "other/study.yaml").write_text(PLAN)
    assert "holds another study" in fails(*BASELINE, "--seeds", "1", "--out", tmp_path / "other")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/manifest.json").write_text("{}")
    assert "holds a run, and a study needs a folder of its own" in fails(
        *BASELINE, "--out", tmp_path / "run"
    )
    locked = lock(tmp_path / "used", "study")
    assert "is being written by another study that is alive" in fails(
        *BASELINE, "--out", tmp_path / "used"
    )
    os.close(locked)
    assert [path.name for path in (tmp_path / "used").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--seeds=0,-1"], "expected numbers of 0 and more"),
        (["--seeds="], "expected numbers of 0 and more"),
        ([f"--seeds=0,{10**20}"], "seeds: expected at least 0 and less than 1e+18, got 1000"),
        (
            ["--budget", "3", "training.steps=5"],
            "--budget 3 is too little: ending a run and the table alone take",
        ),
    ],
)
def test_what_is_refused_leaves_no_folder(arguments, sentence, fails, tmp_path):
    assert sentence in fails(*BASELINE, "--out", tmp_path / "out", *arguments)
    assert not (tmp_path / "out").exists()


def test_each_run_of_a_study_is_there_once(tmp_path):
    (tmp_path / "study.yaml").write_text(
        PLAN.replace("[0]", "[1, 0, 1]").replace("[baseline]", "[baseline, baseline]")
    )
    assert list(studies.load([str(tmp_path)]).runs()) == [("baseline", 1), ("baseline", 0)]


def test_a_studys_folder_may_have_an_equals_sign(tmp_path, capsys):
    plan = tmp_path / "lr=1e-3/study.yaml"
    plan.parent.mkdir()
    plan.write_text(PLAN)
    assert study.main([str(plan.parent), "--dry-run"]) == 0
    assert f"into {plan.parent / 'baseline/seed0'}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["four_ways"], "unknown study or recipe `four_ways`; did you mean `four_way`"),
        (["four_way", "baseline"], "four_way is a study, so it stands alone"),
        (["./runs"], "holds no study.yaml, so it is no study to go on with"),
        (["./recipe.yaml"], "put the file into recipes/"),
        (["./nowhere"], "does not exist: give a study's directory"),
    ],
)
def test_names_that_are_no_study(names, sentence, tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    (tmp_path / "recipe.yaml").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=sentence):
        studies.load(names)


def test_dry_run_of_a_complete_study_would_run_nothing(tmp_path, capsys):
    (tmp_path / "baseline/seed0").mkdir(parents=True)
    (tmp_path / "baseline/seed0/manifest.json").write_text('{"status": "completed"}')
    assert study.main(["baseline", "--overlay", "cpu", "--dry-run", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert (
        f"complete already: {tmp_path / 'baseline/seed0'}" in printed and "would run" not in printed
    )


def test_page_that_cannot_be_written_costs_no_table(tmp_path, monkeypatch, capsys):
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(study, "write_page", full)
    write_run(tmp_path / "baseline/seed0")
    assert study.main(["baseline", "--overlay", "cpu", "--out", str(tmp_path)]) == 0
    *_, place, pointer = capsys.readouterr().out.splitlines()
    assert f"Everything is in {tmp_path}, but for report.html (No space left on device)" in place
    assert "python -m experiments.decide" in pointer


def test_a_studys_mistakes_come_with_their_lines(tmp_path):
    (tmp_path / "study.yaml").write_text(
        "description: x\nrecipes: baseline\nbaseline: baseline\nseedz: [0]\n"
    )
    with pytest.raises(InputError) as caught:
        studies.load([str(tmp_path)])
    assert "study.yaml:2: recipes: " in str(caught.value) and "study.yaml:4: seedz: " in str(
        caught.value
    )
    assert "seeds: is missing" in str(caught.value)


def test_scale_follows_the_machine(monkeypatch):
    monkeypatch.setattr(device, "TYPE", "cuda")
    monkeypatch.setattr(device, "name", lambda: "NVIDIA H200")
    for gib, overlay in (141, "h200"), (80, "h100"), (24, "cpu"):
        monkeypatch.setattr(device, "memory_bytes", lambda gib=gib: gib * 2**30)
        overlays, why = scale.choose_scale()
        assert overlays == [overlay] and f"NVIDIA H200 has {gib} GiB" in why
    monkeypatch.setattr(device, "TYPE", "cpu")
    assert scale.choose_scale()[0] == ["cpu"]
