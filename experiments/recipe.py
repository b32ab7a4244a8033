"""List the recipes, and show what one of them changes.

    python -m experiments.recipe list [--all]    the four recipes, studies and overlays; all recipes
    python -m experiments.recipe show NAME [--all] [--overlay O]… [key.path=value …]
                                                 what a recipe changes; all its keys
    python -m experiments.recipe schema          a JSON schema of recipes, for editors

Example: python -m experiments.recipe show tensorwise_fp8_compiled --all --overlay cpu

Exit codes: 0, or 2 for bad input.
"""

import json

from experiments.config import recipes
from experiments.config.yaml_with_origins import read_file
from experiments.jobs.command import EXIT_COMPLETED, CommandLine, exit_with
from models.errors import PYTHON


def main(argv: list[str] | None = None) -> int:
    parser = CommandLine("experiments.recipe", __doc__)
    parser.add_argument("command", choices=["list", "show", "schema"])
    parser.add_recipe(nargs="?")
    parser.add_argument("--all", action="store_true", help="all recipes, or all keys of one")
    args = parser.parse_arguments(argv)
    if args.command == "list":
        print_list(args.all)
    elif args.command == "schema":
        print(json.dumps(make_schema(), indent=2))
    elif args.name:
        print_recipe(args.name, args.overlay, args.overrides, args.all)
    else:
        parser.error("show takes a recipe's name")
    return EXIT_COMPLETED


def print_list(lists_all: bool) -> None:
    """Print recipes, studies and overlays, each with its description in one line."""
    more_recipes = recipes.yaml_files(recipes.RECIPES)
    groups = {
        "The four recipes": {name: more_recipes.pop(name) for name in recipes.FOUR_RECIPES},
        f"Studies: {PYTHON} -m experiments.study NAME": recipes.yaml_files(recipes.STUDIES_FOLDER),
        "Overlays: --overlay NAME, where and how big": recipes.yaml_files(recipes.OVERLAYS_FOLDER),
    }
    if lists_all:
        for name, path in more_recipes.items():
            title = f"Recipes of {path.parent.relative_to(recipes.ROOT)}/"
            groups.setdefault(title, {})[name] = path
    for title, files in groups.items():
        print(title)
        for name, path in files.items():
            setting = read_file(path).get("description")
            description = setting.value if setting else "has no description"
            print(f"  {name:<40} {description}")
    if not lists_all:
        print(f"{len(more_recipes)} more recipes: add --all")


def print_recipe(name: str, overlays: list[str], overrides: list[str], prints_all: bool) -> None:
    """Print what a recipe and `overrides` change in its parent, both with the overlays; with
    `prints_all` also all keys."""
    recipe = recipes.load(name, overlays, overrides)
    print(f"{recipe.name}: {recipe.description}")
    provenance = recipe.provenance
    if provenance.base:
        parent = recipes.load(provenance.base, provenance.overlays, is_compared=True)
        print(f"Changes in {provenance.base}:")
        for key, parent_value, value in recipes.list_changes(parent.config, recipe.config):
            print(f"  {key}: {json.dumps(parent_value)} -> {json.dumps(value)}")
    print(f"All keys:\n{recipes.to_yaml(recipe)}" if prints_all else "All keys: add --all")


def make_schema() -> dict:
    """Make the JSON schema of a recipe file, with the sections of all extensions."""
    from experiments.config import keys  # torch

    extensions = keys.import_extensions()
    sections = [(name, extension.Section) for name, extension in extensions.items()]
    schema = keys.make_validator(*sections).json_schema()
    del schema["properties"]["job"]
    schema["properties"]["base"] = {"type": "string"}
    schema["properties"]["description"] = {"type": "string"}
    overlay_schema = recipes.OverlayHead.model_json_schema()
    schema["properties"]["memory_gib"] = overlay_schema["properties"]["memory_gib"]
    schema["required"] = ["description"]
    return schema


if __name__ == "__main__":
    exit_with(main)
