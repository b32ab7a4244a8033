"""Small benchmarks: how they take time, what they print, and how they end when a run fails."""

import sys

import pytest
import torch

from experiments import benchmark_loop, benchmark_rates, benchmark_warm_start
from experiments.config import recipes
from models import device, float8, llama


def test_rates_are_of_many_calls_in_a_row(monkeypatch, capsys):
    calls = []

    def a_millisecond_each(do, times=1) -> float:
        do()
        calls.append(times)
        return times / 1000

    monkeypatch.setattr(device, "seconds", a_millisecond_each)
    monkeypatch.setitem(benchmark_rates.COPIED, device.TYPE, 1 << 20)
    assert benchmark_rates.main(["--overlay", "cpu", "--rounds", "3", "training.seq_len=64"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "/s" in line]
    in_rounds = [times for times in calls if times > 5]
    assert len(in_rounds) == 3 * len(lines) and all(
        0.05 <= times / 1000 < 0.06 for times in in_rounds
    )
    copied = next(line for line in lines if line.startswith("copy"))
    assert float(copied.split()[1]) == round(2 * (1 << 20) / 1e-3 / 1e12, 3) and copied.endswith(
        "1.000 ms"
    )
    fp8, bf16 = (sum(line.startswith(name) for line in lines) for name in ("FP8", "bf16"))
    assert fp8 == bf16 * (float8.matmul(device.TYPE, "tensorwise", False).how != float8.EMULATED)


def test_a_run_that_fails_ends_the_measurement_of_warm_starts_with_a_sentence(
    tmp_path, monkeypatch, capsys
):
    fails = tmp_path / "python"
    fails.write_text("#!/bin/sh\nexit 3\n")
    fails.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fails))
    assert benchmark_warm_start.main(["tensorwise_fp8_compiled", "--overlay", "cpu"]) == 3
    assert (
        "error: the run of tensorwise_fp8_compiled failed with exit code 3"
        in capsys.readouterr().err
    )


def test_the_bare_loop_trains_the_runs_model(capsys):
    assert benchmark_loop.main(["10"]) == 2 and "not steady" in capsys.readouterr().err
    config = recipes.load("baseline", ["cpu"], ["training.seq_len=64"]).config
    model = llama.Llama(llama.FLAVORS["cpu"]).to(device.TYPE, torch.bfloat16)
    step = benchmark_loop.bare_loop(model, config)
    assert step() > step() > 0


@pytest.mark.gpu
def test_the_optimizer_is_measured(capsys):
    assert benchmark_rates.main(["--overlay", "cpu", "--rounds", "2"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("AdamW")]
    assert len(rows) == 3
