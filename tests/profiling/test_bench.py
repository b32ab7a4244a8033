"""The benchmark: variants, rounds within a budget, failures and signals, its tables and the
roofline's beside them, and one real measurement.

bench.json is a made-up measurement; bench.txt are its tables, and tables.txt those of
experiments.roofline.
"""

import json
import math
import os
import signal
import sys
from pathlib import Path

import pytest

from experiments import bench
from experiments.config import recipes
from experiments.jobs.command import Stop
from experiments.profiling import measured
from experiments.profiling.measured import Bench, Variant
from experiments.training.plan import plan
from models import device
from models.floors import CASTS, IDLE, MATMUL_FP8, PARTS
from tests.test_messages import said

HERE = Path(__file__).parent


@pytest.fixture
def example() -> Bench:
    return Bench.model_validate_json((HERE / "bench.json").read_text())


# ---- variants ----


def test_a_variant_is_a_recipe_with_keys_of_its_own():
    keys = ["optimizer.lr=1e+3", "quantize.linear.float8.filter_fqns=[output,layers.*.wk]"]
    variant = "+".join(["fp8", *keys])
    assert bench.is_variant("fp8") and bench.is_variant(variant) and not bench.is_variant(keys[0])
    assert recipes.split_variant(variant) == ("fp8", keys)


def test_the_default_has_the_four_and_compiled_bf16_with_its_own_rounding(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "measure_in_rounds", lambda *_: None)
    assert bench.main(["--overlay", "cpu", "--out", str(tmp_path), "training.seq_len=64"]) == 1
    *four, fifth = sorted(tmp_path.glob("*.yaml"))
    assert [path.stem.split("-")[1] for path in four] == list(recipes.THE_FOUR)
    keys = recipes.load(str(fifth)).config.compile
    assert keys.enable and not keys.emulate_precision_casts


# ---- measurements, with a worker that does what the recipe's file says ----

WORKER = """#!/bin/sh
shift 2  # -m experiments.profiling.worker
. "$1"
"""
WORKS = "cp ${0%/*}/record $2"


@pytest.fixture
def measure(tmp_path, monkeypatch, example):
    """Measure variants whose worker runs these shell scripts; returns variants of bench.json."""
    worker, record = tmp_path / "worker", tmp_path / "record"
    worker.write_text(WORKER)
    worker.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(worker))
    measured = example.variants["baseline_compiled"].rounds[0]
    kernels = {"kernels": []}
    record.write_text(json.dumps(measured.model_dump(exclude={"round", "wall_s"}) | kernels))

    def run(scripts: dict[str, str], left, stop=None) -> dict[str, Variant]:
        files = {label: tmp_path / f"{label}.yaml" for label in scripts}
        example.variants = {}
        for label, script in scripts.items():
            example.variants[label] = Variant(error="its turn did not come", rounds=[])
            files[label].write_text(script)
        bench.measure_in_rounds(example, files, left, stop or Stop())
        written = Bench.model_validate_json((tmp_path / "bench.json").read_text())
        assert written == example
        return written.variants

    return run


def test_rounds_alternate_without_those_that_failed_as_long_as_one_fits(tmp_path, measure, capsys):
    scripts = {
        "a": WORKS,
        "out_of_memory": "echo 'error: OutOfMemoryError: CUDA out of memory.' >&2; exit 1",
        "killed": "kill -9 $$",
        "b": WORKS,
    }
    variants = measure(scripts, lambda: 1e-9 if len(list(tmp_path.glob("a.*3.json"))) else 9)
    lines = capsys.readouterr().out.splitlines()
    order = " ".join(line.split(":")[0].removeprefix("round ") for line in lines)
    assert order.startswith("1, a 1, out_of_memory 1, killed 1, b 2, b 2, a 3, a 3, b Another")
    assert len(variants["b"].rounds) == 3
    assert variants["b"].ratio == {"median": 1, "min": 1, "max": 1}
    assert variants["out_of_memory"].error == "failed: OutOfMemoryError: CUDA out of memory."
    assert "killed by SIGKILL" in variants["killed"].error
    logs = {path.name for path in tmp_path.glob("*.log")}
    assert logs == {"killed.round1.log", "out_of_memory.round1.log"}


@pytest.mark.parametrize("reason", ["the budget was spent", "ended by SIGTERM"])
def test_a_spent_budget_or_a_signal_ends_the_worker_and_keeps_what_is_there(
    tmp_path, measure, reason
):
    stop, pid = Stop(), tmp_path / "pid"
    stop.listen()
    stop.deferred = True

    def left() -> float:
        if not pid.exists():
            return math.inf
        if reason == "the budget was spent":
            return -1
        os.kill(os.getpid(), signal.SIGTERM)
        return math.inf

    slow = f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {pid}; exec sleep 600"
    variants = measure({"works": WORKS, "slow": slow, "never": "exit 0"}, left, stop)
    errors = [variant.error for variant in variants.values()]
    assert errors == [None, reason, "its turn did not come"]
    assert variants["works"].step_s == 0.45 and len(variants["works"].rounds) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@pytest.mark.slow
def test_two_recipes_are_measured_for_real(tmp_path, monkeypatch, capfd):
    really = bench.measure

    def once(recipe, number, left, stop):
        if number > 1:
            raise bench.NotMeasured("failed: once is enough")
        return really(recipe, number, left, stop)

    monkeypatch.setattr(bench, "measure", once)
    fp8 = "tensorwise_fp8_compiled+compile.enable=false"
    small = "training.seq_len=64 training.local_batch_size=1 --overlay cpu --steps 13"
    assert bench.main(["baseline", fp8, *small.split(), "--out", str(tmp_path)]) == 1
    written = Bench.model_validate_json((tmp_path / "bench.json").read_text())
    assert written.machine.name == device.name()
    for variant in written.variants.values():
        (only,) = variant.rounds
        assert len(only.steady_step_s) == 3 and len(only.profiled_step_s) == 2
        assert variant.tokens_per_s == pytest.approx(64 / variant.step_s, rel=0.05)
        assert sum(variant.parts.values()) == pytest.approx(variant.step_s)
        assert variant.parts[IDLE] < 0.9 * variant.step_s
    shown = {
        label: {part for part, seconds in variant.parts.items() if seconds}
        for label, variant in written.variants.items()
    }
    assert shown == {"baseline": {*PARTS, IDLE} - {MATMUL_FP8, CASTS}, fp8: {*PARTS, IDLE}}
    assert fp8 in capfd.readouterr().out


# ---- figures and tables ----


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def test_figures_and_tables_of_a_bench(example):
    """Figures are of the median round, ratios of the same round, and what inductor counted of the
    round with the emptiest cache."""
    plans = {}
    for label in example.variants:
        name, keys = recipes.split_variant(label)
        overrides = [*example.overrides, *keys]
        plans[label] = plan(recipes.load(name, example.overlays, overrides))
    again = example.model_copy(deep=True)
    again.work_out()
    assert again == example
    assert lines(measured.tables(example, plans)) == lines((HERE / "bench.txt").read_text())


@pytest.mark.parametrize("shown", (HERE / "tables.txt").read_text()[2:].split("\n\n$ "))
def test_tables_of_a_roofline(shown, monkeypatch):
    monkeypatch.chdir(HERE)
    case = shown.split("\n")[0]
    assert lines(said(case)) == lines(shown), f"stale: put what `{case}` prints into tables.txt"
