"""A study in two files is the study in directories."""

import pandas as pd

from analysis.runs import PACKED_STEPS
from analysis.study import read_study
from experiments import study as study_command
from experiments.records.run import PACKED_RUNS
from tests.analysis.planted import study
from tests.make_runs import change_lines
from tools import pack_results


def test_a_packed_study_reads_as_its_directories(tmp_path):
    """A resumed run has all its attempts; what an extension adds to a log is there."""
    resumed = {"runs": ["C/0"], "earlier": [[20, 25, "running"]]}
    folder = study(tmp_path / "study", "CT", [0, 1], steps=40, changes=[resumed])
    change_lines(folder / "baseline_compiled/seed1/metrics.jsonl", phases={"in_fp8": 0.5})
    assert pack_results.main([str(folder), str(tmp_path / "packed")]) == 0
    names = {path.name for path in (tmp_path / "packed").iterdir()}
    assert names == {"study.yaml", PACKED_RUNS, PACKED_STEPS}
    runs = read_study(folder).runs
    assert "phases.in_fp8" in runs[1].steps
    for run, packed in zip(runs, read_study(tmp_path / "packed").runs, strict=True):
        assert packed.facts == run.facts and packed.record == run.record
        assert packed.spans == run.spans and packed.packages == run.packages
        pd.testing.assert_frame_equal(packed.steps[[*run.steps]], run.steps)


def test_a_study_in_two_files_is_refused_if_a_file_is_damaged(tmp_path):
    folder = study(tmp_path / "study", "CT", [0], steps=40)
    for name in (PACKED_RUNS, PACKED_STEPS):
        packed = tmp_path / name
        pack_results.main([str(folder), str(packed)])
        content = (packed / name).read_bytes()
        (packed / name).write_bytes(content[: len(content) // 2])
        [problem] = read_study(folder, packed).problems[:1]
        assert name in problem


def test_bad_input_is_a_sentence(tmp_path, fails):
    assert "study.yaml" in fails(pack_results.main, tmp_path, tmp_path / "new")
    folder = study(tmp_path / "study", "C", [0], steps=40)
    assert "new folder" in fails(pack_results.main, folder, tmp_path)


def test_a_study_in_two_files_is_not_trained_again_in_its_folder(tmp_path, fails):
    (tmp_path / "study.yaml").write_text(
        "description: x\nrecipes: [baseline]\nreference: baseline\nseeds: [0]\noverlays: [cpu]\n"
    )
    (tmp_path / PACKED_RUNS).touch()
    assert "another --out" in fails(study_command.main, tmp_path)
