"""Scalings of FP8 that torchao has not, and gradients of outputs in either FP8 format.

Scalings differ in which values share a scale:

* `delayed`: all of a tensor, by the largest values of the last steps, so that a cast need not first
  find the largest value.
* `blockwise`, DeepSeek-V3's (arXiv 2412.19437): 1 x 128 values of inputs and gradients, and 128 x
  128 of weights.
* `mxfp8`, OCP's format: 32 values, by a power of two that is rounded so that nothing saturates
  (arXiv 2506.08027). `mxfp8_ocp` rounds as the OCP text does, and saturates up to an eighth of the
  range.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from experiments.records.run import AtLeast1

ALL = 2**30  # more than any matrix has rows or columns
HISTORY = 16  # steps
FLOAT8 = "quantize.linear.float8"


class Scaling(NamedTuple):
    """Which values of an operand share a scale."""

    values: tuple[int, int]  # of inputs and gradients: so many rows x values along the sum
    weights: tuple[int, int]  # the same of weights
    gradients: str = "e4m3"  # FP8 format of gradients of outputs; inputs and weights are e4m3
    scale: str = "float32"  # how a scale is made of the largest magnitude: `round_blocks`

    @property
    def by_blocks(self) -> bool:
        """True if operands are rounded to FP8 by `round_blocks` and multiplied in float32,
        everywhere: blocks have no matmul here."""
        return self.scale != "delayed"


SCALINGS = {
    "delayed": Scaling((ALL, ALL), (ALL, ALL), gradients="e5m2", scale="delayed"),
    "blockwise": Scaling((1, 128), (128, 128)),
    "mxfp8": Scaling((1, 32), (1, 32), scale="RCEIL"),
    "mxfp8_ocp": Scaling((1, 32), (1, 32), scale="FLOOR"),
}


@dataclass
class Keys:
    """The section `scalings` of a recipe."""

    name: Literal[tuple(SCALINGS)] | None = None
    """How operands are scaled, in place of `tensorwise`; null: as torchao does."""

    history: AtLeast1 | None = None
    """Steps whose largest values give the scales of `delayed`; null: 16."""

    gradients: Literal["e4m3", "e5m2"] | None = None
    """FP8 format of gradients of outputs; null: e5m2 where a scale is a tensor's, else e4m3."""


def contradictions(config) -> Iterator[tuple[str, str]]:
    """Find keys that a scaling does not go with."""
    keys, name = config.quantize.linear.float8, config.scalings.name
    if keys.recipe_name is None:
        yield f"{FLOAT8}.recipe_name", "is null; set it, or leave out the section scalings"
    elif name and (keys.recipe_name != "tensorwise" or keys.enable_fsdp_float8_all_gather):
        yield (
            "scalings.name",
            f"takes the place of {FLOAT8}.recipe_name: tensorwise without FP8 all-gather; set that",
        )
    if name and SCALINGS[name].by_blocks and not keys.emulate:
        yield f"{FLOAT8}.emulate", f"should be true: {name} has no matmul here"


# ---- hooks ----


def convert(model, plan) -> None:
    """Swap linear layers for torchao's as the core does, and these for the scaling's."""
    from extensions.scalings.layer import ScaledLinear, with_gradients
    from models import float8

    float8.convert_linears(model, plan)
    keys = plan.config.scalings
    for layer in float8.converted_modules(model).values():
        if keys.name:
            scaling = SCALINGS[keys.name]
            layer.__class__ = ScaledLinear  # torchao's conversion knows no class but its own
            scaling = scaling._replace(gradients=keys.gradients or scaling.gradients)
            layer.begin(scaling, keys.history or HISTORY)
        elif keys.gradients:
            layer.config = with_gradients(layer.config, keys.gradients)


def before_step(trainer, step: int) -> None:
    """Make the largest values of the step before this one the last step's."""
    from extensions.scalings.layer import end_step

    end_step(trainer.model_parts[0], trainer.all_reduce)


def notes(trainer) -> list[str]:
    """Say how operands are scaled, if not as the records of FP8 name it."""
    name = trainer.job_config.scalings.name
    return [f"FP8 scales are {name}, in place of tensorwise"] if name else []
