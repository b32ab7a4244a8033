"""A whole study as a user runs it, and what its run directories hold."""

from types import SimpleNamespace

import pytest

from experiments.records.files import read, read_windows
from experiments.records.run import MANIFEST, METRICS, PROOF, TIMING, Manifest, Proof, Timing
from tests.runs import SMALL, losses_of, run_study

pytestmark = pytest.mark.slow

FOUR = ["baseline", "baseline_compiled", "rowwise_fp8_compiled", "tensorwise_fp8_compiled"]
STEPS = 14  # more than the 10 that settle


@pytest.fixture(scope="module")
def four_way(tmp_path_factory):
    """(directory, what was printed) of the four-way study on a CPU, at a size that takes a minute.

    Inductor's code, which takes another one, is that of tests/training/test_gradients.py.
    """
    out = tmp_path_factory.mktemp("studies") / "four_way"
    keys = [*SMALL, f"training.steps={STEPS}", "model.sizes={n_layers: 2}"]
    keys += ["compile.backend=aot_eager"]
    code, printed = run_study("four_way", "--overlay", "cpu", "--out", out, *keys)
    assert code == 0, printed
    return out, printed


@pytest.fixture(scope="module")
def records(four_way) -> dict[str, SimpleNamespace]:
    """What each run has left."""
    found = {}
    for recipe in FOUR:
        run = four_way[0] / recipe / "seed0"
        found[recipe] = SimpleNamespace(
            manifest=read(run / MANIFEST, Manifest),
            timing=read(run / TIMING, Timing),
            proof=read(run / PROOF, Proof),
            windows=read_windows(run / METRICS),
            losses=losses_of(run),
        )
    return found


def test_every_run_is_in_the_table_and_complete(four_way, records):
    out, printed = four_way
    assert all(f" {recipe} " in printed for recipe in FOUR)
    assert printed.count("completed at step") == 4
    assert "no FP8 units" in printed and str(out) in printed
    page = out / "report.html"
    assert str(page) in printed and page.stat().st_size > 10_000
    for recipe in FOUR:
        assert (out / recipe / "seed0/log.txt").exists()
    manifest = records["tensorwise_fp8_compiled"].manifest
    assert (manifest.status, manifest.seed, manifest.float8) == ("completed", 0, "tensorwise")


def test_losses(records):
    """Before the first update only rounding differs: in bf16 not at all, in FP8 by less than its 3
    bits could hide.

    Compiled kernels sum in another order, in bf16.
    """
    bf16 = records["baseline"].losses
    assert bf16[-1] < bf16[0] - 0.3
    assert records["baseline_compiled"].losses == pytest.approx(bf16, abs=0.01)
    assert records["baseline_compiled"].losses[0] == pytest.approx(bf16[0], abs=1e-3)
    for recipe in FOUR[2:]:
        assert records[recipe].losses == pytest.approx(bf16, abs=0.05)
        assert records[recipe].losses[0] == pytest.approx(bf16[0], abs=0.02)


def test_what_ran_in_fp8(records):
    """14 of 15 linear layers; at width 256 and vocabulary 4096 their FLOPs are 3/5 of all
    GEMMs'."""
    for recipe in FOUR:
        proof, in_fp8 = records[recipe].proof, recipe in FOUR[2:]
        assert len(proof.converted_modules) == (14 if in_fp8 else 0)
        assert "output" not in proof.converted_modules and proof.attention == "flash"
        seen = in_fp8 and not proof.emulated
        assert proof.fp8_share_of_matmul_flops == pytest.approx(0.6 if seen else 0)
        assert proof.parameters.in_optimizer == 21


def test_every_step_has_its_times_and_rates_and_the_warm_up_is_accounted_for(records):
    names = {"import", "data", "model_build", "conversion", "optimizer", "compile", "first_step"}
    for recipe, record in records.items():
        assert record.manifest.flops_per_token == records["baseline"].manifest.flops_per_token
        assert [window.step for window in record.windows] == list(range(1, STEPS + 1))
        for window in record.windows:
            assert window.not_steady == ([window.step] if window.step <= 10 else [])
            assert window.tokens_per_s == pytest.approx(256 / window.step_s[0], rel=1e-4)
        timing, compiles = record.timing, recipe != "baseline"
        assert timing.time_to_first_step_s == pytest.approx(sum(timing.startup.values()))
        assert names <= set(timing.startup)
        assert (timing.startup["compile"] > 0.1) == compiles


def test_a_runs_recipe_runs_again_with_the_same_losses(four_way, records, tmp_path, run_here):
    recipe = four_way[0] / "baseline/seed0/recipe.yaml"
    assert run_here(recipe, "--out", tmp_path) == 0
    assert losses_of(tmp_path) == records["baseline"].losses
    assert read(tmp_path / MANIFEST, Manifest).recipe == "baseline"
