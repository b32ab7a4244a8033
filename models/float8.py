"""FP8 for these models: what it is, which linear layers run in it, with which scaling, and how.

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

From a recipe's section `quantize.linear.float8`, called `keys` here, to torchao's layer:

    choose             which layers, with which scaling, by which operator: a part of a run's plan,
                       which the proof holds against the run
    Float8Converter    called by torchtitan, which has built the model
    convert            one call of torchao

Differences to torchtitan's converter:

* Without a `recipe_name` there is no FP8; in torchtitan that is FP8 with one scale a tensor.
* A name filter is exact (a shell pattern over the full module name) and must match something.
* Converting no layer is an error, and so is a layer whose sizes are no multiples of 16.
* Linear layers of a class of their own stay in bf16.
* FP8 all-gather goes with `recipe_name: tensorwise`.
* A CPU multiplies as models/fp8_matmul.py says; emulated FP8 may be compiled.
"""

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import NamedTuple

import models.device  # noqa: F401  # before torchtitan: see there  # isort: skip
from torch import nn
from torchao.float8 import (
    Float8LinearConfig,
    _auto_filter_for_recipe,
    convert_to_float8_training,
)
from torchao.float8.float8_linear import Float8Linear
from torchtitan.tools.logging import logger

from models import fp8_matmul
from models.errors import InputError, by_pattern
from models.scaling import SCALINGS, Scaling

FILTERS = "quantize.linear.float8.filter_fqns"
AUTO_FILTER = "auto_filter_small_kn"  # torchtitan's word for: skip layers too small to gain
FIRST_AND_LAST = "first_and_last_block"


# ---- choose ----


class Choice(NamedTuple):
    """What FP8 changes of a model: nothing, as these values say, in a recipe without FP8."""

    scaling: Scaling | None = None
    layers: frozenset[str] = frozenset()  # names of linear layers
    matmul: fp8_matmul.Matmul | None = None
    flops_per_token: int = 0  # in FP8, forward and backward

    @property
    def recipe_name(self) -> str | None:
        return self.scaling and self.scaling.name

    @property
    def emulated(self) -> bool:
        """True if matmuls round to FP8 and multiply in float32."""
        return self.matmul is not None and self.matmul.how == fp8_matmul.EMULATED


def choose(model: nn.Module, keys) -> Choice:
    """Work out what FP8 changes of a model. Raises `InputError` as `choose_modules`."""
    if keys.recipe_name is None:
        return Choice()
    scaling = SCALINGS[keys.recipe_name]
    layers = choose_modules(model, keys.recipe_name, keys.filter_fqns)
    # A matmul of M tokens and a weight of N K elements is 2 M N K FLOPs.
    weights = sum(model.get_submodule(name).weight.numel() for name in layers)
    return Choice(
        scaling=scaling,
        layers=frozenset(layers),
        matmul=fp8_matmul.choose(scaling, keys.emulate),
        flops_per_token=2 * scaling.matmuls * weights,
    )


def choose_modules(model: nn.Module, recipe_name: str, filter_fqns: list[str]) -> set[str]:
    """Choose the linear layers to convert: all plain ones but those that `filter_fqns` names.

    `filter_fqns` are full module names or shell patterns over them (`output`,
    `layers.*.attention.wk`), `first_and_last_block`, or `auto_filter_small_kn`, torchao's heuristic
    for layers that are too small to gain. Raises `InputError` if a filter matches nothing, nothing
    is left, or a size is unfit.
    """
    linears = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    chosen = {name for name, linear in linears.items() if type(linear) is nn.Linear}
    for pattern in filter_fqns:
        if pattern == AUTO_FILTER:
            chosen -= _too_small(linears, recipe_name)
        elif pattern == FIRST_AND_LAST:
            ends = ("layers.0.", f"layers.{model.model_args.n_layers - 1}.")
            chosen = {name for name in chosen if not name.startswith(ends)}
        else:
            matched = {name for name in linears if fnmatchcase(name, pattern)}
            if not matched:
                raise InputError(
                    f"{FILTERS}: `{pattern}` matches no linear layer; it names modules in full, as "
                    f"{by_pattern(linears)}"
                )
            chosen -= matched
    if not chosen:
        raise InputError(f"FP8 would convert no layer: {FILTERS} leaves none of them")
    for name in sorted(chosen):
        rows, columns = linears[name].weight.shape
        if rows % 16 or columns % 16:
            raise InputError(
                f"{name} is {rows} x {columns}, and FP8 needs multiples of 16: add it to {FILTERS} "
                "or choose another model.flavor or model.sizes"
            )
    return chosen


def _too_small(linears: dict[str, nn.Linear], recipe_name: str) -> set[str]:
    """Name the layers that gain nothing by torchao's heuristic."""
    try:
        worth_it = _auto_filter_for_recipe(recipe_name, filter_fqns=[])
    except NotImplementedError:
        no_heuristic = f"torchao has no {AUTO_FILTER} for {recipe_name}: name the layers instead"
        raise InputError(no_heuristic) from None
    return {name for name, linear in linears.items() if not worth_it(linear, name)}


# ---- convert ----


class Float8Converter:
    """torchtitan's model converter: swaps the layers that a plan chose for FP8 layers."""

    def __init__(self, plan, *_):  # torchtitan's: the configuration, which the plan has, and ranks
        self.plan = plan

    def convert(self, model: nn.Module) -> None:
        """Convert in place, by the core or by an extension."""
        fp8 = self.plan.fp8
        if fp8.matmul is None:
            return
        self.plan.recipe.hook("convert", convert)(model, self.plan)
        logger.info(f"FP8 {fp8.recipe_name}: converted {by_pattern(fp8.layers)}")
        logger.info(f"FP8 matmuls: {fp8.matmul.why}")

    def post_optimizer_hook(self, model_parts: list[nn.Module]) -> None:
        """Called by torchtitan after a step: nothing is left to do."""


def convert(model: nn.Module, plan) -> None:
    """Swap the linear layers that a plan chose for torchao's."""
    keys = plan.config.quantize.linear.float8
    config = replace(
        Float8LinearConfig.from_recipe_name(plan.fp8.recipe_name),
        emulate=plan.fp8.emulated,
        enable_fsdp_float8_all_gather=keys.enable_fsdp_float8_all_gather,
    )
    convert_to_float8_training(
        model, config=config, module_filter_fn=lambda _, name: name in plan.fp8.layers
    )


# ---- read ----


def converted_modules(model: nn.Module) -> dict[str, Float8Linear]:
    """The FP8 layers of `model`, by the names that the model was built with."""
    modules = model.named_modules()
    return {built_name(name): m for name, m in modules if isinstance(m, Float8Linear)}


def built_name(name: str) -> str:
    """A parameter's or module's name without what compilation and recomputation wrap around it."""
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")
