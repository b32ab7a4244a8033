"""A sweep's table, efficiencies and heat map, from run directories with known speeds."""

import json
import math
import shutil

import pytest
import yaml

from analysis import plots, sweep
from analysis.load import LoadError
from analysis.report import main
from tests.make_runs import write_run

BF16, FP8 = "baseline_compiled", "tensorwise_fp8_compiled"
# seconds of a step in bf16, by cell: two processes are 1.6 times as fast as one, and FP8 is 1.25
# times as fast as bf16
STEP_S = {("a", 1): 0.1, ("a", 2): 0.1 / 1.6, ("b", 1): 0.2}
OBSTACLE = "needs about 99.0 GiB of 80 GiB"


@pytest.fixture
def folder(tmp_path):
    """Two models on one and two processes: a's cells are complete, b has FP8 still to run, b on two
    does not fit."""
    plan = {"recipes": [BF16, FP8], "baseline": BF16, "seeds": [0, 1], "axes": {"model": {"flavor": ["a", "b"]},
            "processes": [1, 2]}}  # fmt: skip
    for flavor in "ab":
        for processes in 1, 2:
            step_s, cell = (
                STEP_S.get((flavor, processes)),
                tmp_path / f"{flavor}_processes{processes}",
            )
            cell.mkdir()
            record = {
                "values": {"model.flavor": flavor, "processes": processes},
                "needed": 2**30,
                "available": 2**33,
            }
            (cell / "cell.json").write_text(
                json.dumps(record | {"obstacle": None if step_s else OBSTACLE})
            )
            (cell / "study.yaml").write_text(yaml.safe_dump(plan | {"axes": {}}))
            for seed in (0, 1) if step_s else ():
                facts = {"seed": seed, "world_size": processes, "flavor": flavor}
                write_run(
                    cell / BF16 / f"seed{seed}", BF16, step_s=step_s * (1 + 0.01 * seed), **facts
                )
                if flavor == "a":
                    facts |= {
                        "step_s": step_s / 1.25 * (1 + 0.01 * seed),
                        "fp8_share": 0.8,
                        "float8": "tensorwise",
                    }
                    write_run(cell / FP8 / f"seed{seed}", FP8, **facts)
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(plan))
    return tmp_path


def test_rows_have_the_planted_speeds(folder):
    found = {(row.cell, row.recipe): row for row in sweep.read(folder).rows}
    assert len(found) == 8 and list(found)[:2] == [("a_processes1", BF16), ("a_processes1", FP8)]
    one, two = found["a_processes1", FP8], found["a_processes2", FP8]
    assert (one.over_bf16.ratio, two.over_bf16.ratio) == pytest.approx((1.25, 1.25))
    assert one.over_bf16.low < 1.25 < one.over_bf16.high
    assert one.rate.mean == pytest.approx(1250, rel=0.01) and one.mfu == pytest.approx(
        1.25, rel=0.01
    )
    assert (
        two.efficiency.ratio == pytest.approx(0.8)
        and two.efficiency.low < 0.8 < two.efficiency.high
    )
    assert one.efficiency is None and one.state == "2 of 2 runs"
    assert (
        found["b_processes1", BF16].over_bf16 is None
        and found["b_processes1", FP8].state == "not run"
    )
    assert found["b_processes2", FP8].state == OBSTACLE


def test_one_run_each_gives_no_interval(folder):
    for path in folder.glob("*/*/seed1"):
        shutil.rmtree(path)
    row = next(row for row in sweep.read(folder).rows if row.efficiency)
    assert row.efficiency.word == "0.80, one run" and row.state == "1 of 2 runs"


def test_table_page_and_json_of_a_sweep(folder, capsys):
    html, figures = folder / "page.html", folder / "figures.json"
    assert main([str(folder), "--html", str(html), "--json", str(figures)]) == 0
    printed, page, rows = (
        capsys.readouterr().out,
        html.read_text(),
        json.loads(figures.read_text())["rows"],
    )
    assert (
        "1.25 (1.2" in printed
        and "0.80 (0.7" in printed
        and OBSTACLE in printed
        and "about 1.0" in printed
    )
    assert (
        sweep.QUESTION in printed
        and f"<h1>{sweep.QUESTION}</h1>" in page
        and "Should this Llama" not in page
    )
    assert (
        page.count("<svg") == 9 and OBSTACLE in page
    )  # FP8's speed-up, and four quantities of each recipe
    assert rows[3]["efficiency"]["ratio"] == pytest.approx(0.8) and rows[-1]["rate"] is None


def test_a_cell_whose_runs_do_not_compare_is_named(folder):
    manifest = folder / "a_processes2" / BF16 / "seed0" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"steps": 29}))
    found = sweep.read(folder)
    assert "a_processes2: these runs differ in steps_asked" in found.notes[-1]
    assert [row.state for row in found.rows if row.cell == "a_processes2"] == ["not completed"] * 2


def test_a_cell_that_diverged_says_so(folder):
    for seeds, state in (
        ((1,), "1 of 2 runs, diverged in 1 of 2 seeds"),
        ((0, 1), "diverged in 2 of 2 seeds"),
    ):
        for seed in seeds:
            manifest = folder / "a_processes2" / FP8 / f"seed{seed}" / "manifest.json"
            manifest.write_text(
                json.dumps(json.loads(manifest.read_text()) | {"status": "diverged"})
            )
        found = {(row.cell, row.recipe): row.state for row in sweep.read(folder).rows}
        assert found["a_processes2", FP8] == state and found["a_processes1", FP8] == "2 of 2 runs"


def test_cells_of_other_axes_are_left_out_and_named(folder):
    """study.yaml was edited, or a cell's record is damaged."""
    plan = yaml.safe_load((folder / "study.yaml").read_text())
    (folder / "a_processes1" / "cell.json").write_text("{")
    plan["axes"] = {"processes": [1, 2], "model": {"flavor": ["a", "c"]}}  # in another order
    (folder / "study.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
    found = sweep.read(folder)
    assert [list(row.values.values()) for row in found.rows] == [[2, "a"]] * 2
    *_, damaged, b1, b2 = found.notes
    assert "a_processes1/cell.json: content: Invalid JSON" in damaged
    assert "b_processes1/cell.json: values" in b1 and "b_processes2/cell.json: values" in b2
    (folder / "study.yaml").write_text(yaml.safe_dump(plan | {"axes": {"processes": [4]}}))
    with pytest.raises(LoadError, match="no cell of it"):
        sweep.read(folder)


def test_cells_of_other_devices_are_named(folder):
    manifest = folder / "a_processes2" / BF16 / "seed0" / "manifest.json"
    for path in manifest.parents[2].glob("*/*/manifest.json"):
        path.write_text(
            json.dumps(
                json.loads(path.read_text())
                | {"hardware": {"name": "other", "type": "cuda", "memory_bytes": 1, "threads": 1}}
            )
        )
    assert any("differ in device (GPU, other)" in note for note in sweep.read(folder).notes)


def test_heat_map_says_what_the_table_says(folder):
    (axes,) = plots.heat_map(sweep.read(folder), "over bf16", FP8).axes
    texts = [text.get_text().replace("\n", " ") for text in axes.texts]
    assert texts[0].startswith("1.25 (") and texts[2:] == ["not run", OBSTACLE]
    image = axes.images[0].get_array()
    assert image[0].tolist() == pytest.approx([math.log(1.25)] * 2) and image.mask[1].all()
