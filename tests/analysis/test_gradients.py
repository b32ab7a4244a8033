"""Gradients in FP8: the tables and the figure, of planted records."""

import json

import pandas as pd
import pytest

from analysis import gradients, plots


@pytest.fixture
def kept(tmp_path):
    """Way k loses k dB with each further rank."""
    rows = [
        {"ranks": n, "how": how, "snr_db": 40.0 - k * n}
        for k, how in enumerate(gradients.WAYS)
        for n in (2, 8)
    ]
    (tmp_path / "sums.json").write_text(json.dumps({"sums": rows}))
    return tmp_path / "sums.json"


def test_sums_by_way_and_ranks(kept):
    table = gradients.decibels(kept)
    assert list(table.index) == list(gradients.WAYS.values()) and list(table[8]) == [
        40,
        32,
        24,
        16,
        8,
        0,
    ]
    (axes,) = plots.gradient_sums(gradients.sums(kept)).axes
    lines = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert lines[gradients.WAYS["auto"]] == [34, 16] and len(lines) == 6


def test_bytes_and_losses_beside_bf16():
    runs = pd.DataFrame({
        "recipe": ["baseline_compiled", "fp8_gradients"], "gathered_bytes": 2e6, "reduced_bytes": [8e6, 2e6],
    })  # fmt: skip
    assert list(gradients.sent(runs).loc["fp8_gradients"]) == [2, 2, 4]
    steps = [("baseline_compiled", 1, 5.0), ("baseline_compiled", 2, 4.0), ("fp8_gradients", 1, 5.001),
             ("fp8_gradients", 2, 3.998), ("fp8_gradients", 3, 9.0)]  # fmt: skip
    windows = pd.DataFrame(steps, columns=["recipe", "step", "loss"]).assign(seed=7)
    assert (
        gradients.apart(windows)
        == "In 2 log windows the losses differ by at most 0.0020, at step 2 of seed 7."
    )
