"""Scalings of FP8 that torchao lacks, and gradients of outputs in either FP8 format.

Scalings differ in which values share a scale:

* `delayed`: all of a tensor, by the largest values of the last steps, so that a cast does not have
  to find the largest value first.
* `blockwise`, DeepSeek-V3's (arXiv 2412.19437): 1 x 128 values of inputs and gradients, and 128 x
  128 of weights.
* `mxfp8`, OCP's format: 32 values, by a power of two that is rounded so that nothing saturates
  (arXiv 2506.08027). `mxfp8_ocp` rounds as the OCP text does, and saturates up to an eighth of the
  range.
* `torchao_mxfp8`: the same by torchao's code, on the FP8 units of Blackwell (mxfp8.py).
* `nvfp4`, NVIDIA's format of 4 bits: 16 values, of weights 16 x 16 (nvfp4.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from experiments.records.run import AtLeast1

ALL = 2**30  # more than any matrix has rows or columns
HISTORY_STEPS = 16
FLOAT8 = "quantize.linear.float8"
TORCHAO_MXFP8 = "torchao_mxfp8"


class Scaling(NamedTuple):
    """Which values of an operand share a scale."""

    block: tuple[int, int]  # of inputs and gradients: rows x values along the sum
    weight_block: tuple[int, int]
    gradient_format: str = "e4m3"  # of gradients of outputs; inputs and weights are e4m3
    scale: str = "float32"  # how the largest magnitude gives a scale: see `_cast_operand`

    @property
    def has_blocks(self) -> bool:
        """True if operands are rounded and multiplied in float32, everywhere: blocks have no
        matmul here."""
        return self.scale != "delayed"


SCALINGS = {
    "delayed": Scaling((ALL, ALL), (ALL, ALL), gradient_format="e5m2", scale="delayed"),
    "blockwise": Scaling((1, 128), (128, 128)),
    "mxfp8": Scaling((1, 32), (1, 32), scale="RCEIL"),
    "mxfp8_ocp": Scaling((1, 32), (1, 32), scale="FLOOR"),
    "nvfp4": Scaling((1, 16), (16, 16), gradient_format="e2m1", scale="NVFP4"),
}


@dataclass
class Section:
    """The section `scalings` of a recipe."""

    name: Literal[(*SCALINGS, TORCHAO_MXFP8)] | None = None
    """How operands are scaled, in place of `tensorwise`; null: as torchao does."""

    history: AtLeast1 | None = None
    """Steps whose largest values give the scales of `delayed`; null: 16."""

    gradients: Literal["e4m3", "e5m2"] | None = None
    """FP8 format of gradients of outputs; null: e5m2 where a scale is a tensor's, else e4m3."""


def contradictions(config) -> Iterator[tuple[str, str]]:
    """Find keys that a scaling does not go with."""
    float8_config = config.quantize.linear.float8
    name = config.scalings.name
    is_tensorwise = float8_config.recipe_name == "tensorwise"
    if float8_config.recipe_name is None:
        yield f"{FLOAT8}.recipe_name", "is null; set it, or leave out the section scalings"
    elif name and (not is_tensorwise or float8_config.enable_fsdp_float8_all_gather):
        yield (
            "scalings.name",
            f"takes the place of {FLOAT8}.recipe_name: tensorwise without FP8 all-gather; set that",
        )
    if name in SCALINGS and SCALINGS[name].has_blocks and not float8_config.emulate:
        yield f"{FLOAT8}.emulate", f"should be true: {name} has no matmul here"
    if name in ("nvfp4", TORCHAO_MXFP8) and config.scalings.gradients:
        yield "scalings.gradients", f"should be null: {name} has one format for gradients"
    if name == TORCHAO_MXFP8 and config.training.mixed_precision_param != "bfloat16":
        yield "training.mixed_precision_param", "should be bfloat16, which torchao casts to MXFP8"


# ---- hooks ----


def choose_matmul(config, matmul):
    """Choose how FP8 matrices are multiplied here; `matmul` is the core's choice."""
    if config.scalings.name != TORCHAO_MXFP8:
        return matmul
    from extensions.scalings.mxfp8 import choose_mxfp8_matmul

    return choose_mxfp8_matmul(config.quantize.linear.float8.emulate)


def check(plan) -> None:
    """Refuse sizes that torchao's MXFP8 cannot multiply."""
    if plan.config.scalings.name == TORCHAO_MXFP8:
        from extensions.scalings.mxfp8 import check_sizes

        check_sizes(plan)


def convert(model, plan) -> None:
    """Swap linear layers for torchao's as the core does, and those for the scaling's."""
    from models import float8

    float8.convert_linears(model, plan)
    for layer in float8.converted_modules(model).values():
        convert_layer(layer, plan.config.scalings, plan.fp8.emulated)


def convert_layer(layer, section: Section, is_emulated: bool) -> None:
    """Make torchao's FP8 layer one of a scaling."""
    from extensions.scalings.layer import ScaledLinear, set_gradient_format

    # torchao's conversion takes no other class, so the class is set afterwards.
    if section.name == TORCHAO_MXFP8:
        from extensions.scalings.mxfp8 import MXFP8Linear

        layer.__class__ = MXFP8Linear
        layer.init_matmul(is_emulated)
    elif section.name:
        scaling = SCALINGS[section.name]
        if section.gradients:
            scaling = scaling._replace(gradient_format=section.gradients)
        layer.__class__ = ScaledLinear
        layer.init_scaling(scaling, section.history or HISTORY_STEPS)
    elif section.gradients:
        layer.config = set_gradient_format(layer.config, section.gradients)


def before_step(trainer, step: int) -> None:
    """Move the largest values of the last step into the history."""
    from extensions.scalings.layer import end_step

    end_step(trainer.model_parts[0], trainer.all_reduce)


def check_profile(proof, profiler) -> None:
    """Prove the block scales of matmuls in MXFP8, where they are not emulated."""
    if proof.plan.config.scalings.name == TORCHAO_MXFP8 and not proof.fp8.emulated:
        from extensions.scalings.mxfp8 import prove_block_scales

        prove_block_scales(proof, profiler)


def metrics(trainer) -> dict[str, float]:
    """Say how many casts of the last step saturated; nothing without delayed scales."""
    from extensions.scalings.layer import measure_saturation

    return measure_saturation(trainer.model_parts[0], trainer.all_reduce)


def name_scaling(config) -> str:
    """Name the scaling, and the format of gradients where it is not the scaling's own."""
    section = config.scalings
    name = section.name or config.quantize.linear.float8.recipe_name
    return f"{name} ({section.gradients} gradients)" if section.gradients else name


def notes(trainer) -> list[str]:
    """Say how operands are scaled, where the records of FP8 name another scaling."""
    name = trainer.job_config.scalings.name
    if not name:
        return []
    return [f"FP8 scales are {name}, in place of tensorwise"]
