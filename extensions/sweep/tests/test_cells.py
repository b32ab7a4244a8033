"""A sweep's cells, their order, what a command line does to the axes, and cells that do not fit."""

from collections import Counter
from types import SimpleNamespace

import pytest

from analysis import sweep
from experiments import study
from experiments.config import studies
from experiments.config.studies import can_run
from experiments.jobs import process
from experiments.jobs.command import COME_BACK
from experiments.jobs.runner import Run
from experiments.records.files import read
from experiments.records.run import Fit
from experiments.training import machine
from tests.make_runs import write_run
from tests.runs import run_study

BLOG = ["llama3.2-1B", "llama3.2-3B", "llama3.1-8B", "qwen3-4B", "qwen3-14B"]


def test_a_cell_is_a_study_with_overrides():
    cells = studies.load(["sweep_b200_blog"]).cells()
    assert len(cells) == 5 * 3 * 3 and [cell.values["model.flavor"] for cell in cells[::9]] == BLOG
    cell = next(cell for cell in cells if cell.name == "qwen3-14B_seq8192_processes4")
    assert cell.study.axes == {} and cell.study.overrides[-3:] == [
        "model.flavor=qwen3-14B",
        "training.seq_len=8192",
        "sharded.processes=4",
    ]


def test_every_beginning_of_the_order_covers_the_axes_evenly():
    order = can_run(studies.load(["sweep_b200_blog"]).cells())
    for axis, size in ("model.flavor", 5), ("training.seq_len", 3), ("processes", 3):
        for end in range(size, 46):
            seen = Counter(cell.values[axis] for cell in order[:end])
            assert len(seen) == size and max(seen.values()) - min(seen.values()) <= 2, (axis, end)


def test_what_the_command_line_sets_is_no_axis_any_more():
    plan = studies.load(["sweep_cpu"])
    plan.override(["training={seq_len: 64}", "sharded.processes=2"])
    assert [cell.name for cell in plan.cells()] == ["cpu", "qwen3-cpu"]


SWEEP = """description: x
recipes: [baseline, tensorwise_fp8_compiled]
overrides: [compile.enable=false]
baseline: baseline
seeds: [0]
overlays: [cpu]
axes:
  model:
    flavor: [cpu, qwen3-cpu]
  training:
    seq_len: [64, 256]
  processes: [1, 4]
"""


@pytest.fixture
def node(monkeypatch, tmp_path):
    """(folder of a sweep, turns) on two GPUs of 128 MB each; `turns` are the runs of each turn, of
    which the first is stopped after two."""
    turns = []

    def run_all(runs: list[Run], *args) -> list[int]:
        done = runs if turns else runs[:2]
        turns.append([str(run.directory.parent.relative_to(tmp_path)) for run in done])
        for run in done:
            write_run(run.directory, run.arguments[0])
        return [0] * len(done) + [COME_BACK] * (len(runs) - len(done))

    monkeypatch.setattr(study, "run_all", run_all)
    monkeypatch.setattr(sweep, "write_page", lambda *page: None)  # seconds of drawing
    monkeypatch.setattr(process, "gpus", lambda: ["0", "1"])
    gpu = {"memory_bytes": lambda: 128e6, "check_fp8_units": lambda: None}
    monkeypatch.setattr(machine, "device", SimpleNamespace(TYPE="cuda", **gpu))
    (tmp_path / "study.yaml").write_text(SWEEP)
    return tmp_path, turns


def test_a_sweep_goes_on_where_it_was_stopped(node):
    """Cells that do not fit stay in the table."""
    folder, turns = node
    code, printed = run_study(folder)
    assert code == 75 and "to go on with them: python -m experiments.study" in printed
    assert printed.count("takes 4 GPUs, and 2 are here") == 8
    assert printed.count("needs about 0.1 GiB of 0 GiB") == 2
    code, printed = run_study(folder)
    assert code == 0 and printed.count("complete already") == 2
    pair = "baseline", "tensorwise_fp8_compiled"
    first, *others = ["cpu_seq64_processes1", "cpu_seq256_processes1", "qwen3-cpu_seq64_processes1"]
    assert turns[0] == [f"{first}/{name}" for name in pair]
    assert turns[1] == [f"{cell}/{name}" for cell in others for name in pair]
    fit = read(folder / "qwen3-cpu_seq256_processes1/cell.json", Fit)
    assert fit.needed > fit.available == 128e6 and fit.values["training.seq_len"] == 256


def test_a_dry_run_lists_the_cells_for_other_gpus(capsys):
    keys = ["model.flavor=qwen3-14B", "training.seq_len=8192"]
    assert study.main(["sweep_b200_blog", *keys, "--dry-run", "--gpu", "h200"]) == 0
    printed = capsys.readouterr().out
    assert "3 cells, 2 of which H200 can run" in printed
    assert "processes1: cannot run: needs about 14" in printed
    assert "processes4: would run: about 8" in printed
    keys = ["model.flavor=llama3.2-1B", *keys[1:], "--dry-run", "--gpu", "a100"]
    assert study.main(["sweep_b200_blog", *keys]) == 0
    assert "processes1: cannot run: A100 has no FP8 units" in capsys.readouterr().out
