"""A sweep: its cells and studies, what it shows of planted runs, and going on with it."""

import math
import shutil

import pandas as pd
import pytest

from experiments import study as study_command
from experiments.jobs.command import EXIT_RESUME, EXIT_STOPPED
from extensions.sweep import __main__ as command
from extensions.sweep import report, tables
from extensions.sweep.cells import FILE, PROCESSES, Sweep, load_sweep
from models.architectures import FLAVORS
from models.errors import InputError
from models.flops import Sizes
from tests.analysis.planted import study as write_study
from tests.runs import change_record

# the axes of sweeps
pytest.importorskip("extensions.qwen3")
pytest.importorskip("extensions.sharded")

BF16 = "baseline_compiled"
FP8 = "tensorwise_fp8_compiled"
SWEEP = Sweep(
    description="x",
    recipes=[BF16, FP8],
    reference=BF16,
    seeds=[0, 1, 2],
    overlays=["cpu"],
    axes={"model.flavor": ["cpu", "qwen3-cpu"], PROCESSES: [1, 2]},
)
ONE, TWO, ABSENT, _ = map(SWEEP.folder, SWEEP.cells())


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Two complete cells, and two that have not run. Two processes are 1.6 times as fast as one,
    and FP8 is 1.25 times as fast as bf16."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / FILE).write_text(SWEEP.to_yaml())
    for world_size, cell, step_s in (1, ONE, 0.5), (2, TWO, 0.5 / 1.6):
        changes = [{"world_size": world_size, "step_s": step_s}, {"runs": ["T/*"], "speed": 1.25}]
        exact = {"start_spread": 0.0, "sd": 0.0}
        write_study(folder / cell, "CT", steps=120, changes=changes, file=False, **exact)
    return folder


# ---- cells ----


def test_a_sweep_that_is_stopped_early_has_covered_each_axis():
    sweep = load_sweep("b200_blog")
    begun = [study.overrides for study in sweep.studies().values()][:10]
    for key, values in sweep.axes.items():
        assert all(f"{key}={value}" in str(begun) for value in values)


def test_a_key_of_the_command_line_is_not_an_axis_any_more():
    sweep = load_sweep("cpu")
    sweep.override(["model={flavor: cpu}", "training.seq_len=64"])
    assert sweep.cells() == [{PROCESSES: 1}, {PROCESSES: 2}]


# ---- run ----


@pytest.fixture
def started(monkeypatch):
    """The folders of studies that a sweep started; none of them trains."""
    folders = []
    monkeypatch.setattr(command.StopRequest, "listen", lambda self: None)
    monkeypatch.setattr(command.study_command, "main", lambda line: folders.extend(line) or 0)
    return folders


def test_a_sweep_resumes_in_its_folder_and_takes_more_seeds(tmp_path, started):
    """The cells have no runs, so that there is a report without an answer."""
    out = tmp_path / "sweep"
    keys = ["model.flavor=cpu", "training.seq_len=64", "--out", str(out)]
    cells = [str(out / f"processes-{count}") for count in (1, 2)]
    for seeds, words in ([0], ["cpu", *keys]), ([0, 1], [str(out), "--seeds", "2"]):
        started.clear()
        assert command.main(words) == 0
        written = study_command.read_study_plan(out / "processes-2" / "study.yaml")
        assert sorted(started) == cells
        assert written.seeds == seeds and written.overrides[-1] == "sharded.processes=2"
    with pytest.raises(InputError):  # another sweep
        command.main(["cpu", *keys, "training.steps=99"])


@pytest.mark.parametrize("code", [EXIT_RESUME, EXIT_STOPPED])
def test_a_study_that_is_asked_to_stop_ends_the_sweep(tmp_path, started, monkeypatch, code):
    codes = iter([1, code])  # one that fails does not
    monkeypatch.setattr(command.study_command, "main", lambda line: next(codes))
    assert command.main(["cpu", "--out", str(tmp_path / "sweep")]) == code


def test_a_dry_run_says_what_does_not_fit(started, capsys):
    keys = ["model.flavor=llama3.1-8B", "training.seq_len=8192"]
    assert command.main(["b200_blog", *keys, "--dry-run", "--gpu", "rtx-4090"]) == 0
    assert "processes-1: does not fit" in capsys.readouterr().out and not started


@pytest.mark.parametrize("words", [["no_such"], ["cpu", "b200_blog"], ["cpu", "--gpu", "no_such"]])
def test_bad_input_is_a_sentence(started, words):
    with pytest.raises(InputError):
        command.main(words)


# ---- report ----


# what is changed in the records of runs of the second cell, and its answer then
CHANGES = {
    "no reference": (f"{FP8}/*", {"status": "failed"}),
    report.NOT_COMPARED: (f"{BF16}/seed0", {"steps": 39}),
    "diverged": (f"{FP8}/*", {"status": "diverged"}),
}


@pytest.mark.parametrize("answer", CHANGES)
def test_a_cell_has_its_studys_answer_or_a_word_in_its_place(planted, tmp_path, answer):
    folder = shutil.copytree(planted, tmp_path / "sweep")
    runs, values = CHANGES[answer]
    for path in folder.glob(f"{TWO}/{runs}/run.json"):
        change_record(path.parent, **values)
    cells = report.read_cells(folder)
    assert cells.loc[[ONE, TWO], "answer"].tolist() == ["yes", answer]
    assert cells.loc[TWO, "notes"]


def test_table_page_and_json_of_a_sweep(planted, capsys):
    assert report.main([str(planted)]) == 0
    printed = capsys.readouterr().out
    page = (planted / "report.html").read_text()
    for words in ("1.25", "0.80", f"{ABSENT}: ", report.QUESTION):
        assert words in printed and words in page
    assert page.count("<svg") == 1
    cells = pd.read_json(planted / "report.json", orient="index")
    assert cells["answer"].tolist() == ["yes", "yes"] + 2 * [report.NOT_COMPARED]
    assert cells["mean"].tolist()[:2] == pytest.approx([1.25, 1.25])
    assert cells.loc[TWO, "FP8 recipe"] == FP8 and math.isnan(cells.loc[ABSENT, "mean"])


def test_the_benchmarks_models_are_flavors():
    for name, sizes in tables.B200["models"].items():
        assert Sizes(**sizes).parameters() == FLAVORS[name].parameters()
