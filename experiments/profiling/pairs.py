"""Pairs: training speeds in bf16 and FP8 that others measured side by side.

`results/published/speedups.yaml` has them, with the sizes of their models.
"""

from functools import cache
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt, model_validator

from experiments.config.recipes import ROOT
from models.flops import Sizes
from models.gpus import chip, find

PUBLISHED = ROOT / "results" / "published" / "speedups.yaml"


class Pair(BaseModel):
    """One pair of figures. The head of the file explains the fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    model: str
    sizes: Sizes | None = None  # of the model, where the file has them
    billions: PositiveFloat | None = None  # parameters
    kind: Literal["dense", "experts", "lora", "part"]
    stack: Literal["torchao", "torchao eager", "Transformer Engine", "hand-written", "XLA", "other"]
    scaling: Literal[
        "tensorwise", "rowwise", "delayed", "mxfp8", "blockwise", "static", "other", "not stated"
    ]
    gpu: str
    gpus: PositiveInt | None = None
    parallelism: str = ""
    tensor_parallel: PositiveInt = 1
    context_parallel: PositiveInt = 1
    batch: PositiveFloat | None = None
    sequence: PositiveInt | None = None
    passes: PositiveInt = 1
    assumed: tuple[str, ...] = ()
    recompute: Literal["none", "half", "full"] | None = None
    compile: str | None = None
    software: str | None = None
    matmuls: Literal[2, 3] = 3
    left_out: tuple[str, ...] = ()
    head_fp8: bool = False
    all_gather: str | None = None
    unit: str | None = None
    bf16: PositiveFloat | None = None
    fp8: PositiveFloat | None = None
    lower_is_better: bool = False
    ratio: PositiveFloat | None = None
    source: str
    place: str
    date: str | None = None
    confidence: Literal["a", "b", "c"]
    fairness: Literal["clean", "minor", "doubtful"]
    note: str = ""

    @model_validator(mode="after")
    def _figures(self) -> "Pair":
        both = self.bf16 is not None and self.fp8 is not None and self.unit is not None
        if both == (self.ratio is not None):
            raise ValueError("give bf16 and fp8 with their unit, or else their ratio")
        return self

    @property
    def speed_up(self) -> float:
        """FP8's speed over bf16's."""
        if self.ratio:
            return self.ratio
        return self.bf16 / self.fp8 if self.lower_is_better else self.fp8 / self.bf16

    @property
    def gpu_key(self) -> str | None:
        """The GPU's key in `models.gpus.GPUS`."""
        return find(self.gpu)

    @property
    def chip(self) -> str | None:
        """The chip of the GPU, as `models.gpus.CHIPS` names it."""
        return chip(self.gpu_key)

    @property
    def group(self) -> tuple:
        """What is left out together: pairs of one model, stack and release."""
        return (self.model, self.stack, self.software or self.source)

    @property
    def alike(self) -> str:
        """What pairs have in common that differ in nothing but the number of GPUs."""
        figures = {"name", "gpus", "bf16", "fp8", "ratio", "note", "passes"}
        return self.model_dump_json(exclude=figures)

    @property
    def bf16_s(self) -> float | None:
        """Seconds of a step in bf16 on one GPU, where they are known."""
        if self.unit != "tok/s/gpu":
            return None
        tokens = self.batch * self.sequence * self.passes / self.context_parallel
        return tokens / self.tensor_parallel / self.bf16

    @property
    def calibrates(self) -> bool:
        """Whether the time model may be fitted to the pair: a fair one whose step is known, of
        matmuls as the recipes have them."""
        known = self.sizes and self.sequence and self.batch and self.gpu_key
        alike = self.stack in ("Transformer Engine", "hand-written")
        if self.stack == "torchao":
            alike = self.scaling in ("tensorwise", "rowwise")
        return bool(known and alike and self.kind == "dense" and self.fairness != "doubtful")


@cache
def read() -> list[Pair]:
    """Read all pairs."""
    content = yaml.load(PUBLISHED.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    sizes = {name: Sizes(**entry) for name, entry in content["models"].items()}
    return [Pair(**entry, sizes=sizes.get(entry["model"])) for entry in content["pairs"]]
