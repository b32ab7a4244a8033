"""Pairs: training speeds in bf16 and FP8 that others measured side by side, in speedups.yaml."""

import re
from pathlib import Path

import yaml

from extensions.decide.step import work
from models.flops import Sizes
from models.gpus import chip, find

HERE = Path(__file__).parent
STACK = "torchao"  # the recipes'
SCALINGS = ("tensorwise", "rowwise")
BANDWIDTH = {"H100 96GB": 2.4e12}  # B/s of GPUs whose memory is not that of their key in GPUS


def read(path: Path = HERE / "speedups.yaml") -> list[dict]:
    """Read all pairs, with `sizes` of their model, `speed_up`, `origin`, and the GPU's `chip`."""
    content = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    for pair in content["pairs"]:
        sizes = content["models"].get(pair["model"])
        pair["sizes"] = sizes and Sizes(**sizes)
        pair["speed_up"] = speed_up(pair)
        pair["chip"] = chip(find(pair["gpu"]))
        # What is left out together: a repository, or a site's page
        pair["origin"] = re.match(r"github\.com/[^/, ]+/[^/, ]+|[^, ]+", pair["source"])[0]
    return content["pairs"]


def speed_up(pair: dict) -> float:
    """Divide FP8's speed by bf16's."""
    if "ratio" in pair:
        return pair["ratio"]
    ratio = pair["fp8"] / pair["bf16"]
    return 1 / ratio if pair.get("lower_is_better") else ratio


def calibrating(pairs: list[dict]) -> list[dict]:
    """Choose the pairs that are as the recipes are, and fair; `work` is that of their step.

    The recipes have no tensor parallelism: pairs with it gain less, in ways that sizes do not tell.
    """
    found = []
    for pair in pairs:
        alike = (pair["stack"], pair["kind"]) == (STACK, "dense") and pair["scaling"] in SCALINGS
        known = pair["sizes"] and pair["chip"] and pair.get("batch") and pair.get("sequence")
        fair = pair["fairness"] != "doubtful" and pair.get("tensor_parallel", 1) == 1
        if alike and known and fair:
            names = ("sizes", "batch", "sequence", "gpus", "recompute", "head_fp8")
            same = {name: pair[name] for name in names if name in pair}
            where = {"gpu": find(pair["gpu"]), "bandwidth": BANDWIDTH.get(pair["gpu"])}
            found.append(pair | {"work": work(**same, **where)})
    return found
