"""Say what recipes there are, and what one of them changes.

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
from experiments.jobs.command import COMPLETED, CommandLine, leave
from models.errors import PYTHON


def main(argv: list[str] | None = None) -> int:
    parser = CommandLine("experiments.recipe", __doc__)
    parser.add_argument("command", choices=["list", "show", "schema"])
    parser.add_recipe(nargs="?")
    parser.add_argument("--all", action="store_true", help="all recipes, or all keys of one")
    args = parser.parse(argv)
    if args.command == "list":
        print_list(args.all)
    elif args.command == "schema":
        print(json.dumps(schema(), indent=2))
    elif args.name:
        print_recipe(args.name, args.overlay, args.overrides, args.all)
    else:
        parser.error("show takes a recipe's name")
    return COMPLETED


def print_list(everything: bool) -> None:
    """Print recipes, studies and overlays, each with its own line of description."""
    known = recipes.yaml_files(recipes.RECIPES)
    groups = {
        "The four recipes": {name: known.pop(name) for name in recipes.THE_FOUR},
        f"Studies: {PYTHON} -m experiments.study NAME": recipes.yaml_files(recipes.STUDIES),
        "Overlays: --overlay NAME, where and how big": recipes.yaml_files(recipes.OVERLAYS),
    }
    if everything:
        for name, path in known.items():
            title = f"Recipes of {path.parent.relative_to(recipes.ROOT)}/"
            groups.setdefault(title, {})[name] = path
    for title, files in groups.items():
        print(title)
        for name, path in files.items():
            description = read_file(path).get("description")
            print(f"  {name:<40} {description.value if description else 'has no description'}")
    if not everything:
        print(f"{len(known)} more recipes: add --all")


def print_recipe(name: str, overlays: list[str], overrides: list[str], everything: bool) -> None:
    """Print what a recipe and the given keys change in its parent, with overlays in both; all keys
    if they are asked for."""
    recipe = recipes.load(name, overlays, overrides)
    made = recipe.made
    parent = recipes.load(made.base, made.overlays, compared=True) if made.base else recipe
    print(f"{recipe.name}: {recipe.description}")
    if made.base:
        print(f"Changes in {made.base}:")
        for key, value, other in recipes.changes(parent.config, recipe.config):
            print(f"  {key}: {json.dumps(value)} -> {json.dumps(other)}")
    print(f"All keys:\n{recipes.to_yaml(recipe)}" if everything else "All keys: add --all")


def schema() -> dict:
    """Make the JSON schema of a recipe file, with the sections of all extensions."""
    from experiments.config import keys  # torch

    sections = [(name, own.Keys) for name, own in keys.extensions_of().items()]
    recipe = keys.validator(*sections).json_schema()
    del recipe["properties"]["job"]
    recipe["properties"] |= {name: {"type": "string"} for name in ("base", "description")}
    return recipe | {"required": ["description"]}


if __name__ == "__main__":
    leave(main)
