"""Small benchmarks: how they take time, what they print, and how they end when a run fails."""

import sys

import torch

from experiments.benchmarks import loop, rates, warm_start
from experiments.config import recipes
from experiments.corpus.tokens import prepare
from models import device, float8, llama


def test_rates_are_of_many_calls_in_a_row(monkeypatch, capsys):
    calls = []

    def a_millisecond_each(do, times=1) -> float:
        do()
        calls.append(times)
        return times / 1000

    monkeypatch.setattr(device, "seconds", a_millisecond_each)
    monkeypatch.setitem(rates.COPIED, device.TYPE, 1 << 20)
    assert rates.main(["--overlay", "cpu", "--rounds", "3", "training.seq_len=64"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "/s" in line]
    in_rounds = [times for times in calls if times > 5]
    assert in_rounds == [in_rounds[0]] * 3 * len(lines) and 0.05 <= in_rounds[0] / 1000 < 0.06
    copied = next(line for line in lines if line.startswith("copy"))
    assert float(copied.split()[1]) == round(2 * (1 << 20) / 1e-3 / 1e12, 3)
    fp8, bf16 = (sum(line.startswith(name) for line in lines) for name in ("FP8", "bf16"))
    emulated = float8.matmul(device.TYPE, "tensorwise", False).how == float8.EMULATED
    assert fp8 == (0 if emulated else bf16)


def test_a_run_that_fails_ends_the_measurement_of_warm_starts(tmp_path, monkeypatch, capsys):
    fails = tmp_path / "python"
    fails.write_text("#!/bin/sh\nexit 3\n")
    fails.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fails))
    assert warm_start.main(["tensorwise_fp8_compiled", "--overlay", "cpu"]) == 3
    assert "tensorwise_fp8_compiled failed with exit code 3" in capsys.readouterr().err


def test_the_bare_loop_trains_the_runs_model(fails):
    assert "not steady" in fails(loop.main, "10")
    config = recipes.load("baseline", ["cpu"], ["training.seq_len=64"]).config
    model = llama.Llama(llama.FLAVORS["cpu"]).to(device.TYPE, torch.bfloat16)
    step = loop.bare_loop(model, config, prepare(config))
    assert step() > step() > 0
