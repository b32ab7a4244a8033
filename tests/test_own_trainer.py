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


def tiny(head: str = "output", sides: tuple[int, int] = (32, 64), tied: bool = False) -> nn.Module:
    """An embedding, two linear layers in a block, a head."""
    dim, width = sides
    block = nn.Sequential(nn.Linear(dim, width, bias=False), nn.ReLU(), nn.Linear(width, dim))
    parts = {"embedding": nn.Embedding(16, dim), "layers": nn.Sequential(block)}
    last = nn.Linear(dim, 16)
    if tied:
        last.weight = parts["embedding"].weight
    return nn.Sequential(OrderedDict(parts, **{head: last}))


def tokens(count: int):
    """A loss over so many tokens."""
    return lambda model: model(torch.arange(count) % 8).square().mean()


def run(lines: str = LINES, count: int = 16, **model) -> dict:
    names = {"model": tiny(**model), "loss_of": tokens(count)}
    exec(lines, names)
    return names


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("head", ["output", "lm_head", "embed_out"])
def test_the_lines_train_in_fp8_and_leave_the_head_in_bf16(head, tied):
    """Whatever the head is called, once its name is there."""
    names = run(LINES.replace('stays = ["output"]', f"stays = [{head!r}]"), head=head, tied=tied)
    assert names["converted"] == {"layers.0.0", "layers.0.2"} and len(names["calls"]) == 6
    assert type(getattr(names["model"], head)) is nn.Linear


@pytest.mark.parametrize("head", ["lm_head", "embed_out", "outputs"])
def test_a_head_of_another_name_is_noticed_and_the_layers_are_named(head):
    with pytest.raises(AssertionError, match=f"output is none of .*{head}"):
        run(head=head)


def test_a_head_within_another_module_is_noticed():
    names = {"model": nn.Sequential(OrderedDict(model=tiny())), "loss_of": tokens(16)}
    with pytest.raises(AssertionError, match="output is none of .*model.output"):
        exec(LINES, names)


@pytest.mark.parametrize("count", [15, 24])
def test_tokens_that_16_does_not_divide_are_noticed(count):
    with pytest.raises(AssertionError, match="tokens"):
        run(count=count)


@pytest.mark.parametrize("sides", [(32, 40), (40, 64)])
def test_sides_that_16_does_not_divide_are_named(sides):
    with pytest.raises(AssertionError, match="layers.0.0.*layers.0.2"):
        run(sides=sides)


@pytest.mark.parametrize(
    "good, bad",
    [
        ('stays = ["output"]', 'stays = ["*"]'),  # leaves no layer
        ("name in in_fp8)", "False)"),  # converts no layer
        ("name in in_fp8)", 'name != "layers.0.0")'),  # converts others
        ("AdamW(model.parameters()", "AdamW(model.output.parameters()"),  # steps the head alone
    ],
)
def test_the_lines_notice(good, bad):
    assert good in LINES
    with pytest.raises(AssertionError):
        run(LINES.replace(good, bad))
