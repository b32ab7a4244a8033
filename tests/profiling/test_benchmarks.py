"""Small benchmarks: how they take time, what they print, and how they end when a run fails."""

import sys

import pytest
import torch

from experiments.benchmarks import loop, rates, warm_start
from experiments.config import recipes
from experiments.corpus.tokens import prepare
from models import device, llama


def test_rates_of_matmuls_attention_and_copies(monkeypatch, capsys):
    monkeypatch.setattr(rates, "median_seconds", lambda call: call() is None or 1e-3)
    monkeypatch.setitem(rates.COPIED, device.TYPE, 1 << 20)
    assert rates.main(["--overlay", "cpu", "training.seq_len=64"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if " x " in line or "/s" in line]
    assert lines.pop().split() == ["copy", f"{2 * (1 << 20) / 1e9:.3f}", "TB/s", "1.000", "ms"]
    for words in ("bf16 input gradient", "FP8 tensorwise weight", "FP8 rowwise output", "flash"):
        assert any(words in line for line in lines)


def test_a_run_that_fails_ends_the_measurement_of_warm_starts(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(SystemExit):
        warm_start.main(["tensorwise_fp8_compiled", "--overlay", "cpu"])


def test_the_bare_loop_trains_the_runs_model():
    config = recipes.load("baseline", ["cpu"], ["training.seq_len=64"]).config
    torch.manual_seed(0)
    model = llama.Llama(llama.FLAVORS["cpu"]).to(device.TYPE, torch.bfloat16)
    step = loop.bare_loop(model, config, prepare(config))
    losses = [step() for _ in range(8)]
    assert losses[0] > losses[-1] > 0
