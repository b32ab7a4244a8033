"""A sweep's cells: their order, what a command line does to the axes, which fit, and going on."""

import subprocess
import sys
from collections import Counter

import pytest

from experiments.jobs.command import COME_BACK
from extensions.sweep import __main__ as command
from extensions.sweep import tables
from extensions.sweep.cells import FILE, in_order, load
from models import llama
from tests.make_runs import write_run

AXES = {"training.seq_len": [64, 128], "training.local_batch_size": [1, 2]}
SWEEP = """description: x
recipes: [baseline, tensorwise_fp8_compiled]
seeds: [0]
overlays: [cpu]
overrides: [training.steps=3]
axes:
  training:
    seq_len: [64, 128]
    local_batch_size: [1, 2]
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / FILE).write_text(SWEEP)
    return tmp_path


def test_a_cell_is_a_value_of_each_axis(folder):
    cells = load(str(folder)).cells()
    assert len(cells) == 4 and cells[1].name == "seq_len-64_local_batch_size-2"
    assert cells[1].overrides == ["training.seq_len=64", "training.local_batch_size=2"]


def test_every_beginning_of_the_order_covers_the_axes_evenly():
    sweep = load("b200_blog")
    order = in_order(sweep.cells())
    assert len(order) == 5 * 3 * 3
    for axis, values in sweep.axes.items():
        size = len(values)
        for end in range(size, 46):
            seen = Counter(cell.values[axis] for cell in order[:end])
            assert len(seen) == size and max(seen.values()) - min(seen.values()) <= 2, (axis, end)


def test_what_the_command_line_sets_is_no_axis_any_more(folder):
    sweep = load(str(folder))
    sweep.override(["training={seq_len: 32}"])
    assert [cell.values for cell in sweep.cells()] == [
        {"training.local_batch_size": size} for size in (1, 2)
    ]


def test_a_sweep_goes_on_where_it_was_stopped(folder, monkeypatch, capsys):
    """Each cell is a study in its own folder; a cell that does not fit is told by name."""
    started = []

    def run(arguments, stop) -> int:
        started.append(arguments)
        return COME_BACK if len(started) == 2 else 0

    monkeypatch.setattr(command, "_run", run)
    monkeypatch.setattr(command, "_report", lambda out: 0)
    assert command.main([str(folder)]) == COME_BACK
    assert len(started) == 2 and f"{folder}" in capsys.readouterr().out
    first = started[0]
    assert first[:2] == ["baseline", "tensorwise_fp8_compiled"]
    assert {"training.steps=3", "training.seq_len=64", "0,"} <= {*first}
    done = folder / first[first.index("--out") + 1]
    write_run(done / "baseline" / "seed0")
    (done / "study.yaml").write_text("")
    assert command.main([str(folder)]) == 0
    assert started[2] == [str(done)] and len(started) == 6


def test_a_report_that_fails_costs_no_run(folder, monkeypatch, capsys):
    monkeypatch.setattr(command, "_run", lambda arguments, stop: 0)
    (folder / "report.html").mkdir()
    assert command.main([str(folder)]) == 1
    assert "extensions.sweep.report" in capsys.readouterr().out


def test_a_dry_run_lists_the_cells_for_other_gpus(capsys):
    keys = ["model.flavor=llama3.1-8B", "training.seq_len=8192"]
    assert command.main(["b200_blog", *keys, "--dry-run", "--gpu", "rtx-4090"]) == 0
    assert ": cannot run: needs" in capsys.readouterr().out
    keys[0] = "model.flavor=llama3.2-1B"
    assert command.main(["b200_blog", *keys, "--dry-run", "--gpu", "a100"]) == 0
    assert "has no FP8 units" in capsys.readouterr().out


ALL = ["cpu", "model.flavor=cpu", "training.seq_len=64", "sharded.processes=1"]


@pytest.mark.parametrize(
    "words", [["no_such"], ["cpu", "b200_blog"], ["cpu", "--gpu", "h100"], ALL]
)
def test_bad_input_is_a_sentence(words):
    process = subprocess.run(
        [sys.executable, "-m", "extensions.sweep", *words], capture_output=True
    )
    assert process.returncode == 2 and process.stderr.startswith(b"error: ")


def test_the_benchmarks_figures_are_recomputed():
    assert tables.tflops()["TFLOP/s"].tolist() == [345, 531]
    assert tables.lengths()[8192].tolist() == [0.77, 0.83, 0.25]
    for name, args in tables.MODELS.items():
        assert args.parameters() == llama.FLAVORS[name].parameters()
