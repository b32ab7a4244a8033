"""Phases of a run: `quantize.linear.float8.first_step` and `last_step` say which of its steps are
in FP8."""

from typing import TYPE_CHECKING

from models.errors import InputError

if TYPE_CHECKING:
    from experiments.config.keys import Config


def first_and_last(config: "Config") -> tuple[int | None, int | None]:
    """The two keys as numbers of steps, from 1; None where FP8 begins with the run, or ends with
    it."""
    keys, steps = config.quantize.linear.float8, config.training.steps
    first = (
        config.lr_scheduler.warmup_steps + 1
        if keys.first_step == "after_warmup"
        else keys.first_step
    )
    last = steps - max(1, steps // 10) if keys.last_step == "before_last_tenth" else keys.last_step
    return first, last


def fp8_steps(config: "Config") -> range:
    """The run's steps in FP8, counted from 1; none of a run in bf16."""
    (first, last), steps = first_and_last(config), config.training.steps
    if config.quantize.linear.float8.recipe_name is None:
        return range(0)
    return range(first or 1, min(steps if last is None else last, steps) + 1)


def check_one_precision(config: "Config") -> None:
    """Raise `InputError` for a recipe of several phases, whose steps do not take one time."""
    if first_and_last(config) != (None, None):
        raise InputError(
            "the steps of a recipe with phases do not take one time: give its parent, "
            "or set first_step and last_step of quantize.linear.float8 to null"
        )
