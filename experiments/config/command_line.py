"""The options that commands share, and what to do about an option that is a recipe's key."""

import argparse
import math
import sys

from experiments.config import recipes, yaml_source
from models.errors import InputError


class CommandLine(argparse.ArgumentParser):
    """A command's arguments. Its help is the docstring of its module."""

    def __init__(self, module: str, docstring: str):
        super().__init__(
            prog=f"python -m {module}",
            description=docstring,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def add_recipe(self, **name: object) -> None:
        """Add a recipe's name, its overlays and keys; `name` has other arguments of the name."""
        what = "a recipe (`python -m experiments.recipe list`), or the path of a recipe.yaml"
        self.add_argument("name", **{"metavar": "RECIPE", "help": what} | name)
        self.add_overlays(default=[])
        self.add_argument(
            "overrides", nargs="*", metavar="key.path=value", help="e.g. training.steps=200"
        )

    def add_overlays(self, default: list | None, more: str = "") -> None:
        """Add `--overlay`, which may be repeated."""
        self.add_argument(
            "--overlay",
            action="append",
            default=default,
            metavar="O",
            help=f"where or how big, e.g. cpu; may be repeated{more}",
        )

    def parse(self, argv: list[str] | None) -> argparse.Namespace:
        """Read the arguments. Raises `InputError` naming the key that an unknown option means."""
        words = sys.argv[1:] if argv is None else argv
        args, unknown = self.parse_known_intermixed_args(words)
        if unknown:
            option, equals, value = unknown[0].partition("=")
            following = words[words.index(unknown[0]) + 1 :]
            if not equals and following:
                value = following[0]
            self._name_the_key(option, value)
            raise InputError(f"there is no {unknown[0]}: -h lists what there is")
        return args

    def _name_the_key(self, option: str, value: str) -> None:
        name = option.strip("-").replace("-", "_")
        options = [known for known in self._option_string_actions if known.startswith(option)]
        if options:
            raise InputError(f"did you mean {options[0]}? There is no option {option}")
        keys = [key for key in _keys() if key.endswith((f".{name}", f"_{name}"))]
        if keys:
            raise InputError(
                f"{keys[0]}={value} is how a recipe's key is set: there is no option {option}"
            )


def _keys() -> list[str]:
    """List the keys that base.yaml and overlays set: reading all of torchtitan's takes seconds."""
    keys: list[str] = []
    for path in (recipes.paths()["base"], *recipes.files(recipes.OVERLAYS).values()):
        keys += yaml_source.read(path)
    return keys


def seconds(text: str) -> float:
    """Read `--budget`. Raises ArgumentTypeError unless it is more than 0 and finite."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"expected seconds, more than 0, got {text}")
    return number


def process_count(text: str) -> int:
    """Read `--processes`. Raises ArgumentTypeError for what is no number from 1 to 9,999."""
    if not text.isdecimal() or not 0 < int(text) < 10_000:
        raise argparse.ArgumentTypeError(f"expected a number from 1 to 9999, got {text}")
    return int(text)
