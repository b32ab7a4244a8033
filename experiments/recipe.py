"""What recipes there are, and what they say.

python -m experiments.recipe list                           recipes, overlays and studies
python -m experiments.recipe show NAME [--overlay O]… [key.path=value …]
                                                            resolved, and what it changes
python -m experiments.recipe schema > recipes/schema.json   for editors: completion and checks
"""

import argparse
import json
from dataclasses import dataclass

from pydantic import TypeAdapter

from experiments.config import recipes, yaml_source
from experiments.jobs.exit_codes import COMPLETED, complain, leave
from models.errors import InputError

TITLES = recipes.GROUPS | {"overlays": "Overlays: where, and how big", "studies": "Studies"}


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
            print(json.dumps(schema(), indent=2))
        return COMPLETED
    except InputError as error:
        return complain(error)


def print_list() -> None:
    """Print every recipe, overlay and study with its own line of description, group by group."""
    known = recipes.paths()
    groups = {"The four recipes": {name: known[name] for name in recipes.THE_FOUR}}
    for folder, title in TITLES.items():
        files = recipes.files(recipes.RECIPES / folder)
        groups[title] = {name: files[name] for name in files if name not in recipes.THE_FOUR}
    for title, files in groups.items():
        print(title)
        for name, path in files.items():
            print(f"  {name:<40} {yaml_source.read(path)['description'].value}")


def print_recipe(recipe: recipes.Recipe) -> None:
    """Print the resolved recipe, then its difference from its parent."""
    print(recipes.to_yaml(recipe))
    if recipe.base:
        print(f"Difference from {recipe.base}:")
    for key, before, after in recipes.difference(recipe):
        print(f"  {key}: {before!r} -> {after!r}")


def schema() -> dict:
    """Make the JSON schema of a recipe file, with torchtitan's own documentation of each key."""
    from experiments.config.keys import Config  # torch

    titans = type("Titans", (Config.__base__,), {"__pydantic_config__": Config.__pydantic_config__})
    inherited = TypeAdapter(dataclass(titans)).json_schema()["$defs"]
    recipe = TypeAdapter(Config).json_schema()
    for name, section in recipe["$defs"].items():
        # pydantic misses the docstrings of inherited fields
        documented = inherited.get(name, section)["properties"]
        for key, value in section["properties"].items():
            section["properties"][key] = documented.get(key, {}) | value
    del recipe["properties"]["job"]
    text = {"type": "string"}
    recipe["properties"] |= {
        "base": text | {"description": "The parent recipe's name"},
        "description": text | {"description": "One line that says what this recipe is"},
    }
    recipe["required"] = ["description"]
    return recipe


if __name__ == "__main__":
    leave(main)
