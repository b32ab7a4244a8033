"""A sweep's answer, table and heat map, from run directories with known speeds, and what must be
said where one thing is wrong."""

import json
import re
import shutil

import numpy as np
import pytest
import yaml

from analysis import plots, sweep
from analysis.load import LoadError
from analysis.report import main
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
        facts["lines"] = metrics_lines(step_s=pace, shift=0.001 * speed)
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
    change_lines(folder / "a_processes1" / FP8, "seed", lambda line, _: {"losses": [20.0]})


def two_recipes(folder):
    """Rowwise FP8 as fast as tensorwise in one cell, and not run in the others."""
    study = STUDY | {"recipes": [BF16, ROWWISE, FP8]}
    (folder / STUDY_FILE).write_text(yaml.safe_dump(study | {"axes": AXES}))
    write_runs(folder / "a_processes1", ROWWISE, 0.1, 1.2, flavor="a")


def only_bf16(folder):
    """Eager bf16 beside the compiled one, and no FP8."""
    study = STUDY | {"recipes": ["baseline", BF16, FP8]}
    (folder / STUDY_FILE).write_text(yaml.safe_dump(study | {"axes": AXES}))
    write_runs(folder / "a_processes1", "baseline", 0.1, 0.8, flavor="a")
    for runs in folder.glob(f"*/{FP8}"):
        shutil.rmtree(runs)


def four_times(key, value):
    """FP8 is four times as fast in one cell, and something is wrong with it."""

    def changed(line, _):
        fast = {"step_s": [line["step_s"][0] / 3.2], "tokens_per_s": 3.2 * line["tokens_per_s"]}
        return (fast if line["step"] > 10 else {}) | {key: [value]}

    return lambda folder: change_lines(folder / "a_processes2" / FP8, "seed", changed)


def candidate(folder):
    study = STUDY | {"recipes": [BF16, FP8, "candidate_adamw_stochastic_rounding"]}
    (folder / STUDY_FILE).write_text(yaml.safe_dump(study | {"axes": AXES}))


LEFT = "not run in 1, does not fit in 1"
# name: (what is wrong, the answer, a note)
PLANTED = {
    "nothing": (facts("none"), f"^FP8 is faster .* in 2 of 4 cells .{LEFT}.. It has 1.25 times "
                "the tokens/s[.]$", ""),
    "FP8 failed": (facts(f"a_processes2/{FP8}/*", status="failed"),
                   f"in 1 of 4 cells .no completed FP8 run in 1, {LEFT}",
                   f"a_processes2: {FP8} completed none of its 3 runs .failed."),
    "bf16 failed": (facts(f"a_processes2/{BF16}/*", status="failed"),
                    f"in 1 of 4 cells .no bf16 run in 1, {LEFT}", "failed at step 30"),
    "FP8 failed everywhere": (facts(f"*/{FP8}/*", status="failed"),
                              "^No answer: .* 0 of 4 cells .no completed FP8 run in 2", ""),
    "only bf16 ran": (only_bf16, "^No answer: .* FP8 is faster .* 0 of 4 cells .not run in 3", ""),
    "other steps": (facts(f"a_processes2/{BF16}/seed0", steps=29),
                    "does not compare in 1", "a_processes2: these runs differ in steps_asked"),
    "no record": (lambda folder: (folder / "a_processes1" / CELL).write_text("{}"),
                  "in 1 of 4 cells .*no record in 1", "a_processes1/cell.json: values: Field requ"),
    "a higher loss": (far_above, f"in 1 of 4 cells .loss spoilt in 1, {LEFT}",
                      "a_processes1: tensorwise_fp8_compiled ends far above"),
    "diverged everywhere": (facts(f"*/{FP8}/*", status="diverged"),
                            f"^No: {FP8} diverged in 3 of 3 runs, in 2 cells[.].* 0 of 4 cells",
                            f"a_processes2: {FP8} diverged in 3 of 3 runs"),
    "from a CPU": (facts("*/*/*", hardware=GPU | {"type": "cpu"}),
                   "^No answer about speed: .* loss in 2 of 4 cells [^I]*$", "These are CPUs"),
    "one cell from a CPU": (
        facts("a_processes2/*/*", hardware=GPU | {"type": "cpu"}),
        f"^FP8 is faster .* 1 of 4 cells .from a CPU in 1, {LEFT}.. It has .* in 1 of them", ""),
    "a failed run from a CPU": (
        facts(f"a_processes2/{BF16}/seed2", hardware=GPU | {"type": "cpu"}, status="failed"),
        "^FP8 is faster .* in 1 of 4 cells .loss unclear in 1", ""),
    "a spoilt cell of four times": (
        four_times("losses", 20.0), "loss spoilt in 1.* It has 1.25 times .* in 1 of them", ""),
    "a run of FP8 whose manifest says bf16": (
        facts(f"*/{FP8}/seed1", float8=None), "^FP8 .*doubtful speed in 2", "its manifest bf16"),
    "a candidate in bf16 that never ran": (candidate, "^FP8 is faster .* in 2 of 4 cells", ""),
    "a damaged study.yaml in a cell": (
        lambda folder: (folder / "a_processes1" / STUDY_FILE).write_text("["),
        "does not compare in 1", "a_processes1: .*study.yaml"),
    "another driver": (facts(f"a_processes2/{FP8}/*", hardware=GPU | {"driver": "570"}),
                       f"in 1 of 4 cells .doubtful speed in 1, {LEFT}",
                       f"a_processes2: {FP8}: what they ran on differs: driver"),
    "two FP8 recipes": (two_recipes, f"{ROWWISE} is faster .* in 1 of 4 cells .not run in 2, .*"
                        f"{FP8} is faster .* in 2 of 4 cells", ""),
    "another device": (facts("a_processes2/*/*", hardware=GPU | {"name": "other"}), "2 of 4 cells",
                       "differ in device .GPU, other."),
}  # fmt: skip


@pytest.mark.parametrize("case", PLANTED)
def test_planted_sweeps(folder, case):
    plant, said, note = PLANTED[case]
    plant(folder)
    found = sweep.read(folder)
    assert re.search(said, sweep.answer(found)), sweep.answer(found)
    assert re.search(note, "\n".join(found.notes)), found.notes


@pytest.mark.parametrize(("recipe", "seeds", "status", "state"), [
    (FP8, "seed1", "diverged", "2 of 3 runs, diverged in 1 of 3 runs"),
    (FP8, "*", "diverged", "diverged in 3 of 3 runs"),
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
    left_out = [note.split(":")[1].rsplit("/", 2)[1] for note in found.notes[-2:]]
    assert left_out == ["b_processes1", "b_processes2"]
    for study, words in (
        (STUDY | {"axes": {"processes": [4]}}, "no cell of it"),
        ({"recipes": [BF16], "axes": AXES}, "study.yaml: has no baseline, seeds"),
    ):
        (folder / STUDY_FILE).write_text(yaml.safe_dump(study))
        with pytest.raises(LoadError, match=words):
            sweep.read(folder)


# ---- where it is shown ----


def test_table_page_and_json_of_a_sweep(sound, tmp_path, capsys):
    html, figures = tmp_path / "page.html", tmp_path / "figures.json"
    assert main([str(sound), "--html", str(html), "--json", str(figures)]) == 0
    printed, page = capsys.readouterr().out, html.read_text()
    for words in ("1.25 (1.2", "0.80 (0.7", OBSTACLE, "about 1.0", sweep.QUESTION, "+0.0002"):
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
