"""The data of runs as frames, and the examples of docs/your_own_analysis.md."""

import re
import sys
from unittest.mock import MagicMock

import matplotlib.pyplot as plt
import pandas as pd
import pytest

import analysis
from analysis.study import StudyError
from tests.analysis.planted import FP8, study
from tests.processes import ROOT

PAGE = ROOT / "docs/your_own_analysis.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


def test_steps_and_runs_are_frames_with_a_row_each(tmp_path):
    study(tmp_path, "CT", range(2), steps=40)
    data = analysis.load(str(tmp_path))
    assert len(data.runs) == 4 and data.runs["completed"].all()
    assert data.steps.groupby(["recipe", "seed"])["step"].agg(list).map(len).tolist() == [40] * 4
    assert not data.steps[data.steps["recipe"] == "baseline_compiled"]["in_fp8"].any()
    assert data.steps[data.steps["recipe"] == FP8]["in_fp8"].all()
    assert data.compare().results.keys() == {FP8}


def test_several_folders_are_one_study_and_none_is_an_error(tmp_path):
    study(tmp_path / "a", "C", [0], steps=30)
    study(tmp_path / "b", "T", [0], steps=30)
    assert {*analysis.load(tmp_path / "a", tmp_path / "b").runs["recipe"]} == {
        "baseline_compiled",
        FP8,
    }
    with pytest.raises(StudyError):
        analysis.load(tmp_path / "nowhere")


@pytest.mark.parametrize("example", range(len(EXAMPLES)))
def test_an_example_runs(example, tmp_path, monkeypatch, capsys):
    """W&B is a stand-in."""
    wandb = MagicMock()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").symlink_to(ROOT / "results")
    exec(EXAMPLES[example], {})
    plt.close("all")
    files = {path.name for path in tmp_path.iterdir()} - {"results"}
    sent = wandb.init.return_value.__enter__.return_value.log.call_count
    assert capsys.readouterr().out or files or sent == 4 * 1000
    for file in files:
        assert (tmp_path / file).stat().st_size > 500
    if "steps.csv" in files:
        assert len(pd.read_csv(tmp_path / "steps.csv")) == 4 * 1000


def test_the_report_writes_csv(tmp_path):
    from analysis.report import main

    study(tmp_path / "study", "CT", [0], steps=30)
    assert main([str(tmp_path / "study"), "--csv", str(tmp_path / "csv")]) == 0
    rows = {path.stem: len(pd.read_csv(path)) for path in (tmp_path / "csv").iterdir()}
    assert rows == {"steps": 60, "runs": 2, "recipes": 2}
