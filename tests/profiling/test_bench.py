"""The benchmark: variants, rounds within a budget, failures and signals, its tables and the
roofline's beside them, and one real measurement."""

import json
import os
import signal
import sys
import threading
import time

import pytest

from experiments import bench, roofline
from experiments.config import recipes
from experiments.jobs.command import FOR_GOOD, Stop
from experiments.profiling.measured import Bench, Round, Variant, tables
from experiments.profiling.measured import roofline as rooflines
from experiments.training.plan import plan
from models import device, floors, gpus
from models.floors import CASTS, IDLE, MATMUL_FP8, PARTS
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
    return Bench(**known | facts, machine=machine | {"packages": {"torch": "2.13.0"}})


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


def test_rounds_alternate_and_none_begins_that_would_not_fit(tmp_path, measure, capsys):
    fails = "echo 'error: OutOfMemoryError: CUDA out of memory.' >&2; exit 1"
    scripts = {"a": WORKS, "b": WORKS, "c": fails}
    variants = measure(scripts, lambda: 1e-9 if len(list(tmp_path.glob("a.*3.json"))) else 9)
    rounds = [line.split(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert rounds[:7] == [f"round {n}, {v}" for n, v in ("1a", "1b", "1c", "2b", "2a", "3a", "3b")]
    assert len(rounds) == 8 and rounds[7].startswith("Another round takes")
    assert [len(one.rounds) for one in variants.values()] == [3, 3, 0]


def test_a_variant_that_fails_says_why_and_the_others_go_on(tmp_path, measure):
    scripts = {
        "works": WORKS,
        "out_of_memory": "echo 'error: OutOfMemoryError: CUDA out of memory.' >&2; exit 1",
        "killed": "kill -9 $$",
        "works_too": WORKS,
    }
    # enough for the first round, too little for another
    variants = measure(scripts, left=lambda: 1e-9)
    assert len(variants["works"].rounds) == 1
    assert variants["works_too"].ratio == {"median": 1, "min": 1, "max": 1}
    assert variants["out_of_memory"].error == "failed: OutOfMemoryError: CUDA out of memory."
    assert "killed by SIGKILL" in variants["killed"].error
    logs = sorted(path.name for path in tmp_path.glob("*.log"))
    assert logs == ["killed.round1.log", "out_of_memory.round1.log"]


def test_a_spent_budget_ends_the_measurement_and_keeps_the_others(tmp_path, measure):
    """In a later round that is no failure."""
    once = f"test -e {tmp_path}/seen && exec sleep 60; touch {tmp_path}/seen; {WORKS}"
    of_three = {"works": WORKS, "slow": "exec sleep 60", "never": "exit 0"}
    errors = {"works": None, "slow": "the budget was spent", "never": "its turn did not come"}
    for scripts in ({"works": once}, of_three):
        end = time.monotonic() + 1
        variants = measure(scripts, lambda end=end: end - time.monotonic())
        assert time.monotonic() < end + 5
        assert {label: one.error for label, one in variants.items()}.items() <= errors.items()
        assert variants["works"].tokens_per_s == 100 and len(variants["works"].rounds) == 1


def test_sigterm_ends_the_worker_and_keeps_what_is_there(tmp_path, measure):
    stop = Stop()
    stop.listen()
    stop.deferred = True
    slow = f"echo $$ > {tmp_path}/pid; exec sleep 60"
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    variants = measure({"works": WORKS, "slow": slow}, lambda: 99, stop)
    assert stop.code == FOR_GOOD and variants["slow"].error == "ended by SIGTERM"
    assert len(variants["works"].rounds) == 1
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
    small = "training.seq_len=64 training.local_batch_size=1 --overlay cpu --steps 13 --budget 300"
    out = tmp_path / "out"
    assert bench.main(["baseline", fp8, *small.split(), "--out", str(out)]) == 1
    written = Bench.model_validate_json((out / "bench.json").read_text())
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
    made = a_bench(rounds)
    made.work_out()
    first, second = made.variants.values()
    assert first.step_s == 0.5 and first.tokens_per_s == 2
    assert second.ratio == pytest.approx({"median": 1.8, "min": 1.6, "max": 2.0})


def test_parts_stand_beside_their_rooflines_and_what_inductor_counted():
    """That is of the round with the emptiest cache; nothing for a variant that was not compiled."""
    planned = plan(recipes.load("tensorwise_fp8_compiled", ["h200"]))
    least = rooflines(planned, "h200")
    assert set(least) == set(PARTS) and 0 < least[MATMUL_FP8] < 0.5
    graphs = [{"kernels": 30, "bytes": int(2e9)}, {"kernels": 39, "bytes": int(3.74e9)}]
    made = a_bench({"eager": [{}], "failed": [], "tensorwise": [{"compiled_graphs": graphs}, {}]})
    made.variants["failed"].error = "failed: CUDA out of memory."
    made.work_out()
    shown = tables(made, dict.fromkeys(made.variants, planned)).splitlines()
    assert "2  failed: failed: CUDA out of memory." in shown
    assert any(line.split() == ["2", "0"] for line in shown)
    (counted,) = (line.split() for line in shown if "5.74 GB" in line)
    assert counted[0] == "3" and "69," in counted
    measured, roofline = shown[-2:]
    assert measured.split()[0] == "3" and measured.split()[-1] == "500.0"
    seconds = [*least.values(), sum(least.values())]
    assert roofline.split() == ["roofline", "of", "3", *(f"{s * 1e3:,.1f}" for s in seconds)]


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
    least = floors.step_floors(
        work("baseline_compiled", keys, overlays=["cpu"]), gpus.GPUS["h200"].rates
    )
    parts = {part: 2 * seconds for part, seconds in least.items()} | {IDLE: 0.01}
    made = a_bench({label: [{"parts": parts}]}, overlays=["cpu"], overrides=[keys])
    made.work_out()
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
