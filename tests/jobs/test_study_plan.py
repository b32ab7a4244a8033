"""What a study would run, and where, without training."""

import errno
import os

import pytest

from experiments import study
from experiments.config import studies
from experiments.jobs.files import lock
from experiments.training import preflight, scale
from models import device
from models.errors import InputError
from tests.make_runs import write_run


def test_a_study_of_named_recipes():
    plan = studies.load(["tensorwise_fp8_compiled", "baseline"])
    assert plan.recipes == ["tensorwise_fp8_compiled", "baseline"] and plan.baseline == "baseline"
    assert studies.load(["rowwise_fp8_compiled"]).baseline == "rowwise_fp8_compiled"


def test_a_studys_name_stands_alone():
    with pytest.raises(InputError, match="four_way is a study, so it stands alone"):
        studies.load(["four_way", "baseline"])


def test_dry_run_checks_the_folder(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert study.main(["baseline", "--overlay", "cpu", "--dry-run", "--out", str(tmp_path / "file/x")]) == 2
    assert "cannot be written, because of" in capsys.readouterr().err


def test_folder_of_another_study(tmp_path, capsys):
    keys = ["--overlay", "cpu", "--out", str(tmp_path)]
    (tmp_path / "study.yaml").write_text(
        "description: x\nrecipes: [baseline]\nbaseline: baseline\nseeds: [0]\noverlays: [cpu]\n"
    )
    assert study.main(["baseline", "--seeds", "1", *keys]) == 2
    assert "holds another study" in capsys.readouterr().err


def test_folders_that_are_refused_or_in_use(tmp_path, capsys):
    run, used, keys = tmp_path / "run", tmp_path / "used", ["baseline", "--overlay", "cpu", "--out"]
    run.mkdir()
    (run / "manifest.json").write_text("{}")
    assert study.main([*keys, str(run)]) == 2
    assert "holds a run, and a study needs a folder of its own" in capsys.readouterr().err
    locked = lock(used, "study")
    assert study.main([*keys, str(used)]) == 2
    assert "is being written by another study that is alive" in capsys.readouterr().err
    os.close(locked)
    assert {path.name for path in used.iterdir()} == {".lock"}


def test_a_studys_folder_may_have_an_equals_sign(tmp_path, capsys):
    plan = tmp_path / "lr=1e-3/study.yaml"
    plan.parent.mkdir()
    plan.write_text("description: x\nrecipes: [baseline]\nbaseline: baseline\nseeds: [0]\noverlays: [cpu]\n")
    assert study.main([str(plan.parent), "--dry-run"]) == 0
    assert f"into {plan.parent / 'baseline/seed0'}" in capsys.readouterr().out


@pytest.mark.parametrize("seeds", ["-1", "0,-2", "one", ","])
def test_seeds_that_are_none(seeds, capsys):
    assert study.main(["baseline", f"--seeds={seeds}"]) == 2
    assert "expected numbers of 0 and more" in capsys.readouterr().err


def test_unknown_study_names_those_there_are():
    with pytest.raises(InputError, match="unknown study or recipe `four_ways`; did you mean `four_way`"):
        studies.load(["four_ways"])


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("runs", "holds no study.yaml, so it is no study to go on with"),
        ("mine.yaml", "put the file into recipes/"),
        ("nowhere", "does not exist: give a study's directory"),
    ],
)
def test_paths_that_are_no_study(path, said, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "mine.yaml").touch()
    with pytest.raises(InputError, match=said):
        studies.load([str(tmp_path / path)])


def test_dry_run_of_a_complete_study_would_run_nothing(tmp_path, capsys):
    (tmp_path / "baseline/seed0").mkdir(parents=True)
    (tmp_path / "baseline/seed0/manifest.json").write_text('{"status": "completed"}')
    assert study.main(["baseline", "--overlay", "cpu", "--dry-run", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"complete already: {tmp_path / 'baseline/seed0'}" in said and "would run" not in said


def test_page_that_cannot_be_written_costs_no_table(tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(study, "write_page", full)
    write_run(tmp_path / "baseline/seed0")
    assert study.main(["baseline", "--overlay", "cpu", "--out", str(tmp_path)]) == 0
    assert f"Everything is in {tmp_path}, but for report.html (No space left on device)" in capsys.readouterr().out


def test_a_studys_mistakes_come_with_their_lines(tmp_path):
    (tmp_path / "study.yaml").write_text("description: x\nrecipes: baseline\nbaseline: baseline\nseedz: [0]\n")
    with pytest.raises(InputError) as caught:
        studies.load([str(tmp_path)])
    assert "study.yaml:2: recipes: " in str(caught.value) and "study.yaml:4: seedz: " in str(caught.value)
    assert "seeds: Field required" in str(caught.value)


def test_scale_follows_the_machine(monkeypatch):
    monkeypatch.setattr(device, "TYPE", "cuda")
    monkeypatch.setattr(device, "name", lambda: "NVIDIA H200")
    monkeypatch.setattr(preflight.device, "memory_bytes", lambda: 141 * 2**30)
    assert scale.choose_scale()[0] == ["h200"]
    monkeypatch.setattr(preflight.device, "memory_bytes", lambda: 80 * 2**30)
    assert scale.choose_scale()[0] == ["h100"]
    monkeypatch.setattr(preflight.device, "memory_bytes", lambda: 24 * 2**30)
    overlays, why = scale.choose_scale()
    assert overlays == ["cpu"] and "NVIDIA H200 has 24 GiB" in why
    monkeypatch.setattr(device, "TYPE", "cpu")
    assert scale.choose_scale()[0] == ["cpu"]


def test_a_budget_that_no_run_could_begin_in(capsys, tmp_path):
    arguments = ["baseline", "--overlay", "cpu", "--budget", "3", "--out", str(tmp_path / "out")]
    assert study.main([*arguments, "training.steps=5"]) == 2
    assert "--budget 3 is too little: ending a run and the table alone take" in capsys.readouterr().err
