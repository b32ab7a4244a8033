"""Train linear layers in FP8: choose layers, scaling and kernel; convert the layers.

Formats. An FP8 number has 8 bits. e4m3 spends 4 of them on the exponent and 3 on the mantissa: its
largest value is 448, and rounding is off by up to 1/16. e5m2 spends 5 and 2: up to 57,344, off by
up to 1/8. bf16 (8 and 7) reaches 3e38 and is off by up to 1/256. In return FP8 units multiply twice
as fast, and an operand is half as large.

Scales. Many gradients are so small that FP8 would round them to 0. So an operand is first
multiplied by a scale that takes its largest magnitude to the format's largest value, and the
matmul's result is divided by the scales of both operands. models/scaling.py has the table of
scalings: one scale for each operand, or for each row.

Matmuls. A linear layer has three: output = input @ weight.T, gradient of the input = g @ weight,
and gradient of the weight = g.T @ input, where g is the gradient of the output. Inputs and weights
are e4m3. g is e5m2 where an operand has one scale, which needs the range, and e4m3 with scales of
rows.

Transposed operands. FP8 units want the dimension over which they sum contiguous in memory; bf16
units read either order. The three matmuls sum over input features, output features and tokens, so
each of input, weight and g is needed as it is in one matmul and transposed in another: FP8 needs a
second, transposed copy.

What stays in bf16: embedding, norms, attention, residual stream, loss and the results of matmuls;
linear layers of a class of their own; the output head, by the recipes' filter; weights, gradients
and the optimizer's state (or float32, by `training.dtype`), so every step casts the weights anew.

From a recipe's section `quantize.linear.float8` to torchao's layer:

    choose_float8      which layers, with which scaling, multiplied how: a part of a run's plan,
                       which the proof compares with the run
    convert_linears    one call of torchao, when torchtitan has built the model

Differences to torchtitan's converter:

* Without a `recipe_name` there is no FP8, and the other keys are refused; in torchtitan that is FP8
  with one scale a tensor.
* A name filter is exact (a shell pattern over the full module name) and must match something.
* Converting no layer is an error, and so is a layer whose sizes are not multiples of 16.
* Linear layers of a class of their own stay in bf16.
* FP8 all-gather goes with `recipe_name: tensorwise`.
* A CPU without the matmul for a scaling emulates it; emulated FP8 may be compiled.
"""

import math
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from models import device  # before torchtitan: see there  # isort: skip
import torch
from torch import nn
from torchao.float8 import (
    Float8LinearConfig,
    _auto_filter_for_recipe,
    convert_to_float8_training,
)
from torchao.float8.float8_linear import Float8Linear
from torchtitan.tools.logging import logger

from models.cpu_matmuls import is_onednn_slow_in_fp8
from models.errors import InputError, format_name_patterns
from models.scaling import FILTER_KEY, SCALINGS, Scaling, explain_unfit_layers, find_unfit_layers

SMALL_LAYERS_FILTER = "auto_filter_small_kn"  # torchtitan's word for: skip layers too small to gain
OPERATOR = "operator"
WITHOUT_ONEDNN = "operator without oneDNN"
EMULATED = "emulated"


# ---- choose ----


class MatmulChoice(NamedTuple):
    """How FP8 matrices are multiplied."""

    kind: str  # OPERATOR, WITHOUT_ONEDNN or EMULATED
    reason: str  # a sentence


class Float8Choice(NamedTuple):
    """FP8's changes to a model: none, by these defaults, in a recipe without FP8."""

    recipe_name: str | None = None
    scaling: Scaling | None = None  # of that name
    layers: frozenset[str] = frozenset()  # names of linear layers
    matmul: MatmulChoice | None = None
    flops_per_token: int = 0  # in FP8, forward and backward

    @property
    def emulated(self) -> bool:
        """True if matmuls round to FP8 and multiply in float32."""
        return self.matmul is not None and self.matmul.kind == EMULATED

    @property
    def casts_weight_gradient(self) -> bool:
        """True if the gradient of a weight is computed in FP8."""
        return self.scaling is not None and self.scaling.matmuls == 3


def choose_float8(model: nn.Module, float8_config) -> Float8Choice:
    """Work out what FP8 changes of a model. Raises `InputError` as `choose_layers`."""
    if float8_config.recipe_name is None:
        return Float8Choice()
    scaling = SCALINGS[float8_config.recipe_name]
    layers = choose_layers(model, float8_config.recipe_name, float8_config.filter_fqns)
    matmul = choose_matmul(scaling, float8_config.emulate)
    # A matmul of M tokens and a weight of N K elements is 2 M N K FLOPs.
    weights = sum(model.get_parameter(f"{name}.weight").numel() for name in layers)
    flops = 2 * scaling.matmuls * weights
    return Float8Choice(float8_config.recipe_name, scaling, frozenset(layers), matmul, flops)


def choose_layers(model: nn.Module, recipe_name: str, filter_fqns: list[str]) -> set[str]:
    """Choose the linear layers to convert: all plain ones not named by `filter_fqns`.

    `filter_fqns` are full module names or shell patterns over them (`output`,
    `layers.*.attention.wk`), `first_and_last_block`, `last_15_percent_of_blocks` (rounded up to
    whole blocks), or `auto_filter_small_kn`, torchao's heuristic for layers that are too small to
    gain. Raises `InputError` if a filter matches nothing, nothing is left, or a size is unfit.
    """
    linears = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    chosen_layers = {name for name, linear in linears.items() if type(linear) is nn.Linear}
    for pattern in filter_fqns:
        if pattern == SMALL_LAYERS_FILTER:
            if recipe_name == "rowwise_with_gw_hp":
                raise InputError(
                    f"torchao has no {SMALL_LAYERS_FILTER} for {recipe_name}: name the layers"
                )
            is_large_enough = _auto_filter_for_recipe(recipe_name, filter_fqns=[])
            chosen_layers = {name for name in chosen_layers if is_large_enough(linears[name], name)}
        elif pattern == "first_and_last_block":
            n_blocks = sum(1 for _ in model.get_submodule("layers").children())
            end_blocks = ("layers.0.", f"layers.{n_blocks - 1}.")
            chosen_layers = {name for name in chosen_layers if not name.startswith(end_blocks)}
        elif pattern == "last_15_percent_of_blocks":
            model_args: Any = model.model_args
            n_layers = model_args.n_layers
            first_in_bf16 = n_layers - math.ceil(0.15 * n_layers)
            last_blocks = tuple(f"layers.{i}." for i in range(first_in_bf16, n_layers))
            chosen_layers = {name for name in chosen_layers if not name.startswith(last_blocks)}
        else:
            matched_layers = {name for name in linears if fnmatchcase(name, pattern)}
            if not matched_layers:
                raise InputError(
                    f"{FILTER_KEY}: `{pattern}` matches no linear layer; it names modules in full, "
                    f"as {format_name_patterns(linears)}"
                )
            chosen_layers -= matched_layers
    if not chosen_layers:
        raise InputError(f"FP8 would convert no layer: {FILTER_KEY} leaves none of them")
    unfit_names = find_unfit_layers({name: linears[name].weight.shape for name in chosen_layers})
    if unfit_names:
        raise InputError(explain_unfit_layers(unfit_names))
    return chosen_layers


def choose_matmul(scaling: Scaling, emulate: bool) -> MatmulChoice:
    """Choose how this machine multiplies FP8 matrices; `emulate` is the recipe's key.

    A GPU multiplies with its FP8 units. A matmul that the GPU refuses fails the run; it is not
    emulated.
    """
    emulation = "operands are rounded to FP8 and multiplied in float32"
    if emulate:
        return MatmulChoice(EMULATED, f"{emulation}, as the recipe asks")
    if device.TYPE == "cuda":
        return MatmulChoice(OPERATOR, "torch._scaled_mm runs on the GPU's FP8 units")
    if scaling.row_scales and not _cpu_has_row_scales():
        missing_operator = (
            f"torch {torch.__version__} has no torch._scaled_mm with row scales for CPUs"
        )
        return MatmulChoice(EMULATED, f"{emulation}: {missing_operator}")
    if is_onednn_slow_in_fp8():
        slow_onednn = (
            "oneDNN has only slow reference code for FP8 on a CPU with amx_int8 without amx_fp16"
        )
        return MatmulChoice(WITHOUT_ONEDNN, f"torch._scaled_mm is kept off oneDNN: {slow_onednn}")
    return MatmulChoice(OPERATOR, "torch._scaled_mm runs on the CPU")


def _cpu_has_row_scales() -> bool:
    """Try the operator: torch 2.11's takes no scales of rows on a CPU."""
    matrix = torch.ones(16, 16).to(torch.float8_e4m3fn)
    scale = torch.ones(16, 1)
    try:
        torch._scaled_mm(matrix, matrix.t(), scale, scale.t(), out_dtype=torch.bfloat16)
    except RuntimeError:  # NotImplementedError is one too
        return False
    return True


# ---- convert ----


def convert_linears(model: nn.Module, plan) -> None:
    """Swap a plan's chosen linear layers for torchao's, in place."""
    fp8 = plan.fp8
    if not fp8.layers:
        return
    float8_config = plan.config.quantize.linear.float8
    torchao_config = replace(
        Float8LinearConfig.from_recipe_name(fp8.recipe_name),
        emulate=fp8.emulated,
        enable_fsdp_float8_all_gather=float8_config.enable_fsdp_float8_all_gather,
    )
    convert_to_float8_training(
        model, config=torchao_config, module_filter_fn=lambda _, name: name in fp8.layers
    )
    logger.info(f"FP8 {fp8.recipe_name}: converted {format_name_patterns(fp8.layers)}")
    logger.info(f"FP8 matmuls: {fp8.matmul.reason}")


# ---- read ----


def converted_modules(model: nn.Module) -> dict[str, Float8Linear]:
    """List the FP8 layers of `model` by their names when it was built."""
    modules = model.named_modules()
    return {strip_wrapper_names(name): m for name, m in modules if isinstance(m, Float8Linear)}


def strip_wrapper_names(name: str) -> str:
    """Strip from a module's or parameter's name what compilation and recomputation add."""
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")
