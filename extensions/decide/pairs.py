"""Pairs: training speeds in bf16 and FP8 that others measured side by side, in speedups.yaml."""

from functools import cache
from pathlib import Path

import yaml

from extensions.decide.step import Training
from models.flops import Sizes
from models.gpus import find

HERE = Path(__file__).parent


@cache
def read() -> list[Training]:
    """Read all pairs, with FP8's speed over bf16's as `speed_up`; speedups.yaml explains the rest.

    `sizes` and `gpu` are None where they are not known, numbers are 0.
    """
    text = (HERE / "speedups.yaml").read_text(encoding="utf-8")
    content = yaml.load(text, yaml.CSafeLoader)
    pairs = [Training(**content["absent"] | pair) for pair in content["pairs"]]
    for pair in pairs:
        sizes = content["models"].get(pair.model)
        pair.sizes = sizes and Sizes(**sizes)
        pair.gpu = find(pair.gpu)
        pair.speed_up = pair.ratio or pair.fp8 / pair.bf16
        if pair.lower_is_better:
            pair.speed_up = 1 / pair.speed_up
    return pairs
