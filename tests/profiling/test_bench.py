"""The benchmark: variants, rounds within a budget, failures and signals, tables, and one real
measurement."""

import json
import os
import signal
import sys
import threading
import time

import pytest
from rich.console import Console

from experiments import bench
from experiments.config import recipes
from experiments.jobs.signals import FOR_GOOD, Stop
from experiments.profiling import rounds, table
from models import device
from models.floors import (
    ATTENTION,
    CASTS,
    ELEMENTWISE,
    IDLE,
    LOSS,
    MATMUL_BF16,
    MATMUL_FP8,
    OPTIMIZER,
    PARTS,
)
from tests import processes


@pytest.mark.parametrize(
    "text, name, overrides",
    [
        ("baseline", "baseline", []),
        ("baseline+optimizer.lr=1e+3+compile.enable=true", "baseline", ["optimizer.lr=1e+3", "compile.enable=true"]),
        ("fp8+quantize.linear.float8.filter_fqns=[output,layers.*.wk]", "fp8",
         ["quantize.linear.float8.filter_fqns=[output,layers.*.wk]"]),
    ],
)  # fmt: skip
def test_a_variant_is_a_recipe_with_keys_of_its_own(text, name, overrides):
    assert bench.is_variant(text) and recipes.split_variant(text) == (name, overrides)
    assert not bench.is_variant("optimizer.lr=1e+3")


def test_rounds_alternate_and_none_begins_that_would_not_fit():
    took, seconds, order = {}, [], []
    for number, variant in rounds.turns(["a", "b", "c"], took, lambda: 100 - sum(seconds)):
        order.append(f"{variant}{number}")
        seconds.append(10 if number == 1 else 8)
        if variant != "c":  # which fails
            took[variant] = seconds[-1]
    # 30 s, then rounds of 16 s: at 94 s a sixth would not fit
    assert order == ["a1", "b1", "c1", "b2", "a2", "a3", "b3", "b4", "a4", "a5", "b5"]


def test_a_misspelt_variant_names_the_nearest_and_does_not_wait_for_torch():
    words = ["tensorwise_fp8_compild+compile.enable=false"]
    code = f"import sys; from experiments import bench; print(bench.main({words}), 'torch' in sys.modules)"
    ended = processes.run([sys.executable, "-c", code])
    assert ended.stdout == "2 False\n" and "did you mean `tensorwise_fp8_compiled`" in ended.stderr


def test_the_default_has_the_four_and_compiled_bf16_with_its_own_rounding(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(rounds.Rounds, "run", lambda self, console: None)
    arguments = ["--overlay", "cpu", "--out", str(tmp_path), "training.seq_len=64"]
    assert (
        bench.main([*arguments, "--steps", "10"]) == 2 and "--steps 10" in capsys.readouterr().err
    )
    bench.main(arguments)
    names = [path.stem for path in sorted(tmp_path.glob("*.yaml"))]
    assert [name.split("-")[1] for name in names[:4]] == list(recipes.THE_FOUR)
    keys = recipes.load(str(tmp_path / f"{names[4]}.yaml")).config.compile
    assert len(names) == 5 and keys.enable and not keys.emulate_precision_casts


# ---- measurements that fail, with a worker that does what the recipe's file says ----

WORKER = """#!/bin/sh
shift 2  # -m experiments.profiling.worker
. "$1"
"""
RECORD = {"step_s": 0.5, "tokens_per_s": 100.0, "mfu_bf16_peak": 0.1, "peak_memory_bytes": 2**30, "kernels": [],
          "parts": dict.fromkeys([*PARTS, IDLE], 0.5 / 8), "warm_up": {"s": 3.0, "compile_cache": "none"},
          "compiled_graphs": []}  # fmt: skip
FACTS = {"machine": {"name": "a machine", "type": "cpu", "packages": {"torch": "2.13.0"}}}


def _rounds(tmp_path, monkeypatch, scripts: dict[str, str], left, stop=None) -> rounds.Rounds:
    """Rounds over variants whose worker runs these shell scripts."""
    worker = tmp_path / "worker"
    worker.write_text(WORKER)
    worker.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(worker))
    for name, file in rounds.file_names(scripts).items():
        (tmp_path / f"{file}.yaml").write_text(scripts[name])
    (tmp_path / "record").write_text(json.dumps(RECORD))
    return rounds.Rounds(scripts, FACTS, tmp_path, left, stop or Stop())


def _tables(summary: dict, recipes: dict) -> str:
    console = Console(width=220)
    with console.capture() as captured:
        table.print_tables(summary, recipes, console)
    return captured.get()


def test_a_variant_that_fails_says_why_and_the_others_go_on(tmp_path, monkeypatch):
    works = f"cp {tmp_path}/record $2"
    scripts = {
        "works": works,
        "out_of_memory": "echo 'error: OutOfMemoryError: CUDA out of memory.'; echo noise at exit; exit 1",
        "killed": "kill -9 $$",
        "works_too": works,
    }
    left = iter([99] * 12)
    measured = _rounds(tmp_path, monkeypatch, scripts, lambda: next(left, -1))
    measured.run(Console(quiet=True))
    written = json.loads((tmp_path / "bench.json").read_text())["variants"]
    assert len(written["works"]["rounds"]) >= 1 and len(written["works_too"]["rounds"]) >= 1
    assert written["works_too"]["ratio"] == {"median": 1, "min": 1, "max": 1}
    assert written["out_of_memory"]["error"] == "failed: OutOfMemoryError: CUDA out of memory."
    assert "killed by SIGKILL" in written["killed"]["error"]
    assert (
        not (tmp_path / "1-works.round1.log").exists()
        and (tmp_path / "3-killed.round1.log").exists()
    )
    shown = _tables(measured.summary(), {})
    assert "2  out_of_memory: failed: OutOfMemoryError: CUDA out of memory.\n" in shown
    assert any(line.split() == ["2", "0"] for line in shown.splitlines())


def test_a_spent_budget_ends_the_measurement_and_keeps_the_others(tmp_path, monkeypatch):
    """In a later round that is no failure."""
    once = (
        f"test -e {tmp_path}/seen && exec sleep 60; touch {tmp_path}/seen; cp {tmp_path}/record $2"
    )
    for scripts, errors in (
        ({"works": once}, {}),
        ({"works": f"cp {tmp_path}/record $2", "slow": "exec sleep 60", "never": "exit 0"},
         {"slow": "the budget was spent", "never": "its turn did not come"}),
    ):  # fmt: skip
        end = time.monotonic() + 1
        measured = _rounds(tmp_path, monkeypatch, scripts, lambda end=end: end - time.monotonic())
        measured.run(Console(quiet=True))
        assert time.monotonic() < end + 5 and measured.errors == errors
        written = json.loads((tmp_path / "bench.json").read_text())["variants"]["works"]
        assert written["tokens_per_s"] == 100 and len(written["rounds"]) == 1


def test_sigterm_ends_the_worker_and_keeps_what_is_there(tmp_path, monkeypatch):
    stop = Stop()
    stop.listen()
    stop.deferred = True
    scripts = {
        "works": f"cp {tmp_path}/record $2",
        "slow": f"echo $$ > {tmp_path}/pid; exec sleep 60",
    }
    measured = _rounds(tmp_path, monkeypatch, scripts, lambda: 99, stop)
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    measured.run(Console(quiet=True))
    assert stop.code == FOR_GOOD and measured.errors == {"slow": "ended by SIGTERM"}
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_figures_are_of_the_median_round_and_ratios_of_the_same_round():
    def records(*step_s: float) -> list[dict]:
        return [
            RECORD | {"round": i, "step_s": s, "tokens_per_s": 1 / s}
            for i, s in enumerate(step_s, 1)
        ]

    variants = table.summarize({"first": records(0.5, 0.4, 0.6), "second": records(0.25, 0.25)}, {})
    assert variants["first"]["step_s"] == 0.5 and variants["first"]["tokens_per_s"] == 2
    assert variants["second"]["ratio"] == pytest.approx({"median": 1.8, "min": 1.6, "max": 2.0})


def test_parts_stand_beside_their_floors_and_what_inductor_counted():
    """That is of the round with the emptiest cache; nothing for a variant that was not compiled."""
    machine = {"name": "NVIDIA H200", "type": "cuda", "packages": {"torch": "2.13.0"}}
    recipe = recipes.load("tensorwise_fp8_compiled", ["h200"])
    floor = table.floors(recipe, "h200")
    assert set(floor) == set(PARTS) and 0 < floor[MATMUL_FP8] < 0.5
    cold = RECORD | {
        "round": 1,
        "compiled_graphs": [{"kernels": 30, "bytes": 2e9}, {"kernels": 39, "bytes": 3.74e9}],
    }
    variants = table.summarize(
        {"eager": [RECORD | {"round": 1}], "tensorwise": [cold, RECORD | {"round": 2}]}, {}
    )
    shown = _tables(
        {"machine": machine, "variants": variants}, {"eager": recipe, "tensorwise": recipe}
    )
    (counted,) = (line.split() for line in shown.splitlines() if " GB" in line)
    assert counted[0] == "2" and counted[-3:] == ["69,", "5.74", "GB"]
    measured, least = shown.splitlines()[-3:-1]
    assert measured.split()[0] == "2" and measured.split()[-1] == "500.0"
    milliseconds = [f"{seconds * 1e3:,.1f}" for seconds in (*floor.values(), sum(floor.values()))]
    assert least.split() == ["floor", *milliseconds]


@pytest.mark.slow
def test_two_recipes_are_measured_for_real(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        rounds, "turns", lambda variants, took, left: ((1, variant) for variant in variants)
    )  # once
    fp8 = "tensorwise_fp8_compiled+compile.enable=false"
    small = [
        "training.seq_len=64",
        "training.local_batch_size=1",
        "--overlay",
        "cpu",
        "--steps",
        "13",
    ]
    assert (
        bench.main(["baseline", fp8, *small, "--budget", "300", "--out", str(tmp_path / "out")])
        == 0
    )
    written = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert written["machine"]["name"] == device.name() and list(written["variants"]) == [
        "baseline",
        fp8,
    ]
    for label, variant in written["variants"].items():
        parts = variant["parts"]
        assert sum(parts.values()) == pytest.approx(variant["step_s"])
        assert (parts[MATMUL_FP8] > 0) == (parts[CASTS] > 0) == (label == fp8)
        assert all(
            parts[part] > 0 for part in (MATMUL_BF16, ATTENTION, ELEMENTWISE, LOSS, OPTIMIZER)
        )
        assert set(parts) == {*PARTS, IDLE} and parts[IDLE] < 0.9 * variant["step_s"]
        (only,) = variant["rounds"]
        assert len(only["steady_step_s"]) == 3 and len(only["profiled_step_s"]) == 2
        assert variant["tokens_per_s"] == pytest.approx(64 / variant["step_s"], rel=0.05)
        assert only["warm_up"]["s"] > sum(only["steady_step_s"]) / 3
    kernels = json.loads((tmp_path / "out" / "1-baseline.round1.json").read_text())["kernels"]
    products = next(kernel for kernel in kernels if kernel["name"] == "aten::mm")
    # of 29 linear layers a step: the step in which the profiler starts is not recorded
    assert products["part"] == MATMUL_BF16 and products["calls"] == 3 * 29
    assert fp8 in capsys.readouterr().out
