"""Pairs: training speeds in bf16 and FP8 that others measured side by side, in speedups.yaml."""

from functools import cache
from pathlib import Path
from types import SimpleNamespace

import yaml

from models.gpus import chip, find

HERE = Path(__file__).parent


@cache
def read() -> list[SimpleNamespace]:
    """Read all pairs, with FP8's speed over bf16's as `speed_up`; speedups.yaml explains the rest.

    `gpu` is None where it is not known, numbers are 0.
    """
    text = (HERE / "speedups.yaml").read_text(encoding="utf-8")
    content = yaml.load(text, yaml.CSafeLoader)
    pairs = [SimpleNamespace(**content["absent"] | pair) for pair in content["pairs"]]
    for pair in pairs:
        pair.gpu = find(pair.gpu)
        pair.chip = chip(pair.gpu)
        pair.speed_up = pair.ratio or pair.fp8 / pair.bf16
        if pair.lower_is_better:
            pair.speed_up = 1 / pair.speed_up
    return pairs
