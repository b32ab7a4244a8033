"""What recipes there are, and what they say.

python -m experiments.recipe list                                            recipes, overlays and
studies python -m experiments.recipe show NAME [--overlay O]… [key.path=value …]     resolved, and
what it changes python -m experiments.recipe schema > recipes/schema.json                    for
editors: completion and checks
"""

import argparse
import json

from rich.console import Console
from rich.markup import escape

from experiments.config import recipes, rules
from experiments.config.yaml_source import read
from experiments.jobs.exit_codes import COMPLETED, complain, leave
from models.errors import InputError

CONSOLE = Console(highlight=False, soft_wrap=True)
GROUPS = {
    "": "Further recipes",
    "candidates": "Candidates, one change each",
    "phases": "Phases: FP8 for a part of the steps",
    "puzzle": "Puzzle: does FP8 learn on one GPU?",
    "ladder": "Ladder: the steps to FP8 all-gather on several GPUs",
    "fp8_lm": "FP8-LM: FP8 beyond products",
    "overlays": "Overlays: where, and how big",
    "studies": "Studies",
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.recipe", description="Look at recipes."
    )
    parser.add_argument("command", choices=["list", "show", "schema"])
    parser.add_argument(
        "name", nargs="?", help="for show: a recipe's name, or the path of a recipe.yaml"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key.path=value", help="e.g. training.steps=200"
    )
    parser.add_argument(
        "--overlay", action="append", default=[], metavar="O", help="where or how big, e.g. cpu"
    )
    args = parser.parse_intermixed_args(argv)
    if (args.command == "show") != (args.name is not None):
        parser.error("show takes a recipe's name; list and schema take nothing")
    try:
        if args.command == "list":
            print_list()
        elif args.command == "show":
            print_recipe(recipes.load(args.name, args.overlay, args.overrides))
        else:
            print(json.dumps(rules.schema(), indent=2))
        return COMPLETED
    except InputError as error:
        return complain(error)


def print_list() -> None:
    """Every recipe, overlay and study with its own line of description, group by group."""
    groups = {title: recipes.files(recipes.RECIPES / folder) for folder, title in GROUPS.items()}
    groups = {
        "The four recipes": {
            name: groups["Further recipes"].pop(name) for name in recipes.THE_FOUR
        },
        **groups,
    }
    for title, files in groups.items():
        CONSOLE.print(f"[bold]{title}[/]")
        for name, path in files.items():
            description = read(path).get("description")
            CONSOLE.print(f"  {name:<40} {escape(str(description.value)) if description else ''}")


def print_recipe(recipe: recipes.Recipe) -> None:
    """The resolved recipe, then its difference from its parent."""
    CONSOLE.print(escape(recipes.to_yaml(recipe)))
    if recipe.base:
        CONSOLE.print(f"[bold]Difference from {recipe.base}:[/]")
    for key, before, after in recipes.difference(recipe):
        CONSOLE.print(f"  {key}: {escape(repr(before))} -> {escape(repr(after))}")


if __name__ == "__main__":
    leave(main)
