"""The benchmark: variants, rounds within a budget, failures and signals, its tables and the
roofline's beside them, and one real measurement."""

import json
import math
import os
import signal
import sys
import threading
import time

import pytest

from experiments import bench, roofline
from experiments.config import recipes
from experiments.jobs.command import Stop
from experiments.profiling import measured
from experiments.profiling.measured import Bench, Round, Variant
from experiments.training.plan import plan
from models import device, floors
from models.floors import CASTS, IDLE, MATMUL_FP8, PARTS
from models.gpus import GPUS
from tests.costs import work

RECORD = {
    "step_s": 0.5,
    "tokens_per_s": 100.0,
    "mfu_bf16_peak": 0.1,
    "peak_memory_bytes": 2**30,
    "parts": dict.fromkeys([*PARTS, IDLE], 0.5 / 8),
    "warm_up": {"s": 3.0, "compile_cache": "none"},
    "steady_step_s": [0.5],
    "profiled_step_s": [0.6],
    "compiled_graphs": [],
}


def a_bench(rounds: dict[str, list[dict]], name="NVIDIA H200", **facts) -> Bench:
    """Make a bench whose rounds differ from `RECORD` in these figures."""
    machine = {"type": "cuda", "name": name, "memory_bytes": 1, "threads": 1}
    variants = {}
    for label, several in rounds.items():
        made = [Round(round=n, wall_s=9, **RECORD | one) for n, one in enumerate(several, 1)]
        variants[label] = Variant(error=None, rounds=made)
    known = {"command": "", "start": "", "git": {}, "steps": 40, "budget_s": 600}
    known |= {"overlays": [], "overrides": [], "variants": variants}
    made = Bench(**known | facts, machine=machine | {"packages": {"torch": "2.13.0"}})
    made.work_out()
    return made


# ---- variants ----

LAYERS = "quantize.linear.float8.filter_fqns=[output,layers.*.wk]"


def test_a_variant_is_a_recipe_with_keys_of_its_own():
    for keys in ([], ["optimizer.lr=1e+3", "model.x=1"], [LAYERS]):
        variant = "+".join(["fp8", *keys])
        assert bench.is_variant(variant) and recipes.split_variant(variant) == ("fp8", keys)
    assert not bench.is_variant("optimizer.lr=1e+3")


def test_the_default_has_the_four_and_compiled_bf16_with_its_own_rounding(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "measure_in_rounds", lambda *_: None)
    assert bench.main(["--overlay", "cpu", "--out", str(tmp_path), "training.seq_len=64"]) == 1
    paths = sorted(tmp_path.glob("*.yaml"))
    names = [path.stem.split("-")[1] for path in paths]
    assert names[:4] == list(recipes.THE_FOUR)
    keys = recipes.load(str(paths[4])).config.compile
    assert len(names) == 5 and keys.enable and not keys.emulate_precision_casts


# ---- measurements, with a worker that does what the recipe's file says ----

WORKER = """#!/bin/sh
shift 2  # -m experiments.profiling.worker
. "$1"
"""
WORKS = "cp ${0%/*}/record $2"


@pytest.fixture
def measure(tmp_path, monkeypatch):
    """Measure variants whose worker runs these shell scripts; returns variants of bench.json."""
    worker = tmp_path / "worker"
    worker.write_text(WORKER)
    worker.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(worker))
    (tmp_path / "record").write_text(json.dumps(RECORD | {"kernels": []}))

    def run(scripts: dict[str, str], left, stop=None) -> dict[str, Variant]:
        made, files = a_bench(dict.fromkeys(scripts, [])), {}
        for label, script in scripts.items():
            made.variants[label].error = "its turn did not come"
            files[label] = tmp_path / f"{label}.yaml"
            files[label].write_text(script)
        bench.measure_in_rounds(made, files, left, stop or Stop())
        written = Bench.model_validate_json((tmp_path / "bench.json").read_text())
        assert written == made
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
    logs = sorted(path.name for path in tmp_path.glob("*.log"))
    assert logs == ["killed.round1.log", "out_of_memory.round1.log"]


@pytest.mark.parametrize("reason", ["the budget was spent", "ended by SIGTERM"])
def test_a_spent_budget_or_a_signal_ends_the_worker_and_keeps_what_is_there(
    tmp_path, measure, reason
):
    end, stop = time.monotonic() + 1, Stop()
    if "SIGTERM" in reason:
        stop.listen()
        stop.deferred, end = True, math.inf
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    slow = f"echo $$ > {tmp_path}/pid; exec sleep 60"
    scripts = {"works": WORKS, "slow": slow, "never": "exit 0"}
    start = time.monotonic()
    variants = measure(scripts, lambda: end - time.monotonic(), stop)
    assert time.monotonic() < start + 6
    errors = [variant.error for variant in variants.values()]
    assert errors == [None, reason, "its turn did not come"]
    assert variants["works"].tokens_per_s == 100 and len(variants["works"].rounds) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


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
    unused = {"baseline": {MATMUL_FP8, CASTS}, fp8: set()}
    for label, variant in written.variants.items():
        parts = variant.parts
        assert set(parts) == {*PARTS, IDLE} and parts[IDLE] < 0.9 * variant.step_s
        assert sum(parts.values()) == pytest.approx(variant.step_s)
        assert {part for part in PARTS if not parts[part]} == unused[label]
        (only,) = variant.rounds
        assert len(only.steady_step_s) == 3 and len(only.profiled_step_s) == 2
        assert variant.tokens_per_s == pytest.approx(64 / variant.step_s, rel=0.05)
    assert fp8 in capfd.readouterr().out


# ---- figures and tables ----


def test_figures_are_of_the_median_round_and_ratios_of_the_same_round():
    seconds = {"first": (0.5, 0.4, 0.6), "second": (0.25, 0.25)}
    rounds = {}
    for label, several in seconds.items():
        rounds[label] = [{"step_s": s, "tokens_per_s": 1 / s} for s in several]
    first, second = a_bench(rounds).variants.values()
    assert first.step_s == 0.5 and first.tokens_per_s == 2
    assert second.ratio == pytest.approx({"median": 1.8, "min": 1.6, "max": 2.0})


def test_parts_stand_beside_their_rooflines_and_what_inductor_counted():
    """That is of the round with the emptiest cache; nothing for a variant that was not compiled."""
    planned = plan(recipes.load("tensorwise_fp8_compiled", ["h200"]))
    least = [*floors.step_floors(measured.work(planned), GPUS["h200"].rates).values()]
    graphs = [{"kernels": 30, "bytes": int(2e9)}, {"kernels": 39, "bytes": int(3.74e9)}]
    made = a_bench({"eager": [{}], "failed": [], "compiled": [{"compiled_graphs": graphs}, {}]})
    made.variants["failed"].error = "failed: CUDA out of memory."
    shown = measured.tables(made, dict.fromkeys(made.variants, planned)).splitlines()
    assert "2  failed: failed: CUDA out of memory." in shown
    rows = [line.split() for line in shown]
    assert ["2", "0"] in rows
    (counted,) = (row for row in rows if "5.74" in row)
    assert counted[0] == "3" and "69," in counted
    assert rows[-2][0] == "3" and rows[-2][-1] == "500.0"
    assert rows[-1] == ["roofline", "of", "3", *(f"{s * 1e3:,.1f}" for s in [*least, sum(least)])]


# ---- the command experiments.roofline ----


def test_the_roofline_of_a_recipe(capsys):
    assert roofline.main(["tensorwise_fp8_compiled", "--overlay", "cpu", "--gpu", "h200"]) == 0
    printed = capsys.readouterr().out
    words = [*PARTS, "tokens/s", "MFU", "H200 Tensor Core GPU datasheet"]
    assert all(word in printed for word in words)
    assert roofline.main(["baseline", "--gpu", "gh200"]) == 0
    assert "no measured rates of this GPU" in capsys.readouterr().out


def test_a_measurement_beside_its_roofline(tmp_path, capsys, fails):
    """It brings its overlays and keys along."""
    label, keys = "baseline+compile.enable=true", "training.seq_len=64"
    kernels = work("baseline_compiled", keys, overlays=["cpu"])
    least = floors.step_floors(kernels, GPUS["h200"].rates)
    parts = {part: 2 * seconds for part, seconds in least.items()} | {IDLE: 0.01}
    made = a_bench({label: [{"parts": parts}]}, overlays=["cpu"], overrides=[keys])
    path = tmp_path / "bench.json"
    path.write_text(made.model_dump_json(exclude_unset=True))
    options = [label, "--gpu", "h200", "--against", str(path)]
    assert roofline.main(options) == 0
    printed = capsys.readouterr().out
    assert f"baseline cpu {keys} compile.enable=true on h200" in printed
    rows = {line.split("  ")[0]: line.split() for line in printed.splitlines()}
    assert rows["attention"][-1] == "-50%" and rows[IDLE] == [IDLE, "10.0"]
    assert rows["step"][-1] == f"{sum(least.values()) / sum(parts.values()) - 1:+.0%}"
    assert "leave them out" in fails(roofline.main, *options, "--overlay", "cpu")
