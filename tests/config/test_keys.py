"""Keys that are refused with what to do instead, and texts that look like other values.

More messages are in tests/messages.txt.
"""

import contextlib
import importlib
import io
import shlex

import pytest

from experiments.config import recipes
from experiments.config.keys import DEFAULTS, find_replacement
from experiments.config.moved_keys import read_moves
from experiments.config.options import read_options, translate_option
from experiments.config.recipes import flatten_sections, load, load_recipes
from experiments.jobs.command import OPTIONS_BY_COMMAND, CommandLine
from models.errors import InputError

FLOAT8 = "quantize.linear.float8"
SCALING = f"{FLOAT8}.recipe_name"
EXISTING = flatten_sections(DEFAULTS.to_dict())


@pytest.fixture
def write(tmp_path):
    """Write a recipe's file; returns its path."""

    def call(text: str, name: str = "mine") -> str:
        path = tmp_path / f"{name}.yaml"
        path.write_text(text if "description:" in text else f"description: x\n{text}")
        return str(path)

    return call


@pytest.fixture
def overlay(tmp_path, monkeypatch):
    """Write an overlay beside the usual ones."""
    folder = tmp_path / "overlays"
    folder.mkdir()
    for path in recipes.OVERLAYS_FOLDER.glob("*.yaml"):
        (folder / path.name).write_text(path.read_text())
    monkeypatch.setattr(recipes, "OVERLAYS_FOLDER", folder)
    return lambda name, text: (folder / f"{name}.yaml").write_text(f"description: x\n{text}")


def refused(*args, **options) -> str:
    with pytest.raises(InputError) as error:
        load(*args, **options)
    return str(error.value)


# ---- keys of FP8 without FP8 ----

KEYS = {
    "filter_fqns": "[output]",
    "enable_fsdp_float8_all_gather": "false",
    "precompute_float8_dynamic_scale_for_fsdp": "true",
    "emulate": "false",
}


def test_all_keys_of_fp8_are_tried():
    assert {f"{FLOAT8}.{key}" for key in KEYS} | {SCALING} == {
        key for key in EXISTING if key.startswith(f"{FLOAT8}.")
    }


@pytest.mark.parametrize("key", KEYS)
def test_a_key_that_nothing_reads_is_refused_with_torchtitans_default(key, write, overlay):
    section = f"quantize: {{linear: {{float8: {{{key}: {KEYS[key]}}}}}}}"
    overlay("more", section)
    given = [
        (write(f"base: baseline_compiled\n{section}"),),
        (write(section),),  # a recipe of its own
        (write(f"base: baseline\n{FLOAT8}.{key}: {KEYS[key]}"),),
        ("baseline_compiled", ["more"]),
        ("baseline_compiled", [], [f"{FLOAT8}.{key}={KEYS[key]}"]),
    ]
    for args in given:
        sentence = refused(*args)
        assert f"{FLOAT8}.{key}: " in sentence, args
        assert SCALING in sentence and "tensorwise" in sentence, args


@pytest.mark.parametrize("section", ["{}", "{filter_fqns: [output], recipe_name: null}"])
def test_a_section_without_a_scaling_is_refused(section, write):
    text = f"quantize: {{linear: {{float8: {section}}}}}"
    assert FLOAT8 in refused(write(f"base: baseline_compiled\n{text}"))
    assert FLOAT8 in refused("baseline_compiled", [], [f"{FLOAT8}={section}"])
    assert "object" in refused("tensorwise_fp8_compiled", [], [f"{FLOAT8}=null"])


def test_an_inherited_fp8_can_be_turned_off_with_its_keys(write, monkeypatch, tmp_path):
    folder = tmp_path / "recipes"
    folder.mkdir()
    for path in recipes.RECIPES.glob("*.yaml"):
        (folder / path.name).write_text(path.read_text())
    monkeypatch.setattr(recipes, "RECIPES", folder)
    gathers = f"{FLOAT8}.filter_fqns: [output]\n{FLOAT8}.enable_fsdp_float8_all_gather: true"
    parent = f"description: x\nbase: tensorwise_fp8_compiled\n{gathers}"
    (folder / "gathers.yaml").write_text(parent)
    bf16 = write(f"base: gathers\n{SCALING}: null")
    assert load(bf16).config.quantize.linear.float8.recipe_name is None
    assert load("gathers", [], [f"{SCALING}=null"])
    # and what is set afterwards is refused again
    assert f"{FLOAT8}.emulate" in refused(bf16, [], [f"{FLOAT8}.emulate=true"])
    both = [f"{FLOAT8}.emulate=true", f"{SCALING}=null"]
    assert f"{FLOAT8}.emulate" in refused("gathers", [], both)


@pytest.mark.parametrize(
    ("key", "switch"),
    [
        ("checkpoint.interval=100", "checkpoint.enable=true"),
        ("checkpoint.initial_load_path=x", "checkpoint.enable=true"),
        ("lr_scheduler.min_lr_factor=0.1", "lr_scheduler.decay_ratio=0.5"),
        ("lr_scheduler.min_lr_factor=0.1", "lr_scheduler.decay_ratio=null"),
        ("activation_checkpoint.selective_ac_option=2", "activation_checkpoint.mode=selective"),
        ("activation_checkpoint.memory_budget=0.3", "activation_checkpoint.mode=memory_budget"),
        ("profiling.profiler_active=2", "profiling.enable_profiling=true"),
        ("debug.deterministic_warn_only=true", "debug.deterministic=true"),
    ],
)
def test_a_key_of_what_is_off_is_refused_with_its_switch(key, switch, write, overlay):
    recipe, (name, _, value) = "baseline_compiled", key.partition("=")
    overlay("more", f"{name}: {value}")
    given = [(recipe, [], [key]), (write(f"base: {recipe}\n{name}: {value}"),), (recipe, ["more"])]
    for args in given:
        sentence = refused(*args)
        assert f"{name}: " in sentence and switch.partition("=")[0] in sentence, args
    assert load(recipe, [], [key, switch])
    assert load(recipe, ["more"], [switch])


def test_what_somebody_has_turned_off_may_keep_its_keys(write, tmp_path):
    section = "checkpoint: {enable: false, interval: 500, async_mode: disabled}"
    assert load(write(f"base: baseline\n{section}"))
    assert not load("baseline", ["alps"], ["checkpoint.enable=false"]).config.checkpoint.enable
    path = tmp_path / "recipe.yaml"
    path.write_text(recipes.to_yaml(load("baseline")))
    assert load(str(path))
    assert "checkpoint.interval" in refused(str(path), [], ["checkpoint.interval=5"])


def test_all_recipes_take_an_overlay_that_is_made_for_all_of_them():
    for name in recipes.yaml_files(recipes.RECIPES):
        assert load(name, ["as_published"]).config.quantize.linear.float8.filter_fqns == []


def test_compared_recipes_share_keys_that_one_of_them_reads(overlay):
    overlay("heads", f"{FLOAT8}.filter_fqns: []")
    keys = [f"{FLOAT8}.filter_fqns=[output, first_and_last_block]"]
    both = ["baseline_compiled", "tensorwise_fp8_compiled"]
    assert [*load_recipes(both, ["heads"], keys)] == both
    with pytest.raises(InputError):
        load_recipes(["baseline", "baseline_compiled"], ["heads"], [])


def test_a_resolved_recipe_has_all_keys_and_loads_again(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(recipes.to_yaml(load("baseline", ["cpu", "as_published"])))
    assert load(str(path)).config.quantize.linear.float8.filter_fqns == []
    assert FLOAT8 in refused(str(path), [], [f"{FLOAT8}.filter_fqns=[output]"])


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ([f"{SCALING}=rowwise", f"{FLOAT8}.enable_fsdp_float8_all_gather=true"], "tensorwise"),
        (
            [f"{SCALING}=tensorwise", f"{FLOAT8}.precompute_float8_dynamic_scale_for_fsdp=true"],
            "enable_fsdp_float8_all_gather",
        ),
        (["model.converters=[quantize.linear.float8]"], SCALING),
        (["model.converters=[float8]"], "tensorwise"),
        ([f"{FLOAT8}.force_recompute_fp8_weight_in_bwd=true"], "force_recompute_fp8_weight_in_bwd"),
    ],
)
def test_what_is_read_with_another_value_only(keys, named):
    assert named in refused("baseline_compiled", [], keys)


# ---- what is compiled ----


def test_compiling_nothing_is_a_contradiction():
    for key in "persistent_workers=true", "prefetch_factor=2":
        name = f"training.dataloader.{key}"
        assert name.partition("=")[0] in refused("baseline", [], [name])
        assert load("baseline", [], [name, "training.dataloader.num_workers=1"])
    nothing = ["compile.components=[]"]
    assert "compile.components: " in refused("baseline_compiled", [], nothing)
    assert load("baseline", [], nothing)
    budget = ["activation_checkpoint.mode=memory_budget", "compile.components=[loss]"]
    assert "activation_checkpoint.mode: " in refused("baseline_compiled", [], budget)


@pytest.mark.parametrize(
    ("recipe", "components", "compiles"),
    [
        ("baseline", "[model, loss]", False),
        ("baseline_compiled", "[model, loss]", True),
        ("baseline_compiled", "[model]", True),
        ("baseline_compiled", "[loss]", False),
    ],
)
def test_a_compiled_loss_alone_is_no_compiled_model(recipe, components, compiles):
    config = load(recipe, [], [f"compile.components={components}"]).config
    assert config.compile.compiles_model == compiles


# ---- texts ----

OTHER_TYPES = [
    "2", "1e5", "0x10", "1_000", "0o17", "1.50", "12:30", "on", "Yes", "true", "null", "~", ".inf",
    "2026-11-22", "2026-11-22 10:00:00",
]  # fmt: skip


@pytest.mark.parametrize("text", OTHER_TYPES)
def test_a_text_is_what_was_written(text, write):
    path = write(f"description: {text}\nbase: baseline\ndata: {{text_column: {text}}}")
    recipe = load(path, [], [f"model.hf_assets_path={text}"])
    assert recipe.description == recipe.config.data.text_column == text
    assert recipe.config.model.hf_assets_path == text
    keys = [f"{SCALING}=tensorwise", f"{FLOAT8}.filter_fqns=[output, {text}]"]
    assert load("baseline", [], keys).config.quantize.linear.float8.filter_fqns == [
        "output",
        text,
    ]


def test_texts_have_their_limits_and_other_keys_stay_strict():
    selective = "activation_checkpoint.selective_ac_option"
    keys = ["activation_checkpoint.mode=selective", f"{selective}=2"]
    assert load("baseline", [], keys).config.activation_checkpoint.selective_ac_option == "2"
    assert selective in refused("baseline", [], [f"{selective}=0"])
    # a key that may be null is null
    assert load("baseline", [], ["data.subset=null"]).config.data.subset is None
    assert load("baseline", [], ["data.subset=2024"]).config.data.subset == "2024"
    for wrong in ("training.steps=2026-11-22", "training.steps='5'", "compile.enable=1"):
        assert wrong.partition("=")[0] in refused("baseline", [], [wrong])
    for nothing in ("model.flavor=", "data.split="):
        assert "valid string" in refused("baseline", [], [nothing])


# ---- keys that have moved ----


@pytest.mark.parametrize("old", read_moves())
def test_a_moved_key_is_answered_with_its_place(old):
    """In a file and on the command line; a section with the keys that the new one has."""
    move = read_moves()[old]
    leaves = [old]
    if old.endswith(".") and move.key:
        new = [key for key in EXISTING if key.startswith(move.key)]
        leaves = [old + key[len(move.key) :] for key in new] or [old.rstrip(".")]
    for leaf in leaves:
        sentence = refused("baseline", [], [f"{leaf.rstrip('.')}=1"])
        assert "torchtitan has" in sentence and "has this key" not in sentence
        assert (move.key.rstrip(".") or move.note) in sentence


def test_a_place_is_a_key_or_says_why_it_is_none():
    for old, (key, _) in read_moves().items():
        place = key.rstrip(".")
        has_keys = any(f"{name}.".startswith(f"{place}.") for name in EXISTING)
        assert not key or has_keys or find_replacement(place), old


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("float8.filter_fqns", f"{FLOAT8}.filter_fqns"),
        ("float8", FLOAT8),
        ("quantize.dense.float8.recipe_name", SCALING),
        ("training.compile", "compile.enable"),
        ("recipe_name", SCALING),
        ("linear.float8.recipe_name", SCALING),
        ("training.seq-len", "training.seq_len"),
    ],
)
def test_the_place_of_a_key(key, place):
    assert place in refused("baseline", [], [f"{key}=1"])


def test_a_whole_section_of_another_release_is_answered_key_by_key(write):
    text = "float8: {recipe_name: rowwise, filter_fqns: [output]}\ntraining: {compile: true}"
    lines = refused(write(f"base: baseline\n{text}")).splitlines()
    assert len(lines) == 3 and all("mine.yaml:" in line for line in lines)


# ---- options that mean keys ----


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("--steps 5", "training.steps=5"),
        ("--steps=5", "training.steps=5"),
        ("--training.steps 5", "training.steps=5"),
        ("--training.seq-len=64", "training.seq_len=64"),
        ("--seq_len 64", "training.seq_len=64"),
        ("--lr 3e-4", "optimizer.lr=3e-4"),
        ("-lr 3e-4", "optimizer.lr=3e-4"),
        ("--batch-size 8", "training.local_batch_size=8"),
        ("--training.batch_size 8", "training.local_batch_size=8"),
        ("--model.flavor=8B", "model.flavor=8B"),
        ("--compile", "compile.enable=true"),
        ("--no-compile", "compile.enable=false"),
        ("--training.compile", "compile.enable=true"),
        ("--compile baseline", "compile.enable=true"),
        ("--checkpoint.enable_checkpoint baseline", "checkpoint.enable=true"),
        ("--float8.recipe_name=rowwise", f"{SCALING}=rowwise"),
        ("--text-column body", "data.text_column=body"),
        ("--step 5", "training.steps=5"),
        ("--metrics.enable_color_printing", "metrics.disable_color_printing"),
        ("--dataset 'a b'", "'training.dataset=a b'"),
        ("--enable_profiling", "profiling.enable_profiling=true"),
    ],
)
def test_an_option_is_answered_with_the_key_that_it_means(words, key):
    parser = CommandLine("experiments.run", "")
    parser.add_recipe()
    parser.add_argument("--seeds")
    parser.add_argument("--out")
    for before, after in ([], ["baseline"]), (["baseline", "--out", "x"], []):
        with pytest.raises(InputError, match="unrecognized arguments") as error:
            parser.parse_arguments([*before, *shlex.split(words), *after])
        assert f" {key}" in str(error.value)
        assert "--seeds" not in str(error.value)


@pytest.mark.parametrize("command", OPTIONS_BY_COMMAND)
def test_an_option_of_another_command_is_answered_with_that_command(command):
    main = importlib.import_module(command).main
    if command != "analysis.report":
        with pytest.raises(InputError, match="--html is an option of .* -m analysis.report`"):
            main(["--html"])
    taken = [option for option in OPTIONS_BY_COMMAND[command] if option in help_of(main)]
    assert taken == [*OPTIONS_BY_COMMAND[command]]


def help_of(main) -> str:
    with pytest.raises(SystemExit), contextlib.redirect_stdout(io.StringIO()) as text:
        main(["-h"])
    return text.getvalue()


def test_an_option_without_a_value_is_answered_with_the_key_alone():
    assert translate_option("--lr", None) == translate_option("--lr", "--out") == "optimizer.lr=…"


def test_options_of_the_table_are_keys_and_are_translated_without_torch():
    for option, key in read_options().items():
        assert key.partition("=")[0] in EXISTING | dict.fromkeys(
            f"model.sizes.{name}" for name in vars(DEFAULTS.model.sizes)
        ), option
        assert translate_option(f"--{option}", "5").startswith(key.partition("=")[0])


def test_a_command_without_keys_suggests_none():
    parser = CommandLine("analysis.report", "")
    parser.add_argument("--reference")
    with pytest.raises(InputError) as error:
        parser.parse_arguments(["--steps", "5", "--referense", "x"])
    assert "training.steps" not in str(error.value) and "take --reference" in str(error.value)


@pytest.mark.parametrize(
    ("override", "end"),
    [
        ("training.steps=1e3", "got 1e3"),
        ("quantize.linear.float8.filter_fqns=output", "write [output]"),
    ],
)
def test_a_wrong_value_is_told_as_it_was_written(override, end):
    with pytest.raises(InputError) as error:
        recipes.load("tensorwise_fp8_compiled", ["cpu"], [override])
    assert str(error.value).endswith(end)
