"""A sweep's table, efficiencies and heat map, from run directories with known speeds."""

import json

import pytest
import yaml

from analysis import plots, sweep
from analysis.load import LoadError
from analysis.report import main
from experiments.records.files import write
from experiments.records.run import CELL, STUDY_FILE, Fit
from tests.make_runs import change_json, change_lines, metrics_lines, write_run

BF16, FP8 = "baseline_compiled", "tensorwise_fp8_compiled"
# seconds of a step in bf16, by cell: two processes are 1.6 times as fast as one, and FP8 is 1.25
# times as fast as bf16
STEP_S = {("a", 1): 0.1, ("a", 2): 0.1 / 1.6, ("b", 1): 0.2, ("b", 2): None}
OBSTACLE = "needs about 99.0 GiB of 80 GiB"
AXES = {"model": {"flavor": ["a", "b"]}, "processes": [1, 2]}
STUDY = {"recipes": [BF16, FP8], "baseline": BF16, "seeds": [0, 1, 2]}


@pytest.fixture
def folder(tmp_path):
    """Two models on one and two processes: a's cells are complete, b has FP8 still to run, b on two
    does not fit."""
    for (flavor, processes), step_s in STEP_S.items():
        path = tmp_path / f"{flavor}_processes{processes}"
        path.mkdir()
        cell = {"values": {"model.flavor": flavor, "processes": processes}, "needed": 2.0**30}
        cell |= {"available": 2.0**33, "obstacle": None if step_s else OBSTACLE}
        write(path / CELL, Fit.model_validate(cell))
        (path / STUDY_FILE).write_text(yaml.safe_dump(STUDY))
        speeds = {"a": {BF16: 1, FP8: 1.25}, "b": {BF16: 1}}[flavor] if step_s else {}
        for recipe, speed in speeds.items():
            for seed in (0, 1, 2):
                pace = step_s / speed * (1 + 0.01 * seed)
                lines = metrics_lines(step_s=pace, shift=0.001 * speed)
                facts = {"lines": lines, "world_size": processes}
                facts |= {"peak_flops": {"bf16": 2e9, "fp8": None, "source": ""}, "flavor": flavor}
                write_run(path / recipe / f"seed{seed}", recipe, seed=seed, **facts)
    (tmp_path / STUDY_FILE).write_text(yaml.safe_dump(STUDY | {"axes": AXES}))
    return tmp_path


def change_runs(folder, pattern, **values):
    for path in folder.glob(f"{pattern}/manifest.json"):
        change_json(path, **values)


def value(found, quantity, *place):
    return found.table.loc[place, quantity]


def test_rows_have_the_planted_speeds(folder):
    found = sweep.read(folder)
    assert len(found.table) == 8 and list(found.table.index[:2]) == [("a", 1, BF16), ("a", 1, FP8)]
    for processes in (1, 2):
        ratio = value(found, "over bf16", "a", processes, FP8)
        assert ratio.number == pytest.approx(1.25) and ratio.text.startswith("1.25 (1.2")
    rate, mfu = (value(found, quantity, "a", 1, FP8).number for quantity in ("tokens/s", "MFU"))
    assert [rate, mfu] == pytest.approx([1250, 0.625], rel=0.02)
    efficiency = value(found, "efficiency", "a", 2, FP8)
    assert efficiency.number == pytest.approx(0.8) and efficiency.text.startswith("0.80 (0.7")
    assert value(found, "efficiency", "a", 1, FP8).number is None
    assert value(found, "over bf16", "b", 1, BF16).text == "1"
    states = [value(found, "state", *place, FP8).text for place in [("a", 1), ("b", 1), ("b", 2)]]
    assert states == ["3 of 3 runs", "not run", OBSTACLE]
    assert "a lower loss, in 2 of 2 cells. It has 1.25 to 1.25 times" in sweep.answer(found)


def test_a_cell_has_its_verdict_on_the_loss(folder):
    change_lines(folder / "a_processes1" / FP8, "seed", lambda line, _: {"losses": [20.0]})
    found = sweep.read(folder)
    assert value(found, "loss", "a", 1, FP8).text == "far above in 3 of 3"
    assert "in 1 of 2 cells (spoilt in 1)" in sweep.answer(found)


def test_a_study_without_seeds_and_a_cell_without_its_memory_are_named(folder):
    (folder / "a_processes1" / CELL).write_text(
        '{"values": {}, "available": 1.0, "obstacle": null}'
    )
    assert "a_processes1/cell.json: needed: Field required" in sweep.read(folder).notes[-1]
    (folder / STUDY_FILE).write_text(yaml.safe_dump({"recipes": [BF16], "axes": AXES}))
    with pytest.raises(LoadError, match="study.yaml: has no baseline, seeds"):
        sweep.read(folder)


def test_table_page_and_json_of_a_sweep(folder, capsys):
    html, figures = folder / "page.html", folder / "figures.json"
    assert main([str(folder), "--html", str(html), "--json", str(figures)]) == 0
    printed, page = capsys.readouterr().out, html.read_text()
    for words in ("1.25 (1.2", "0.80 (0.7", OBSTACLE, "about 1.0", sweep.QUESTION, "+0.0002"):
        assert words in printed
    assert f"<h1>{sweep.QUESTION}</h1>" in page and OBSTACLE in page
    assert page.count("<svg") == 2 and sweep.answer(sweep.read(folder)) in page
    rows = json.loads(figures.read_text())["rows"]
    assert rows[3]["efficiency"]["number"] == pytest.approx(0.8)
    assert rows[-1]["tokens/s"]["number"] is None


def test_a_cell_whose_runs_do_not_compare_is_named(folder):
    change_runs(folder, f"a_processes2/{BF16}/seed0", steps=29)
    found = sweep.read(folder)
    assert "a_processes2: these runs differ in steps_asked" in found.notes[-1]
    assert [value.text for value in found.table.loc[("a", 2), "state"]] == ["not completed"] * 2


@pytest.mark.parametrize(("seeds", "state"), [("seed1", "2 of 3 runs, diverged in 1 of 3 runs"),
                                              ("*", "diverged in 3 of 3 runs")])  # fmt: skip
def test_a_cell_that_diverged_says_so(folder, seeds, state):
    change_runs(folder, f"a_processes2/{FP8}/{seeds}", status="diverged")
    found = sweep.read(folder)
    assert value(found, "state", "a", 2, FP8).text == state
    assert value(found, "state", "a", 1, FP8).text == "3 of 3 runs"


def test_cells_of_other_axes_are_left_out_and_named(folder):
    """study.yaml was edited, or a cell's record is damaged."""
    (folder / "a_processes1" / CELL).write_text("{")
    axes = {"processes": [1, 2], "model": {"flavor": ["a", "c"]}}  # in another order
    (folder / STUDY_FILE).write_text(yaml.safe_dump(STUDY | {"axes": axes}, sort_keys=False))
    found = sweep.read(folder)
    assert list(found.table.index) == [(2, "a", BF16), (2, "a", FP8)]
    for cell, note in zip(
        ("a_processes1", "b_processes1", "b_processes2"), found.notes[-3:], strict=True
    ):
        assert f"{cell}/{CELL}: " in note
    (folder / STUDY_FILE).write_text(yaml.safe_dump(STUDY | {"axes": {"processes": [4]}}))
    with pytest.raises(LoadError, match="no cell of it"):
        sweep.read(folder)


def test_cells_of_other_devices_are_named(folder):
    hardware = {"name": "other", "type": "cuda", "memory_bytes": 1, "threads": 1}
    change_runs(folder, "a_processes2/*/*", hardware=hardware)
    assert any("differ in device (GPU, other)" in note for note in sweep.read(folder).notes)


def test_heat_map_says_what_the_table_says(folder):
    axes, scale = plots.heat_map(sweep.read(folder), "over bf16", FP8).axes
    texts = [text.get_text().replace("\n", " ") for text in axes.texts]
    assert texts[0].startswith("1.25 (") and texts[2:] == ["not run", OBSTACLE]
    image = axes.images[0].get_array()
    assert image[0].tolist() == pytest.approx([1.25] * 2) and image.mask[1].all()
    assert scale.get_ylim() == pytest.approx((0.8, 1.25))
