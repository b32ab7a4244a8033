"""Parameters that are not trained."""

from fnmatch import fnmatchcase

from torch import nn

from models.errors import InputError, by_pattern
from models.float8 import built_name


def freeze(model: nn.Module, patterns: list[str]) -> None:
    """Stop training the parameters that shell patterns match.

    Raises `InputError` if a pattern matches nothing, or nothing is left to train.
    """
    parameters = {built_name(name): p for name, p in model.named_parameters()}
    for pattern in patterns:
        matched = [name for name in parameters if fnmatchcase(name, pattern)]
        if not matched:
            there = by_pattern(parameters)
            raise InputError(f"puzzle.freeze: `{pattern}` matches no parameter; there are {there}")
        for name in matched:
            parameters[name].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise InputError(
            f"puzzle.freeze={patterns} leaves no parameter to train: leave a pattern out"
        )
