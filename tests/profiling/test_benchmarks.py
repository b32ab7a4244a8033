"""Small benchmarks: how they take time, what they print, and how they end when a run fails."""

import sys

import pytest

from experiments import benchmark_loop, benchmark_optimizer, benchmark_rates, benchmark_warm_start
from experiments.config import recipes
from models import device, float8


def test_calls_follow_one_another_without_waiting_for_the_device(monkeypatch):
    done = []
    monkeypatch.setattr(device, "synchronize", lambda: done.append("wait"))
    assert device.seconds(lambda: done.append("call"), 3) > 0
    assert done == ["wait", "call", "call", "call", "wait"]


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
    assert len(in_rounds) == 3 * len(lines) and all(0.05 <= times / 1000 < 0.06 for times in in_rounds)
    copied = next(line for line in lines if line.startswith("copy"))
    assert float(copied.split()[1]) == round(2 * (1 << 20) / 1e-3 / 1e12, 3)
    fp8 = sum(line.startswith("FP8") for line in lines)
    both = float8.product(device.TYPE, "tensorwise", False).how != float8.EMULATED
    assert fp8 == both * sum(line.startswith("bf16") for line in lines)


def test_a_run_that_fails_ends_the_measurement_of_warm_starts_with_a_sentence(tmp_path, monkeypatch, capsys):
    fails = tmp_path / "python"
    fails.write_text("#!/bin/sh\nexit 3\n")
    fails.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fails))
    assert benchmark_warm_start.main(["tensorwise_fp8_compiled", "--overlay", "cpu"]) == 3
    assert "error: the run of tensorwise_fp8_compiled failed with exit code 3" in capsys.readouterr().err


def test_the_bare_loop_trains_on_the_runs_device(monkeypatch):
    """Here on a device that computes nothing: everything gets as far as reading the loss."""
    monkeypatch.setattr(device, "TYPE", "meta")
    loop = benchmark_loop.BareLoop(recipes.load("baseline", ["cpu"], ["training.seq_len=64"]).config)
    assert all(parameter.device.type == "meta" for parameter in loop.model.parameters())
    loop.optimizer.step = lambda: None  # fused, it knows real devices only
    with pytest.raises(RuntimeError, match=r"item\(\) cannot be called on meta tensors"):
        loop.step()


def test_the_optimizers_are_compared_on_a_gpu(monkeypatch, capsys):
    monkeypatch.setattr(device, "TYPE", "cpu")
    assert benchmark_optimizer.main([]) == 2
    assert "need a GPU" in capsys.readouterr().err


@pytest.mark.gpu
def test_both_optimizers_are_measured(capsys):
    assert benchmark_optimizer.main(["--overlay", "cpu", "--rounds", "2"]) == 0
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.endswith("GB/s")]
    assert sorted(rows) == 4 * ["PyTorch"] + 3 * ["models/fused_adamw.py"]
