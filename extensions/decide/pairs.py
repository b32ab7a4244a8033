"""Pairs: training speeds in bf16 and FP8 that others measured side by side, in speedups.yaml."""

import re
from pathlib import Path

import yaml

from extensions.decide.step import BANDWIDTH, Setting
from models.flops import Sizes
from models.gpus import chip, find

HERE = Path(__file__).parent
CASTS_KNOWN = ("torchao", "Transformer Engine", "hand-written")


def read(path: Path = HERE / "speedups.yaml") -> list[dict]:
    """Read all pairs, with `sizes` of their model, `speed_up`, `origin`, and the GPU's `chip`."""
    content = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    sizes = {name: Sizes(**entry) for name, entry in content["models"].items()}
    for pair in content["pairs"]:
        pair["sizes"] = sizes.get(pair["model"])
        pair["speed_up"] = speed_up(pair)
        pair["chip"] = chip(find(pair["gpu"]))
        pair["origin"] = origin(pair["source"])
    return content["pairs"]


def speed_up(pair: dict) -> float:
    """FP8's speed over bf16's."""
    if "ratio" in pair:
        return pair["ratio"]
    slower, faster = pair["bf16"], pair["fp8"]
    return slower / faster if pair.get("lower_is_better") else faster / slower


def origin(source: str) -> str:
    """Shorten a source to what is left out together: a repository, or a site's page."""
    return re.match(r"(github\.com/[^/, ]+/[^/, ]+|[^, ]+)", source)[1]


def calibrates(pair: dict) -> bool:
    """Whether the time model may be fitted to a pair: a fair one of a dense model whose step and
    casts are known. The recipes have no tensor parallelism, which torchao's pairs show badly."""
    known = pair["sizes"] and pair.get("batch") and pair.get("sequence") and pair["chip"]
    ours = pair["stack"] != "torchao" or (
        pair["scaling"] in ("tensorwise", "rowwise") and pair.get("tensor_parallel", 1) == 1
    )
    fair = pair["kind"] == "dense" and pair["fairness"] != "doubtful"
    return bool(known and ours and fair and pair["stack"] in CASTS_KNOWN)


def setting(pair: dict) -> Setting:
    """What a pair trained, and where."""
    same = ("sizes", "batch", "sequence", "passes", "recompute", "stack", "matmuls")
    same += ("tensor_parallel", "context_parallel")
    left_out = tuple(pair.get("left_out", ()))
    return Setting(
        gpu=find(pair["gpu"]),
        gpus=pair.get("gpus") or 1,
        rowwise=pair["scaling"] == "rowwise",
        left_out=left_out if pair.get("head_fp8") else (*left_out, "output"),
        bandwidth=BANDWIDTH.get(pair["gpu"]),
        **{name: pair[name] for name in same if name in pair},
    )
