"""A sweep's outcomes, table and heat map, from run directories with known speeds, and what must be
said where one thing is wrong."""

import json
import re
import shutil

import numpy as np
import pytest
import yaml

from analysis import plots, sweep
from analysis.study import StudyError
from analysis.sweep import main
from experiments.records.files import write
from experiments.records.run import CELL, STUDY_FILE, Fit
from tests.make_runs import change_json, change_lines, metrics_lines, write_run

BF16, FP8, ROWWISE = "baseline_compiled", "tensorwise_fp8_compiled", "rowwise_fp8_compiled"
# seconds of a step in bf16, by cell: two processes are 1.6 times as fast as one, and FP8 is 1.25
# times as fast as bf16
STEP_S = {("a", 1): 0.1, ("a", 2): 0.1 / 1.6, ("b", 1): 0.2, ("b", 2): None}
OBSTACLE = "needs about 99.0 GiB of 80 GiB"
AXES = {"model": {"flavor": ["a", "b"]}, "processes": [1, 2]}
STUDY = {"recipes": [BF16, FP8], "baseline": BF16, "seeds": [0, 1, 2]}
GPU = {"name": "GPU", "type": "cuda", "memory_bytes": 1, "threads": 1}


def write_runs(cell, recipe, step_s, speed, **facts):
    for seed in (0, 1, 2):
        pace = step_s / speed * (1 + 0.01 * seed)
        facts["lines"] = metrics_lines(step_s=pace, shift=0.001 * speed + 0.05 * seed)
        facts["peak_flops"] = {"bf16": 2e9, "fp8": None, "source": ""}
        write_run(cell / recipe / f"seed{seed}", recipe, seed=seed, **facts)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Two models on one and two processes: a's cells are complete, b has FP8 still to run, b on two
    does not fit."""
    folder = tmp_path_factory.mktemp("sweep")
    for (flavor, processes), step_s in STEP_S.items():
        path = folder / f"{flavor}_processes{processes}"
        path.mkdir()
        cell = {"values": {"model.flavor": flavor, "processes": processes}, "needed": 2.0**30}
        cell |= {"available": 2.0**33, "obstacle": None if step_s else OBSTACLE}
        write(path / CELL, Fit.model_validate(cell))
        (path / STUDY_FILE).write_text(yaml.safe_dump(STUDY))
        speeds = {"a": {BF16: 1, FP8: 1.25}, "b": {BF16: 1}}[flavor] if step_s else {}
        for recipe, speed in speeds.items():
            write_runs(path, recipe, step_s, speed, world_size=processes, flavor=flavor)
    (folder / STUDY_FILE).write_text(yaml.safe_dump(STUDY | {"axes": AXES}))
    return folder


@pytest.fixture
def folder(sound, tmp_path):
    return shutil.copytree(sound, tmp_path / "sweep")


def value(table, quantity, *place):
    return table.loc[place, quantity]


def test_rows_have_the_planted_speeds(sound):
    table = sweep.read(sound).table
    assert [*table.index[::2]] == [(*place, BF16) for place in STEP_S]
    rows = table.loc[[("a", 1, FP8), ("a", 2, FP8)]]
    numbers = rows[["tokens/s", "over bf16", "MFU", "efficiency"]].map(lambda value: value.number)
    planted = [[1250, 1.25, 0.625, np.nan], [2000, 1.25, 0.5, 0.8]]
    np.testing.assert_allclose(numbers.astype(float), planted, rtol=0.02)
    ratio, efficiency = (rows[column].iloc[1].text for column in ("over bf16", "efficiency"))
    assert ratio.startswith("1.25 (1.2") and efficiency.startswith("0.80 (0.7")
    assert value(table, "over bf16", "b", 1, BF16).text == "1"
    states = [value(table, "state", *place, FP8).text for place in STEP_S]
    assert states == ["3 of 3 runs", "3 of 3 runs", "not run", OBSTACLE]


# ---- what must be said where one thing is wrong ----


def facts(runs, **values):
    """Other facts in the manifests of runs, CELL/RECIPE/SEED."""
    return lambda folder: [change_json(p, **values) for p in folder.glob(f"{runs}/manifest.json")]


def far_above(folder):
    def changed(line, _):
        return {"losses": [line["losses"][0] * (2 if line["step"] > 1 else 1)]}

    change_lines(folder / "a_processes1" / FP8, "seed", changed)


# name: (what is wrong, outcomes of FP8 in the four cells, a note)
YES, LEFT = "yes", ["not run", "does not fit"]
PLANTED = {
    "nothing": (facts("none"), [YES, YES, *LEFT], ""),
    "FP8 failed": (facts(f"a_processes2/{FP8}/*", status="failed"),
                   [YES, "no_reference", *LEFT], f"a_processes2: Not compared of {FP8}: .*failed"),
    "bf16 failed": (facts(f"a_processes2/{BF16}/*", status="failed"),
                    [YES, "no_reference", *LEFT], "failed, step 30"),
    "other steps": (facts(f"a_processes2/{BF16}/seed0", steps=29),
                    [YES, "does not compare", *LEFT], "a_processes2: .*not one training"),
    "no record": (lambda folder: (folder / "a_processes1" / CELL).write_text("{}"),
                  [YES, *LEFT, "no record"], "a_processes1/cell.json: values: Field requ"),
    "a higher loss": (far_above, ["diverged", YES, *LEFT], f"a_processes1: {FP8} diverged in 3"),
    "diverged everywhere": (facts(f"*/{FP8}/*", status="diverged"),
                            ["diverged", "diverged", *LEFT], f"a_processes2: {FP8} diverged in 3"),
    "from a CPU": (facts("*/*/*", hardware=GPU | {"type": "cpu"}),
                   ["the same", "the same", *LEFT], "These are CPUs"),
    "a damaged study.yaml in a cell": (
        lambda folder: (folder / "a_processes1" / STUDY_FILE).write_text("["),
        ["does not compare", YES, *LEFT], "a_processes1: .*study.yaml"),
    "another driver": (facts(f"a_processes2/{FP8}/*", hardware=GPU | {"driver": "570"}),
                       [YES, "no_verdict", *LEFT], "a_processes2: .*driver"),
    "another device": (facts("a_processes2/*/*", hardware=GPU | {"name": "other"}),
                       [YES, YES, *LEFT], "differ in hardware.name .GPU, other."),
}  # fmt: skip


@pytest.mark.parametrize("case", PLANTED)
def test_planted_sweeps(folder, case):
    plant, outcomes, note = PLANTED[case]
    plant(folder)
    found = sweep.read(folder)
    assert found.outcomes[FP8] == outcomes
    assert re.search(note, "\n".join(found.notes)), found.notes
    yes = sum(outcome in (YES, "the same") for outcome in outcomes)
    assert f"in {yes} of 4 cells" in sweep.answer(found)


def test_each_fp8_recipe_is_counted(folder):
    """Rowwise FP8 as fast as tensorwise in one cell, and not run in the others."""
    study = STUDY | {"recipes": [BF16, ROWWISE, FP8]}
    (folder / STUDY_FILE).write_text(yaml.safe_dump(study | {"axes": AXES}))
    write_runs(folder / "a_processes1", ROWWISE, 0.1, 1.2, flavor="a")
    outcomes = sweep.read(folder).outcomes
    assert outcomes[ROWWISE] == [YES, "not run", "not run", "does not fit"]


@pytest.mark.parametrize(("recipe", "seeds", "status", "state"), [
    (FP8, "seed1", "diverged", "2 of 3 runs, tensorwise_fp8_compiled diverged in 1 of 3 runs"),
    (FP8, "*", "diverged", "tensorwise_fp8_compiled diverged in 3 of 3 runs"),
    (BF16, "*", "failed", "not completed"),
])  # fmt: skip
def test_states(folder, recipe, seeds, status, state):
    facts(f"a_processes2/{recipe}/{seeds}", status=status)(folder)
    table = sweep.read(folder).table
    assert value(table, "state", "a", 2, recipe).text == state
    assert value(table, "state", "a", 1, FP8).text == "3 of 3 runs"


def test_cells_of_other_axes_are_left_out_and_named(folder):
    """study.yaml was edited."""
    axes = {"processes": [1, 2], "model": {"flavor": ["a", "c"]}}  # in another order
    (folder / STUDY_FILE).write_text(yaml.safe_dump(STUDY | {"axes": axes}, sort_keys=False))
    found = sweep.read(folder)
    assert [place[:2] for place in found.table.index[::2]] == [(1, "a"), (2, "a")]
    for cell in ("b_processes1", "b_processes2"):
        assert any(f"{cell}/{CELL}: " in note for note in found.notes)
    for study, words in (
        (STUDY | {"axes": {"processes": [4]}}, "no cell of it"),
        ({"axes": AXES}, "study.yaml: has no"),
    ):
        (folder / STUDY_FILE).write_text(yaml.safe_dump(study))
        with pytest.raises(StudyError, match=words):
            sweep.read(folder)


# ---- where it is shown ----


def test_table_page_and_json_of_a_sweep(sound, tmp_path, capsys):
    html, figures = tmp_path / "page.html", tmp_path / "figures.json"
    assert main([str(sound), "--html", str(html), "--json", str(figures)]) == 0
    printed, page = capsys.readouterr().out, html.read_text()
    for words in ("1.25 (1.2", "0.80 (0.7", OBSTACLE, "about 1.0", sweep.QUESTION, "+0.000"):
        assert words in printed
    assert f"<h1>{sweep.QUESTION}</h1>" in page and OBSTACLE in page
    assert page.count("<svg") == 2 and sweep.answer(sweep.read(sound)) in page
    rows = json.loads(figures.read_text())["rows"]
    assert rows[3]["efficiency"]["number"] == pytest.approx(0.8)
    assert rows[-1]["tokens/s"]["number"] is None


def test_heat_map_says_what_the_table_says(sound):
    axes, scale = plots.heat_map(sweep.read(sound), "over bf16", FP8).axes
    texts = [text.get_text().replace("\n", " ") for text in axes.texts]
    assert texts[0].startswith("1.25 (") and texts[2:] == ["not run", OBSTACLE]
    image = axes.images[0].get_array()
    assert image[0].tolist() == pytest.approx([1.25] * 2) and image.mask[1].all()
    assert scale.get_ylim() == pytest.approx((0.8, 1.25))
