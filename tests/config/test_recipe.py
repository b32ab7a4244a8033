import json
import shutil
import sys

import pytest
import torch
import yaml
from torch import nn

from experiments.config import recipes, rules
from experiments.config.recipes import difference, load, to_yaml
from experiments.config.studies import STUDIES
from models.errors import InputError
from tests import processes

FLOAT8 = "quantize.linear.float8"
ON_FP8 = f"{FLOAT8}.recipe_name=tensorwise"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A copy of recipes/ to spoil: `write("foo", text)` makes recipes/foo.yaml."""
    folder = tmp_path / "recipes"
    shutil.copytree(recipes.RECIPES, folder)
    monkeypatch.setattr(recipes, "ROOT", tmp_path)
    monkeypatch.setattr(recipes, "RECIPES", folder)
    monkeypatch.setattr(recipes, "OVERLAYS", folder / "overlays")
    return lambda name, text: (folder / f"{name}.yaml").write_text(text)


def problems(*args, **kwargs) -> list[str]:
    with pytest.raises(InputError) as error:
        load(*args, **kwargs)
    return str(error.value).splitlines()


# ---- what the recipes are ----


@pytest.mark.parametrize(
    "name, expected",
    [
        ("base", []),
        ("baseline", []),
        ("baseline_compiled", [("compile.enable", False, True)]),
        ("rowwise_fp8_compiled", [(f"{FLOAT8}.recipe_name", None, "rowwise")]),
        ("tensorwise_fp8_compiled", [(f"{FLOAT8}.recipe_name", None, "tensorwise")]),
        ("rowwise_gw_hp_fp8_compiled", [(f"{FLOAT8}.recipe_name", None, "rowwise_with_gw_hp")]),
    ],
)
def test_each_recipe_is_its_parent_and_one_marked_change(name, expected):
    assert difference(load(name)) == expected
    lines = (recipes.RECIPES / f"{name}.yaml").read_text().splitlines()
    marked = [line.split(":")[0].strip() for line in lines if line.endswith(" # <- the intervention")]
    assert marked == [key.split(".")[-1] for key, _, _ in expected]


def test_the_difference_is_taken_under_the_same_overlays_and_overrides():
    resolved = load("tensorwise_fp8_compiled", ["cpu"], [f"{FLOAT8}.enable_fsdp_float8_all_gather=true"], seed=7)
    assert difference(resolved) == [(f"{FLOAT8}.recipe_name", None, "tensorwise")]


def test_the_published_schedule_is_torchtitans():
    from torchtitan.components.lr_scheduler import build_lr_schedulers

    config = load("baseline").config
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=config.optimizer.lr)
    scheduler = build_lr_schedulers([optimizer], config.lr_scheduler, config.training.steps)
    rates = []
    for _ in range(config.training.steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([5e-5 * min(step / 100, 1) for step in range(1, 1001)])


@pytest.mark.parametrize("overlay", recipes.overlay_names())
@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_loads_with_every_overlay_which_touches_only_what_it_says(name, overlay):
    if (name, overlay) == ("candidate_adamw_stochastic_rounding", "fp32_master"):
        pytest.skip("fp32 weights are not rounded: refused, see test_optimizer")
    tree = yaml.safe_load((recipes.OVERLAYS / f"{overlay}.yaml").read_text())
    del tree["description"]
    before, after = (dict(recipes.flat(load(name, overlays).config.to_dict())) for overlays in ([], [overlay]))
    assert {key for key in before if before[key] != after[key]} <= {key for key, _ in recipes.flat(tree)}
    assert after["job.description"] == load(name).description


def test_as_published_undoes_what_was_mended():
    config = load("tensorwise_fp8_compiled", ["as_published"]).config
    assert (config.training.max_norm, config.data.layout, config.compile.scope) == (float("inf"), "padded", "model")
    assert (config.quantize.linear.float8.filter_fqns, config.lr_scheduler.warmup_steps) == ([], 101)


# ---- merging and reading ----


def test_later_layers_win(write):
    write("overlays/short", "description: short\ntraining: {steps: 30, seq_len: 64}")
    config = load("baseline", ["cpu", "short"], ["training.steps=7"], seed=3).config
    assert (config.training.steps, config.training.seq_len, config.training.local_batch_size) == (7, 64, 4)
    assert config.debug.seed == 3


def test_numbers_are_yaml_1_2(write):
    numbers = "optimizer: {lr: 3e-4, eps: 1E-9, weight_decay: 0}\ntraining: {max_norm: .inf, steps: 12}"
    write("foo", f"base: base\ndescription: numbers\n{numbers}")
    config = load("foo", overrides=["optimizer.beta1=9e-1"]).config
    assert (config.optimizer.lr, config.optimizer.eps, config.optimizer.beta1) == (3e-4, 1e-9, 0.9)
    assert (config.training.max_norm, config.optimizer.weight_decay) == (float("inf"), 0.0)


@pytest.mark.parametrize("text", ["1e3", "yes", "null", "", "12", "a: b # c", "*x", "2001-01-01", "ä\nb"])
def test_any_text_survives_the_round_trip(text, tmp_path):
    quoted = json.dumps(text)
    resolved = load("rowwise_fp8_compiled", ["cpu", "as_published"], [f"model.hf_assets_path={quoted}"], seed=5)
    assert resolved.config.model.hf_assets_path == text
    path = tmp_path / "recipe.yaml"
    path.write_text(to_yaml(resolved))
    again = load(str(path))
    assert again.config == resolved.config
    assert (again.base, again.description, difference(again)) == (None, resolved.description, [])
    assert yaml.safe_load(to_yaml(resolved))["model"]["hf_assets_path"] == text  # for other readers too


def test_a_resolved_recipe_says_where_it_is_from_and_holds_every_key():
    text = to_yaml(load("baseline", ["cpu", "h200"], ["training.steps=3"]))
    assert "baseline" in text and "cpu, h200" in text and "training.steps=3" in text
    assert list(yaml.safe_load(text)) == ["name", "description", *load("baseline").config.to_dict()]


def test_a_recipe_of_ones_own_may_live_anywhere(tmp_path):
    (tmp_path / "mine.yaml").write_text("base: baseline\ndescription: mine\ntraining: {steps: 5}\n")
    mine = load(str(tmp_path / "mine.yaml"))
    assert (mine.name, mine.base, difference(mine)) == ("mine", "baseline", [("training.steps", 1000, 5)])


def test_listing_does_not_import_torch():
    code = "import sys; from experiments import recipe; recipe.main(['list'])"
    output = processes.run([sys.executable, "-c", f"{code}; assert 'torch' not in sys.modules"], check=False)
    lines = [line for line in output.stdout.splitlines() if line.startswith("  ")]
    assert output.stderr == "" and len(lines) == len(recipes.names() + recipes.overlay_names())


# ---- mistakes ----

HEAD = "base: baseline\ndescription: foo\n"


@pytest.mark.parametrize(
    "body, line",
    [
        ("training:\n  stepz: 5", "4: training.stepz: unknown key; did you mean `steps`?"),
        ("training:\n  lr: 1e-3", "4: training.lr: unknown key; did you mean `optimizer.lr`?"),
        ("debug:\n  zzzz: 1", "4: debug.zzzz: unknown key; known here: seed, deterministic, "),
        ("optimiser:\n  lr: 1", "3: optimiser: unknown section; did you mean `optimizer`?"),
        ("optimizer:\n  lr: fast", "4: optimizer.lr: expected a number, got 'fast'"),
        ("training:\n  max_norm: big", "4: training.max_norm: expected a number, got 'big'"),
        ("training:\n\n  steps: 1.5", "5: training.steps: expected an integer, got 1.5"),
        ("training:\n  steps: true", "4: training.steps: expected an integer, got true"),
        ("training:\n  steps: 0", "4: training.steps: expected at least 1, got 0"),
        ("compile:\n  enable: yes", "4: compile.enable: expected true or false, got 'yes'"),
        ("compile:\n  components: model", "4: compile.components: expected a list, as [a, b], got 'model'"),
        ("compile:\n  components: [model, 3]", "4: compile.components: item 2: expected text, got 3"),
        ("compile:\n  scope: blok", "4: compile.scope: expected 'block' or 'model', got 'blok'"),
        ("model:\n  flavor:", "4: model.flavor: expected text, got null"),
        ("model: 5", "3: model: expected keys below it, got 5"),
        ("training:", "3: training: expected keys below it, got null"),
        ("validation:\n  steps: 0", "3: validation: validation steps must be positive or -1"),
        ("model:\n  converters: []", "4: model.converters: expected [fp8], as base.yaml has it"),
        ("job:\n  description: x", "4: job.description: write it as `description:`"),
        ("training:\n  steps: 1\n  steps: 2", "5: training.steps: already given at recipes/foo.yaml:4; keep one"),
        ("training:\n  steps: [1", "5: YAML error while parsing a flow sequence: "),
        ("training: {steps: &x 3, seq_len: *x}", "3: YAML error: the alias *x is not allowed"),
        ("job:\n  dump_folder: !!python/object/apply:os.getcwd []", "4: YAML error: the tag !!python/"),
    ],
)
def test_a_mistake_is_named_with_its_line(write, body, line):
    write("foo", f"{HEAD}{body}\n")
    found = problems("foo")
    assert len(found) == 1 and found[0].startswith(f"recipes/foo.yaml:{line}"), found


@pytest.mark.parametrize(
    "overrides, expected",
    [
        (["parallelism.tensor_parallel_degree=2"], "not supported: FSDP shards the model instead; set it to 1, got 2"),
        (["training.seq_len=100"], "seq_len x local_batch_size is 100; FP8 needs a multiple of 16"),
        (["{FLOAT8}.recipe_name=rowwise", "{FLOAT8}.enable_fsdp_float8_all_gather=true"], "needs recipe_name: ten"),
        (["{FLOAT8}.precompute_float8_dynamic_scale_for_fsdp=true"], "needs enable_fsdp_float8_all_gather: true"),
    ],
)
def test_keys_that_contradict_each_other(overrides, expected):
    overrides = [text.format(FLOAT8=FLOAT8) for text in overrides]
    [line] = problems("baseline", overrides=[ON_FP8, *overrides])
    key = overrides[-1].split("=")[0]
    assert line.startswith(f"command line: {overrides[-1]}: {key}: ") and expected in line


def test_what_only_fp8_forbids_is_fine_in_bf16():
    load("baseline", overrides=["training.seq_len=100"])


def test_all_mistakes_are_told_at_once(write):
    write("foo", HEAD + "training:\n  stepz: 5\n  steps: 0\noptimizer:\n  lr: fast\n")
    write("overlays/bar", "description: bar\nbase: base\nmetrics: {log_freq: often}\n")
    found = problems("foo", ["bar", "cpuu"], ["nothing", "model.flavour=cpu"])
    assert {line.split(": ")[0] + ":" + line.split(": ")[1] for line in found} == {
        "recipes/overlays/bar.yaml:2:base",
        "unknown overlay `cpuu`; did you mean `cpu`? known:alps, as_published, bar, cpu, fp32_master, h100, h200",
        "command line:nothing",
        "command line:model.flavour=cpu",
        "recipes/foo.yaml:4:training.stepz",
        "recipes/foo.yaml:7:optimizer.lr",
        "recipes/overlays/bar.yaml:3:metrics.log_freq",
    }


def test_contradictions_are_told_beside_wrong_types_but_never_follow_from_them(write):
    wrong = ["training.steps=0", "optimizer.lr=fast", f"{FLOAT8}.enable_fsdp_float8_all_gather=maybe"]
    found = problems("baseline", overrides=[*wrong, f"{FLOAT8}.precompute_float8_dynamic_scale_for_fsdp=true"])
    assert sorted(line.split(": ")[2] for line in found) == [
        "optimizer.lr",
        f"{FLOAT8}.enable_fsdp_float8_all_gather",
        "training.steps",
    ]


@pytest.mark.parametrize(
    "text, line",
    [
        ("", "1: the file is empty; a recipe has `base:`"),
        ("# nothing\n", "1: the file is empty"),
        ("just text", "1: expected sections, got 'just text'"),
        ("description: foo", "1: base: missing; name the parent recipe"),
        ("base: baseline", "1: description: expected a line of text"),
        ("base: baseline\ndescription:", "2: description: expected a line of text on what this is for, got null"),
        ("\nbase: baselin\ndescription: foo", "2: base: unknown recipe `baselin`; did you mean `baseline`"),
        ("base: 3\ndescription: foo", "1: base: expected a recipe's name, got 3"),
        (b"base: b\xff", "1: not a text file in UTF-8: "),
    ],
)
def test_a_file_that_is_no_recipe(write, text, line):
    write("foo", "")
    (recipes.RECIPES / "foo.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    found = problems("foo")
    assert len(found) == 1 and found[0].startswith(f"recipes/foo.yaml:{line}"), found


def test_a_circle_of_parents(write):
    for name, parent in (("a", "b"), ("b", "c"), ("c", "b")):
        write(name, f"base: {parent}\ndescription: {name}\n")
    assert problems("a") == ["recipes/c.yaml:1: base: circular: b -> c -> b"]


@pytest.mark.parametrize("name", ["baselin", "runs/baseline", "overlays/cpu"])
def test_an_unknown_recipe_lists_the_known(name):
    [line] = problems(name)
    assert f"unknown recipe `{name}`" in line and all(known in line for known in recipes.names())
    assert "overlays" in name or "did you mean `baseline`" in line


def test_a_recipe_file_that_is_not_there():
    [line] = problems("baseline.yaml")
    assert line.startswith("baseline.yaml: no such file") and all(known in line for known in recipes.names())


# ---- schema ----


def test_the_schema_documents_torchtitans_keys_and_allows_partial_files():
    schema = rules.schema()
    model = schema["$defs"]["Model"]["properties"]
    assert "model config" in model["flavor"]["description"] and "Kernel" in model["attention_backend"]["description"]
    assert set(schema["required"]) == {"description"} and "base" in schema["properties"]
    for section in schema["$defs"].values():
        assert "required" not in section and not section["additionalProperties"]


@pytest.mark.parametrize(
    "path", sorted({*recipes.RECIPES.rglob("*.yaml")} - {*STUDIES.glob("*")}), ids=lambda p: p.stem
)
def test_editors_find_the_schema(path):
    reference = path.read_text().splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / reference).resolve() == recipes.RECIPES / "schema.json"
