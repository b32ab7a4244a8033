"""What the recipes are, how their layers merge, and the command that shows them.

Mistakes in them are in tests/messages.txt.
"""

import re
import shutil

import pytest
import yaml

from experiments import recipe
from experiments.config import recipes, yaml_with_origins
from experiments.config.recipes import flatten_sections, list_changes, load
from models.errors import InputError

FLOAT8 = "quantize.linear.float8"
RECIPES, OVERLAYS = (
    recipes.yaml_files(recipes.RECIPES),
    recipes.yaml_files(recipes.OVERLAYS_FOLDER),
)


@pytest.mark.parametrize("name", sorted({*RECIPES} - {"base", "baseline"}))
def test_each_recipe_changes_what_its_file_says_and_marks_its_one_intervention(name):
    text = RECIPES[name].read_text()
    marked = re.findall(r"^ *(\w+):.* # <- the intervention", text, re.MULTILINE)
    assert len(marked) == 1, "write ` # <- the intervention` behind the key that the recipe changes"
    recipe = load(name)
    changed = {
        key for key, _, _ in list_changes(load(recipe.provenance.base).config, recipe.config)
    }
    assert marked[0] in ".".join(changed).split(".")
    assert changed | {"base", "description"} == flatten_sections(yaml.safe_load(text)).keys()


# ---- the command ----


def test_the_list_has_the_four_first_then_studies_and_overlays(capsys):
    short = [*recipes.FOUR_RECIPES, *recipes.yaml_files(recipes.STUDIES_FOLDER), *OVERLAYS]
    recipe.main(["list", "--all"])
    listed = re.findall(r"^  (\S+)", capsys.readouterr().out, re.MULTILINE)
    assert listed[: len(short)] == short and {*listed} == {*short, *RECIPES}


def test_show_begins_with_what_a_recipe_and_the_given_keys_change(capsys):
    words = ["show", "rowwise_fp8_compiled", "--overlay", "cpu", "training.steps=5"]
    recipe.main(words)
    assert capsys.readouterr().out.splitlines()[2:4] == [
        "  training.steps: 60 -> 5",
        f'  {FLOAT8}.recipe_name: null -> "rowwise"',
    ]
    recipe.main([*words, "--all"])
    assert "steps: 5\n" in capsys.readouterr().out
    # a key that the parent alone could not have
    recipe.main(["show", "baseline_compiled", "activation_checkpoint.mode=memory_budget"])
    assert "compile.enable: false -> true" in capsys.readouterr().out


def test_editors_find_the_schema():
    schema = recipe.make_schema()
    assert schema["required"] == ["description"] and "base" in schema["properties"]
    assert "attention_backend" in schema["$defs"]["Model"]["properties"]
    for path in RECIPES.values():
        assert {*yaml.safe_load(path.read_text())} <= {*schema["properties"]}, path
    for path in (RECIPES | OVERLAYS).values():
        reference = path.read_text().splitlines()[0].partition("yaml-language-server: $schema=")[2]
        assert (path.parent / reference).resolve() == recipes.RECIPES / "schema.json"


# ---- merging and reading ----


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A copy of recipes/ to add to: `write("foo", text)` makes recipes/foo.yaml."""
    folder = tmp_path / "recipes"
    shutil.copytree(recipes.RECIPES, folder)
    monkeypatch.setattr(yaml_with_origins, "ROOT", tmp_path)
    monkeypatch.setattr(recipes, "RECIPES", folder)
    monkeypatch.setattr(recipes, "OVERLAYS_FOLDER", folder / "overlays")
    return lambda name, text: (folder / f"{name}.yaml").write_text(f"description: {name}\n{text}")


def test_later_layers_win_and_numbers_need_no_point(write, caplog):
    write("foo", "base: baseline\noptimizer: {lr: 3e-4, eps: 1E-9}\ntraining.steps: 12")
    write("overlays/short", "training: {steps: 30, seq_len: 64, max_norm: .inf}")
    overrides = ["training.steps=7", "optimizer={lr: 9e-1}", "training.dataset_path="]
    config = load("foo", ["cpu", "short"], overrides).with_seed(3).config
    training, optimizer = config.training, config.optimizer
    assert (training.steps, training.seq_len, training.local_batch_size) == (7, 64, 4)
    assert (optimizer.lr, optimizer.eps, training.max_norm) == (0.9, 1e-9, float("inf"))
    assert (training.dataset_path, config.debug.seed) == (None, 3)
    # what an overlay takes from a recipe's own file is said
    assert any("recipes/foo.yaml:4: training.steps" in text for text in caplog.messages)


def refused(*args) -> list[str]:
    """Where each mistake was made, and in which key."""
    with pytest.raises(InputError) as error:
        load(*args)
    return [line.rsplit(": ", 1)[0] for line in str(error.value).splitlines()]


def test_all_mistakes_are_named_where_they_were_made(write):
    write("foo", "base: baseline\ntraining: {seq_len: 0}")
    write("overlays/bar", "base: short\ntraining: {steps: 0}")
    write("overlays/short", "compile: {enable: 1}")
    assert refused("foo", ["bar"], ["debug.seed=[]", "base=bar"]) == [
        "recipes/foo.yaml:3: training.seq_len",
        "recipes/overlays/bar.yaml:3: training.steps",
        "recipes/overlays/short.yaml:2: compile.enable",
        "command line: debug.seed=[]: debug.seed",
        "command line: base=bar: base",
    ]


def test_a_circle_of_parents(write):
    for name, parent in (("a", "b"), ("b", "c"), ("c", "b")):
        write(name, f"base: {parent}")
    assert ".yaml:2: base" in refused("a")[0]
