"""A sweep's table, answer and heat map, from run directories with known speeds."""

import json
import re
import shutil

import pytest

from experiments.config.yaml_with_origins import dump
from experiments.records.files import write
from extensions.sweep import report
from extensions.sweep.cells import CELLS, FILE, Fit, Fits, Sweep
from extensions.sweep.figure import heat_map
from tests.make_runs import change_json, metrics_lines, write_run

BF16, FP8 = "baseline_compiled", "tensorwise_fp8_compiled"
# seconds of a step in bf16, by cell: two processes are 1.6 times as fast as one, and FP8 is 1.25
# times as fast as bf16; b on two processes does not fit
STEP_S = {("a", 1): 0.1, ("a", 2): 0.1 / 1.6, ("b", 1): 0.2, ("b", 2): None}
OBSTACLE = "needs about 99.0 GiB of 80 GiB"
GPU = {"name": "GPU", "type": "cuda", "memory_bytes": 1, "threads": 1}
SWEEP = Sweep(
    description="x",
    recipes=[BF16, FP8],
    seeds=[0, 1, 2],
    axes={"model.flavor": ["a", "b"], report.PROCESSES: [1, 2]},
)


def write_runs(cell, recipe, step_s, speed, **facts):
    for seed in SWEEP.seeds:
        pace = step_s / speed * (1 + 0.01 * seed)
        facts["lines"] = metrics_lines(step_s=pace, shift=0.001 * speed + 0.05 * seed)
        facts["peak_flops"] = {"bf16": 2e9, "fp8": None, "source": ""}
        write_run(cell / recipe / f"seed{seed}", recipe, seed=seed, **facts)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Two models on one and two processes: a's cells are complete, b has FP8 still to run."""
    folder, fits = tmp_path_factory.mktemp("sweep"), {}
    for cell in SWEEP.cells():
        flavor, processes = cell.values.values()
        step_s = STEP_S[flavor, processes]
        obstacle = None if step_s else OBSTACLE
        fits[cell.name] = Fit(needed=2.0**30, available=2.0**33, obstacle=obstacle)
        speeds = {"a": {BF16: 1, FP8: 1.25}, "b": {BF16: 1}}[flavor] if step_s else {}
        for recipe, speed in speeds.items():
            write_runs(folder / cell.name, recipe, step_s, speed, world_size=processes)
    (folder / FILE).write_text(dump(SWEEP.model_dump()))
    write(folder / CELLS, Fits(cells=fits))
    return folder


@pytest.fixture
def folder(sound, tmp_path):
    return shutil.copytree(sound, tmp_path / "sweep")


def test_rows_have_the_planted_speeds(sound):
    table = report.read(sound).table
    one, two = table.loc["a", 1, FP8], table.loc["a", 2, FP8]
    assert one["tokens/s"].number == pytest.approx(1250, rel=0.02)
    assert one["over bf16"].number == pytest.approx(1.25)
    assert two["efficiency"].number == pytest.approx(0.8, rel=0.02)
    assert two["efficiency"].text.startswith("0.80 (0.7")
    assert [table.loc[*place, FP8]["answer"].text for place in STEP_S] == [
        "yes", "yes", "not run", OBSTACLE
    ]  # fmt: skip


def facts(runs, **values):
    """Other facts in the manifests of runs, CELL/RECIPE/SEED."""
    return lambda folder: [change_json(p, **values) for p in folder.glob(f"{runs}/manifest.json")]


# name: (what is wrong, outcomes of FP8 in the four cells, a note)
YES, LEFT, TWO = "yes", ["not run", "does not fit"], "flavor-a_processes-2"
PLANTED = {
    "nothing": (facts("none"), [YES, YES, *LEFT], ""),
    "FP8 failed": (facts(f"{TWO}/{FP8}/*", status="failed"),
                   [YES, "no_reference", *LEFT], f"{TWO}: Not compared of {FP8}: .*failed"),
    "other steps": (facts(f"{TWO}/{BF16}/seed0", steps=29),
                    [YES, "does not compare", *LEFT], f"{TWO}: .*not one training"),
    "diverged": (facts(f"*/{FP8}/*", status="diverged"),
                 ["diverged", "diverged", *LEFT], f"{TWO}: {FP8} diverged in 3"),
    "from a CPU": (facts("*/*/*", hardware=GPU | {"type": "cpu"}),
                   ["the same", "the same", *LEFT], "These are CPUs"),
    "another device": (facts(f"{TWO}/*/*", hardware=GPU | {"name": "other"}),
                       [YES, YES, *LEFT], "differ in hardware.name .GPU, other."),
}  # fmt: skip


@pytest.mark.parametrize("case", PLANTED)
def test_planted_sweeps(folder, case):
    plant, outcomes, note = PLANTED[case]
    plant(folder)
    found = report.read(folder)
    assert found.outcomes[FP8] == outcomes
    assert re.search(note, "\n".join(report.notes(found)))
    yes = sum(outcome in (YES, "the same") for outcome in outcomes)
    assert f"in {yes} of 4 cells" in report.answer(found)


def test_table_page_and_json_of_a_sweep(sound, tmp_path, capsys):
    html, figures = tmp_path / "page.html", tmp_path / "figures.json"
    assert report.main([str(sound), "--html", str(html), "--json", str(figures)]) == 0
    printed, page = capsys.readouterr().out, html.read_text()
    for words in ("1.25 (1.2", "0.80 (0.7", OBSTACLE, "about 1.0", report.QUESTION):
        assert words in printed
    assert page.count("<svg") == 2 and OBSTACLE in page
    rows = json.loads(figures.read_text())["rows"]
    assert rows[3]["efficiency"]["number"] == pytest.approx(0.8, rel=0.02)
    assert rows[-1]["tokens/s"]["number"] is None


def test_a_damaged_sweep_is_a_sentence(folder, capsys):
    for name in (CELLS, FILE):
        (folder / name).write_text("[")
        assert report.main([str(folder)]) == 2
        assert capsys.readouterr().err.startswith("error: ")


def test_heat_map_says_what_the_table_says(sound):
    axes, scale = heat_map(report.read(sound), "over bf16", FP8).axes
    texts = [text.get_text().replace("\n", " ") for text in axes.texts]
    assert texts[0].startswith("1.25 (") and texts[2:] == ["not run", OBSTACLE]
    image = axes.images[0].get_array()
    assert image[0].tolist() == pytest.approx([1.25] * 2) and image.mask[1].all()
    assert scale.get_ylim() == pytest.approx((0.8, 1.25))
