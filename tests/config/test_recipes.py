"""What the recipes are, how their layers merge, and the command that shows them."""

import json
import sys
from dataclasses import asdict

import pytest
import torch
import yaml
from torch import nn

from experiments import recipe
from experiments.config import recipes
from experiments.config.recipes import difference, load, to_yaml
from experiments.config.studies import STUDIES
from experiments.config.yaml_source import flat
from tests import processes

FLOAT8 = "quantize.linear.float8"
OVERLAYS = list(recipes.files(recipes.OVERLAYS))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("base", []),
        ("baseline", []),
        ("baseline_compiled", [("compile.enable", False, True)]),
        ("rowwise_fp8_compiled", [(f"{FLOAT8}.recipe_name", None, "rowwise")]),
        ("tensorwise_fp8_compiled", [(f"{FLOAT8}.recipe_name", None, "tensorwise")]),
        ("rowwise_gw_hp_fp8_compiled", [(f"{FLOAT8}.recipe_name", None, "rowwise_with_gw_hp")]),
    ],
)
def test_the_recipes_that_are_compared_are_one_change_apart(name, expected):
    assert difference(load(name)) == expected
    assert difference(load(name, ["cpu"], ["optimizer.beta2=0.95"], seed=7)) == expected


@pytest.mark.parametrize("name", sorted({*recipes.names()} - {"base", "baseline"}))
def test_each_recipe_marks_its_one_intervention(name):
    lines = recipes.paths()[name].read_text().splitlines()
    marked = [line.split(":")[0].strip() for line in lines if " # <- the intervention" in line]
    assert len(marked) == 1, "write ` # <- the intervention` behind the key that the recipe changes"
    changed = [key for key, _, _ in difference(load(name))]
    assert marked[0] in ".".join(changed).split(".")


def test_the_published_schedule_is_torchtitans():
    from torchtitan.components.lr_scheduler import build_lr_schedulers

    config = load("baseline").config
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=config.optimizer.lr)
    scheduler = build_lr_schedulers([optimizer], config.lr_scheduler, config.training.steps)
    rates = []
    for _ in range(config.training.steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([5e-5 * min(step / 100, 1) for step in range(1, 1001)])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_recipe_loads_with_every_overlay_which_touches_only_what_it_says(overlay):
    named = dict(flat(yaml.safe_load((recipes.OVERLAYS / f"{overlay}.yaml").read_text())))
    for name in recipes.names():
        plain = load(name).config
        keys = plain.optimizer
        if overlay == "fp32_master" and (keys.stochastic_rounding or keys.states.master_weights):
            continue  # float32 weights are not rounded, and need no others beside them: refused
        before, after = (dict(flat(asdict(c))) for c in (plain, load(name, [overlay]).config))
        assert {key for key in before if before[key] != after[key]} <= named.keys()


# ---- the command ----


@pytest.mark.parametrize("command", ["recipe.main(['list'])", "data.main(['prepare', 'baselin'])"])
def test_what_needs_no_config_does_not_import_torch(command):
    imports = "import sys; from experiments import data, recipe"
    processes.run(
        [sys.executable, "-c", f"{imports}; {command}; assert 'torch' not in sys.modules"]
    )


def test_the_list_has_the_four_first(capsys):
    recipe.main(["list"])
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("  ")]
    assert listed[:4] == list(recipes.THE_FOUR)
    assert sorted(listed) == sorted([*recipes.names(), *OVERLAYS, *recipes.files(STUDIES)])


def test_show_prints_what_a_recipe_changes(capsys):
    recipe.main(["show", "rowwise_fp8_compiled", "--overlay", "cpu", "training.steps=5"])
    shown = capsys.readouterr().out
    assert "steps: 5\n" in shown and f"{FLOAT8}.recipe_name: None -> 'rowwise'" in shown


def test_editors_find_the_schema_with_torchtitans_documentation():
    schema = recipe.schema()
    model = schema["$defs"]["Model"]["properties"]
    assert "model config" in model["flavor"]["description"]
    assert "Kernel" in model["attention_backend"]["description"]
    assert schema["$defs"]["Training"]["properties"]["steps"]["minimum"] == 1
    assert schema["required"] == ["description"] and "base" in schema["properties"]
    for section in schema["$defs"].values():  # a file may give some of the keys
        assert "required" not in section and not section["additionalProperties"]
    for path in {*recipes.RECIPES.rglob("*.yaml")} - {*STUDIES.glob("*")}:
        first = path.read_text().splitlines()[0]
        reference = first.removeprefix("# yaml-language-server: $schema=")
        assert (path.parent / reference).resolve() == recipes.RECIPES / "schema.json"


# ---- merging and reading ----


def test_later_layers_win_and_numbers_are_yaml_1_2(write):
    keys = (
        "optimizer: {lr: 3e-4, eps: 1E-9, weight_decay: 0}\ntraining: {max_norm: .inf, steps: 12}"
    )
    write("foo", f"base: baseline\ndescription: foo\n{keys}")
    write("overlays/short", "description: short\ntraining: {steps: 30, seq_len: 64}")
    overrides = ["training.steps=7", "optimizer={lr: 9e-1}", "training.dataset_path="]
    config = load("foo", ["cpu", "short"], overrides, seed=3).config
    training, optimizer = config.training, config.optimizer
    assert (training.steps, training.seq_len, training.local_batch_size) == (7, 64, 4)
    assert (optimizer.lr, optimizer.eps, optimizer.weight_decay) == (0.9, 1e-9, 0.0)
    assert (training.max_norm, config.debug.seed) == (float("inf"), 3)
    assert training.dataset_path is None


@pytest.mark.parametrize("text", ["1e3", "yes", "null", "", "12", "a: b # c", "*x", "2001-01-01"])
def test_a_resolved_recipe_loads_to_the_same_whatever_its_texts(text, tmp_path):
    overrides = [f"model.hf_assets_path={json.dumps(text)}"]
    resolved = load("rowwise_fp8_compiled", ["cpu", "as_published"], overrides, seed=5)
    path = tmp_path / "recipe.yaml"
    path.write_text(to_yaml(resolved), encoding="utf-8")
    again = load(str(path))
    assert again.config == resolved.config and again.config.model.hf_assets_path == text
    assert (again.name, again.base, difference(again)) == ("rowwise_fp8_compiled", None, [])
    tree = yaml.safe_load(path.read_text())  # for other readers too
    assert tree["model"]["hf_assets_path"] == text


def test_a_recipe_of_ones_own_may_live_anywhere(tmp_path):
    text = "base: baseline\ndescription: short\ntraining: {steps: 5}\n"
    (tmp_path / "short.yaml").write_text(text)
    short = load(str(tmp_path / "short.yaml"))
    assert (short.name, short.base) == ("short", "baseline")
    assert difference(short) == [("training.steps", 1000, 5)]
