"""The lines of docs/own_trainer.md run as they stand, and notice what they are there to notice."""

import re
from collections import OrderedDict
from functools import partial

import pytest
import torch
from torch import nn

from tests.processes import ROOT

LINES = re.search(r"```python\n(.*?)```", (ROOT / "docs/own_trainer.md").read_text(), re.DOTALL)[1]


@pytest.fixture(autouse=True)
def without_inductor(monkeypatch):
    """Its code would take half a minute, and is that of tests/training/test_gradients.py."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))


def tiny() -> nn.Module:
    """An embedding, two linear layers in a block, a head."""
    block = nn.Sequential(nn.Linear(32, 64, bias=False), nn.ReLU(), nn.Linear(64, 32))
    parts = {"embedding": nn.Embedding(8, 32), "layers": nn.Sequential(block)}
    return nn.Sequential(OrderedDict(parts, output=nn.Linear(32, 16)))


def loss_of(model):
    return model(torch.arange(16) % 8).square().mean()


def test_the_lines_train_in_fp8():
    said = {"model": tiny(), "loss_of": loss_of}
    exec(LINES, said)
    assert (said["converted"], said["calls"]) == (2, 6)


@pytest.mark.parametrize(
    "good, bad",
    [
        ("% 16 == 0", "% 16 == 7"),  # converts no layer
        ("AdamW(model.parameters()", "AdamW(model.output.parameters()"),  # steps the head alone
    ],
)
def test_the_lines_notice(good, bad):
    assert good in LINES
    with pytest.raises(AssertionError):
        exec(LINES.replace(good, bad), {"model": tiny(), "loss_of": loss_of})
