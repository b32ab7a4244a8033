"""What recipes there are, and what they say.

python -m experiments.recipe list                                            recipes, overlays and studies
python -m experiments.recipe show NAME [--overlay O]… [key.path=value …]     resolved, and what it changes
python -m experiments.recipe schema > recipes/schema.json                    for editors: completion and checks
"""

import argparse
import json

from rich.console import Console
from rich.markup import escape

from experiments.config import recipes, rules
from experiments.jobs.exit_codes import COMPLETED, complain, leave
from models.errors import InputError


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.recipe", description="Look at recipes.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="recipes, overlays and studies, a line each")
    listing.set_defaults(do=lambda args: list_all(console))
    showing = commands.add_parser("show", help="one recipe in full, and its difference from its parent")
    showing.add_argument("name", help="a recipe's name, or the path of a recipe.yaml")
    showing.add_argument("overrides", nargs="*", metavar="key.path=value", help="e.g. training.steps=200")
    showing.add_argument("--overlay", action="append", default=[], metavar="O", help="where or how big, e.g. cpu")
    showing.set_defaults(do=lambda args: show(recipes.load(args.name, args.overlay, args.overrides), console))
    schema = commands.add_parser("schema", help="the JSON schema that editors complete and check recipes with")
    schema.set_defaults(do=lambda args: print(json.dumps(rules.schema(), indent=2)))
    args = parser.parse_args(argv)
    console = Console(highlight=False, soft_wrap=True)
    try:
        args.do(args)
        return COMPLETED
    except InputError as error:
        return complain(error)


def list_all(console: Console) -> None:
    """Print every recipe, overlay and study with its own line of description, group by group."""
    for title, lines in recipes.descriptions().items():
        console.print(f"[bold]{title}[/]")
        for name, description in lines.items():
            console.print(f"  {name:<40} {escape(description)}")


def show(recipe: recipes.Recipe, console: Console) -> None:
    """Print the resolved recipe, then its difference from its parent."""
    console.print(escape(recipes.to_yaml(recipe)))
    if recipe.base:
        console.print(f"[bold]Difference from {recipe.base}:[/]")
        for key, before, after in recipes.difference(recipe):
            console.print(f"  {key}: {escape(repr(before))} -> {escape(repr(after))}")


if __name__ == "__main__":
    leave(main)
