"""Pairs: training speeds in bf16 and FP8 that others measured side by side, in speedups.yaml."""

import re
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, computed_field

from extensions.decide.asked import Model, Number, Whole
from models.gpus import find

HERE = Path(__file__).parent
SCALINGS = ("tensorwise", "rowwise")  # the recipes'


class Pair(BaseModel, extra="allow", frozen=True):
    """One pair; 0 is not known. speedups.yaml explains its keys, and those that no code reads."""

    name: str
    model: str
    sizes: Model | None
    kind: Literal["dense", "experts", "lora", "part"]
    stack: Literal["torchao", "torchao eager", "Transformer Engine", "hand-written", "XLA", "other"]
    scaling: str
    gpu: Annotated[str | None, BeforeValidator(find)]
    source: str
    fairness: Literal["clean", "minor", "doubtful"]
    recompute: Literal["none", "half", "full"] = "none"
    freeze: tuple = ()
    gpus: Whole = 1
    tensor_parallel: Whole = 1
    batch: Number = 0
    sequence: Whole = 0
    billions: Number = 0
    unit: str = ""
    lower_is_better: bool = False
    bf16: Number = 0
    fp8: Number = 0
    ratio: Number = 0

    @computed_field
    @property
    def speed_up(self) -> float:
        """FP8's speed over bf16's."""
        if self.ratio:
            return self.ratio
        return self.bf16 / self.fp8 if self.lower_is_better else self.fp8 / self.bf16

    @property
    def origin(self) -> str:
        """What is left out together: a repository, or a site's page."""
        return re.match(r"github\.com/[^/, ]+/[^/, ]+|[^, ]+", self.source)[0]

    @property
    def calibrates(self) -> bool:
        """Whether it is fair, and as the recipes are; these are not split by tensor parallelism."""
        alike = (self.stack, self.kind, self.tensor_parallel) == ("torchao", "dense", 1)
        known = self.sizes and self.batch and self.sequence and self.gpu
        return alike and known and self.scaling in SCALINGS and self.fairness != "doubtful"


@cache
def read() -> list[Pair]:
    """Read all pairs."""
    text = (HERE / "speedups.yaml").read_text(encoding="utf-8")
    content = yaml.load(text, Loader=yaml.CSafeLoader)
    sizes = content["models"]
    return [Pair(sizes=sizes.get(pair["model"]), **pair) for pair in content["pairs"]]
