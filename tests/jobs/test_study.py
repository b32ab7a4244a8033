"""A whole study as a user runs it, and what its run directories hold."""

import json
import os
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from experiments.jobs import runner
from tests import processes
from tests.runs import SMALL, lines_of, losses_of, manifest_of, run_study

pytestmark = pytest.mark.slow

FOUR = ["baseline", "baseline_compiled", "rowwise_fp8_compiled", "tensorwise_fp8_compiled"]
STEPS = 14  # more than the 10 that settle


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """The folder in which the study's runs keep their compiled kernels."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(scope="module")
def four_way(kernels, tmp_path_factory):
    """(directory, what was printed) of the four-way study on a CPU, at a size that takes a minute.

    To spare the time, its runs share the compile cache that this machine has;
    tests/jobs/test_study_processes.py has one whose runs do not.
    """
    out = tmp_path_factory.mktemp("studies") / "four_way"
    keys = [*SMALL, f"training.steps={STEPS}", f"compile.artifacts_dir={kernels}"]
    with patch.object(runner, "set_by_user", lambda variable: True):
        code, printed = run_study("four_way", "--overlay", "cpu", "--out", out, *keys)
    assert code == 0, printed
    return out, printed


@pytest.fixture(scope="module")
def records(four_way):
    """{recipe: {file stem: contents}} of the study's runs, lines in `metrics`, each step's loss in
    `losses`."""
    records = {}
    for recipe in FOUR:
        run = four_way[0] / recipe / "seed0"
        records[recipe] = {p.stem: json.loads(p.read_text()) for p in run.glob("*.json")}
        records[recipe] |= {"metrics": lines_of(run), "losses": losses_of(run)}
    return records


def test_every_run_is_in_the_table_and_complete(four_way, records):
    out, printed = four_way
    assert all(f" {recipe} " in printed for recipe in FOUR)
    assert printed.count("completed") >= 8  # a line as it ends, and the table's
    assert "no FP8 units" in printed and str(out) in printed
    assert "report.html among it" in printed and (out / "report.html").stat().st_size > 10_000
    for recipe in FOUR:
        assert {"manifest", "timing", "proof", "summary"} <= set(records[recipe])
        assert {"recipe.yaml", "log.txt", "tb"} <= {
            p.name for p in (out / recipe / "seed0").iterdir()
        }
    manifest = records["tensorwise_fp8_compiled"]["manifest"]
    assert (manifest["status"], manifest["seed"], manifest["float8"]) == (
        "completed",
        0,
        "tensorwise",
    )
    assert manifest["packages"]["torchtitan"] == "0.2.2" and manifest["hardware"]["type"] == "cpu"
    assert "experiments.run tensorwise_fp8_compiled --seed 0" in manifest["command"]


def test_losses(records):
    """Before the first update only rounding differs: in bf16 not at all, in FP8 by less than its 3
    bits could hide.

    Compiled kernels sum in another order, in bf16.
    """
    bf16 = records["baseline"]["losses"]
    assert bf16[-1] < bf16[0] - 0.3
    assert records["baseline_compiled"]["losses"] == pytest.approx(bf16, abs=0.01)
    assert records["baseline_compiled"]["losses"][0] == pytest.approx(bf16[0], abs=1e-3)
    for recipe in FOUR[2:]:
        assert records[recipe]["losses"] == pytest.approx(bf16, abs=0.05)
        assert records[recipe]["losses"][0] == pytest.approx(bf16[0], abs=0.02)


def test_what_ran_in_fp8(records):
    """28 of 29 linear layers; at width 256 and vocabulary 4096 their FLOPs are 3/4 of all
    GEMMs'."""
    for recipe in FOUR[:2]:
        assert records[recipe]["proof"]["fp8_share_of_matmul_flops"] == 0
    for recipe in FOUR[2:]:
        proof = records[recipe]["proof"]
        assert len(proof["converted_modules"]) == 28 and "output" not in proof["converted_modules"]
        assert proof["attention"] == "flash"
        assert proof["fp8_share_of_matmul_flops"] == (
            0 if proof["emulated"] else pytest.approx(0.75)
        )
        assert proof["parameters"]["in_optimizer"] == 39


def test_every_step_has_its_times_and_rates(records):
    assert len({record["manifest"]["flops_per_token"] for record in records.values()}) == 1
    for record in records.values():
        flops, peak = record["manifest"]["flops_per_token"], record["manifest"]["peak_flops"]
        assert peak["source"].startswith("measured") and peak["fp8"] is None
        assert [line["step"] for line in record["metrics"]] == list(range(1, STEPS + 1))
        assert (
            record["summary"]["data_wait_share"] < 0.05
        )  # the loader is not what training waits for
        for line in record["metrics"]:
            assert len(line["losses"]) == len(line["step_s"]) == len(line["data_wait_s"]) == 1
            assert line["not_steady"] == ([line["step"]] if line["step"] <= 10 else [])
            assert line["tokens_per_s"] == pytest.approx(256 / line["step_s"][0], rel=1e-4)
            assert line["mfu_bf16_peak"] == pytest.approx(
                line["tokens_per_s"] * flops / peak["bf16"]
            )
            assert line["mfu_fp8_peak"] is None


def test_warm_up_is_counted_and_accounted_for(records):
    for recipe, record in records.items():
        timing, summary = record["timing"], record["summary"]
        assert timing["warm_up_s"] == pytest.approx(sum(timing["phases"].values()))
        assert {"import", "data", "model_build", "conversion", "compile", "first_step"} <= set(
            timing["phases"]
        )
        compiles = recipe != "baseline"
        assert (timing["phases"]["compile"] > 0.1) == compiles
        assert (timing["compile_cache"] in ("cold", "warm")) == compiles
        assert summary["wall_s"] == pytest.approx(
            timing["warm_up_s"] + summary["wall_s_without_warm_up"]
        )
        after = sum(line["step_s"][0] for line in record["metrics"][1:])
        assert summary["wall_s_without_warm_up"] == pytest.approx(after, rel=0.2)


def test_a_runs_recipe_runs_again_with_the_same_losses(four_way, kernels, records, tmp_path):
    """With the graphs that the study's run kept, where inductor's cache has none, only what the C++
    compiler built."""
    recipe, again = four_way[0] / "tensorwise_fp8_compiled/seed0/recipe.yaml", tmp_path / "again"
    inductor = tmp_path / "inductor"
    inductor.mkdir()
    built = {entry.name: entry for entry in Path(default_cache_dir()).iterdir()}
    for graphs in "fxgraph", "aotautograd":
        del built[graphs]
    for name, entry in built.items():
        (inductor / name).symlink_to(entry)
    command = [sys.executable, "-m", "experiments.run", recipe, "--out", again]
    processes.run(command, env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(inductor)})
    assert losses_of(again) == records["tensorwise_fp8_compiled"]["losses"]
    assert manifest_of(again)["recipe"] == "tensorwise_fp8_compiled"
    assert json.loads((again / "timing.json").read_text())["compile_cache"] == "warm"
    assert f"Compiled kernels restored from {kernels}" in (again / "log.txt").read_text()
