"""What the recipes are, how their layers merge, and the command that shows them.

Mistakes in them are in tests/messages.txt.
"""

import json
import re
import shutil

import pytest
import yaml

from experiments import recipe
from experiments.config import recipes, yaml_with_origins
from experiments.config.recipes import changes, flat, load, to_yaml
from models.errors import InputError

FLOAT8 = "quantize.linear.float8"
RECIPES, OVERLAYS = recipes.files(recipes.RECIPES), recipes.files(recipes.OVERLAYS)


@pytest.mark.parametrize("name", sorted({*RECIPES} - {"base", "baseline"}))
def test_each_recipe_changes_what_its_file_says_and_marks_its_one_intervention(name):
    text = RECIPES[name].read_text()
    marked = re.findall(r"^ *(\w+):.* # <- the intervention", text, re.MULTILINE)
    assert len(marked) == 1, "write ` # <- the intervention` behind the key that the recipe changes"
    recipe = load(name)
    changed = {key for key, _, _ in changes(load(recipe.made.base).config, recipe.config)}
    assert marked[0] in ".".join(changed).split(".")
    assert changed | {"base", "description"} == flat(yaml.safe_load(text)).keys()


# ---- the command ----


def test_the_list_has_the_four_first_then_studies_and_overlays(capsys):
    short = [*recipes.THE_FOUR, *recipes.files(recipes.STUDIES), *OVERLAYS]
    recipe.main(["list", "--all"])
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("  ")]
    assert listed[: len(short)] == short and {*listed} == {*short, *RECIPES}


def test_show_begins_with_what_a_recipe_changes(capsys):
    words = ["show", "rowwise_fp8_compiled", "--overlay", "cpu", "training.steps=5"]
    recipe.main(words)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == f'  {FLOAT8}.recipe_name: null -> "rowwise"'
    assert len(lines) < 20
    recipe.main([*words, "--all"])
    assert "steps: 5\n" in capsys.readouterr().out


def test_editors_find_the_schema():
    schema = recipe.schema()
    assert "Kernel" in schema["$defs"]["Model"]["properties"]["attention_backend"]["description"]
    assert schema["required"] == ["description"] and "base" in schema["properties"]
    for path in (RECIPES | OVERLAYS).values():
        first = path.read_text().splitlines()[0]
        reference = first.removeprefix("# yaml-language-server: $schema=")
        assert (path.parent / reference).resolve() == recipes.RECIPES / "schema.json"


# ---- merging and reading ----


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A copy of recipes/ to add to: `write("foo", text)` makes recipes/foo.yaml."""
    folder = tmp_path / "recipes"
    shutil.copytree(recipes.RECIPES, folder)
    monkeypatch.setattr(yaml_with_origins, "ROOT", tmp_path)
    monkeypatch.setattr(recipes, "RECIPES", folder)
    monkeypatch.setattr(recipes, "OVERLAYS", folder / "overlays")
    return lambda name, text: (folder / f"{name}.yaml").write_text(text)


def test_later_layers_win_and_numbers_need_no_point(write):
    keys = (
        "optimizer: {lr: 3e-4, eps: 1E-9, weight_decay: 0}\ntraining: {max_norm: .inf, steps: 12}"
    )
    write("foo", f"base: baseline\ndescription: foo\n{keys}")
    write("overlays/short", "description: short\ntraining.steps: 30\ntraining.seq_len: 64")
    overrides = ["training.steps=7", "optimizer={lr: 9e-1}", "training.dataset_path="]
    config = load("foo", ["cpu", "short"], overrides, seed=3).config
    training, optimizer = config.training, config.optimizer
    assert (training.steps, training.seq_len, training.local_batch_size) == (7, 64, 4)
    assert (optimizer.lr, optimizer.eps, optimizer.weight_decay) == (0.9, 1e-9, 0.0)
    assert (training.max_norm, config.debug.seed) == (float("inf"), 3)
    assert training.dataset_path is None


@pytest.mark.parametrize("text", ["1e3", "yes", "null", "", "12", "a: b # c", "*x", "2001-01-01"])
def test_a_resolved_recipe_loads_to_the_same_whatever_its_texts(text, tmp_path):
    override = f"model.hf_assets_path={json.dumps(text)}"
    resolved = load("rowwise_fp8_compiled", ["cpu", "as_published"], [override], seed=5)
    path = tmp_path / "recipe.yaml"
    path.write_text(to_yaml(resolved), encoding="utf-8")
    again = load(str(path))
    assert again.config == resolved.config
    assert (again.name, again.made) == (resolved.name, resolved.made)
    assert yaml.safe_load(path.read_text())["model"]["hf_assets_path"] == text  # other readers


def refused(*args) -> list[str]:
    """Where each mistake was made, and in which key."""
    with pytest.raises(InputError) as error:
        load(*args)
    return [line.rsplit(": ", 1)[0] for line in str(error.value).splitlines()]


def test_all_mistakes_are_named_where_they_were_made(write):
    write("foo", "base: baseline\ndescription: foo\ntraining: {seq_len: 0}")
    write("overlays/bar", "description: bar\nbase: short\ntraining: {steps: 0}")
    write("overlays/short", "description: short\noptimizer: 1\ncompile: {enable: 1}")
    assert refused("foo", ["bar"], ["model.flavour=cpu", "debug.seed=[]", "base=bar"]) == [
        "command line: model.flavour=cpu: model.flavour",
        "recipes/overlays/short.yaml:2: optimizer",
        "recipes/foo.yaml:3: training.seq_len",
        "recipes/overlays/bar.yaml:3: training.steps",
        "recipes/overlays/short.yaml:3: compile.enable",
        "command line: debug.seed=[]: debug.seed",
        "command line: base=bar: base",
    ]


def test_a_circle_of_parents(write):
    for name, parent in (("a", "b"), ("b", "c"), ("c", "b")):
        write(name, f"base: {parent}\ndescription: {name}\n")
    assert ".yaml:1: base" in refused("a")[0]
