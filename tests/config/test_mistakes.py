"""What is said of mistakes in recipes, overlays and on the command line."""

import functools
import json
import os

import pytest

from experiments.config import recipes, rules, values, yaml_source
from experiments.config.recipes import load, to_yaml
from models.errors import InputError

FLOAT8 = "quantize.linear.float8"
HEAD = "base: baseline\ndescription: foo\n"


def problems(*args, **kwargs) -> list[str]:
    with pytest.raises(InputError) as error:
        load(*args, **kwargs)
    return str(error.value).splitlines()


# ---- mistakes in one layer ----


@pytest.mark.parametrize(
    "text, line",
    [
        (f"{HEAD}training:\n  stepz: 5", "4: training.stepz: unknown key; did you mean `steps`?"),
        (
            f"{HEAD}training:\n  lr: 1e-3",
            "4: training.lr: unknown key; did you mean `optimizer.lr`?",
        ),
        (
            f"{HEAD}debug:\n  zzzz: 1",
            "4: debug.zzzz: unknown key; known here: seed, deterministic, ",
        ),
        (f"{HEAD}optimiser:\n  lr: 1", "3: optimiser: unknown key; did you mean `optimizer`?"),
        (f"{HEAD}name: x", "3: name: unknown key; "),
        (
            f"{HEAD}training.steps: 5",
            "3: expected a key's name, of letters, digits and _, before the colon",
        ),
        (f"{HEAD}training:\n  ? [steps]\n  : 2", "4: expected a key's name"),
        (f"{HEAD}optimizer:\n  lr: fast", "4: optimizer.lr: expected a number, got 'fast'"),
        (f"{HEAD}training:\n\n  steps: 1.5", "5: training.steps: expected an integer, got 1.5"),
        (f"{HEAD}training:\n  steps: true", "4: training.steps: expected an integer, got true"),
        (f"{HEAD}compile:\n  enable: yes", "4: compile.enable: expected true or false, got 'yes'"),
        (
            f"{HEAD}compile:\n  components: model",
            "4: compile.components: expected a list, as [a, b], got 'model'",
        ),
        (f"{HEAD}model:\n  freeze: [a, 3]", "4: model.freeze: item 2: expected text, got 3"),
        (
            f"{HEAD}compile:\n  components: [model, foo]",
            "4: compile.components: item 2: expected 'model' or 'loss', g",
        ),
        (
            f"{HEAD}compile:\n  scope: blok",
            "4: compile.scope: expected 'block' or 'model', got 'blok'",
        ),
        (f"{HEAD}model:\n  flavor:", "4: model.flavor: expected text, got null"),
        (
            f"{HEAD}validation:\n  steps: 5",
            "4: validation.steps: has no effect here; leave it out, got 5",
        ),
        (f"{HEAD}job:\n  description: x", "4: job.description: write it as `description:`"),
        (
            f"{HEAD}training:\n  steps: 1\n  steps: 2",
            "5: training.steps: already given at recipes/foo.yaml:4; kee",
        ),
        (f"{HEAD}training:\n  steps: [1\n", "5: YAML error while parsing a flow sequence: "),
        (
            f"{HEAD}training: {{steps: &x 3, seq_len: *x}}",
            "3: YAML error: the alias *x is not allowed",
        ),
        (
            f"{HEAD}job:\n  dump_folder: !!python/object/apply:os.getcwd []",
            "4: YAML error: the tag !!python/",
        ),
        (
            f"{HEAD}training: {'{a: ' * 900}{'}' * 900}",
            "3: YAML error: more than 20 levels of nesting",
        ),
        (
            f"{HEAD}model:\n  freeze: {'[' * 900}{']' * 900}",
            "4: YAML error: more than 20 levels of nesting",
        ),
        (
            f"{HEAD}training:\n  steps: {'9' * 5000}",
            "4: YAML error: an integer of more than 18 digits",
        ),
        (
            f'{HEAD}model:\n  flavor: "\\ud800"',
            "4: YAML error: text with a NUL or half a character",
        ),
        (f'{HEAD}model:\n  "fl\\0": a', "4: YAML error: text with a NUL or half a character"),
        (f"{HEAD}# {'x' * 100_000}", " has more than 100 kB"),
        ("# nothing\n", "1: base: missing; name the parent recipe"),
        ("just text", "1: expected keys with their values, got 'just text'"),
        ("base: baseline\ndescription: {a: 1}", "2: description: expected a line of text"),
        ("base: baseline", "1: description: expected a line of text"),
        (
            "base: baseline\ndescription: 'a\n\n  b'",
            "2: description: expected a line of text on what this is for, got",
        ),
        (
            "\nbase: baselin\ndescription: foo",
            "2: base: unknown recipe `baselin`; did you mean `baseline`",
        ),
        ("base: [a]\ndescription: foo", "1: base: unknown recipe `['a']`"),
        (b"base: b\xff", "1: not a text file in UTF-8: "),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_line(write, text, line):
    write("foo", text)
    messages = problems("foo")
    assert len(messages) == 1 and messages[0].startswith(f"recipes/foo.yaml:{line}"), messages


RANGES = {  # values beside a range, in it at its ends, and the sentence
    "optimizer.lr": ("-1 .nan .inf", "0 1e-9", "a finite number of at least 0"),
    "optimizer.eps": ("-1 0 .nan 1e-3 1e300", "1e-9 1e-4", "more than 0 and at most 0.0001"),
    "optimizer.weight_decay": (".nan -0.1", "0", "a finite number of at least 0"),
    "optimizer.beta1": (".nan 1.5 2.0 1 -1", "0 0.999999", "at least 0 and less than 1"),
    "optimizer.beta2": ("1 1.0", "0", "at least 0 and less than 1"),
    "lr_scheduler.warmup_steps": ("-5", "0 2000", "a finite number of at least 0"),
    "lr_scheduler.decay_ratio": (".nan 2 -0.1", "0 1 null", "at least 0 and at most 1"),
    "lr_scheduler.min_lr_factor": (".nan 1.1", "0 1", "at least 0 and at most 1"),
    "training.max_norm": ("-1 0 .nan", ".inf 1e-9", "more than 0"),
    "training.steps": (f"0 -1 {10**17}", f"1 {10**9}", "at least 1 and at most 1,000,000,000"),
    "training.seq_len": ("1 0", "2 100", "at least 2"),
    "training.global_batch_size": ("0 -2", "-1 1", "-1 or at least 1"),
    "training.gc_freq": ("0", "1", "at least 1"),
    "training.dataloader.num_workers": ("-1 2000", "0 8", "at least 0 and at most 1,000"),
    "checkpoint.keep_latest_k": ("1 -1", "0 2", "0 (all) or at least 2"),
    "parallelism.data_parallel_replicate_degree": ("0 -1", "1 2", "at least 1"),
    "parallelism.data_parallel_shard_degree": ("0 -2", "-1 1", "-1 or at least 1"),
    "comm.trace_buf_size": (f"-1 {10**12}", f"0 {10**6}", "at least 0 and at most 1,000,000"),
    "data.bpe_vocab_size": (f"256 {10**12}", "257", "at least 257 and at most 1,000,000"),
    "data.max_tokens": ("0", "1 null", "at least 1"),
}


@pytest.mark.parametrize("key", RANGES)
def test_a_number_out_of_range_is_refused(key):
    outside, inside, words = RANGES[key]
    for value in outside.split():
        [line] = problems("baseline", overrides=[f"{key}={value}"])
        assert line.startswith(f"command line: {key}={value}: {key}: expected {words}, got ")
    for value in inside.split():
        load("baseline", overrides=[f"{key}={value}"])


@pytest.mark.parametrize("seed", [-1, 10**18, 10**26])
def test_a_seed_fits_into_64_bits(seed):
    [line] = problems("baseline", seed=seed)
    assert line.startswith("--seed: debug.seed: expected at least 0 and less than 1e+18, got ")


@pytest.mark.parametrize(
    "overrides, message",
    [
        ("nothing", "expected key.path=value, e.g. training.steps=100"),
        ("a\udcff=1", "expected key.path=value"),
        ("foo.bar=1", "foo: unknown key; known here: "),
        (
            "experimental.custom_import=runs.evil",
            "would run code that the recipe names; set it to '', got 'runs.evil'",
        ),
        ("experimental.custom_args_module=x", "would run code"),
        ("job.custom_config_module=x", "would run code"),
        ("model.name=x", "expected 'llama' or 'qwen3', got 'x'"),
        ("model.sizes.dmi=512", "unknown key; did you mean `dim`?"),
        ("model.sizes.n_layers=1001", "expected at least 1 and at most 1,000, got 1001"),
        ("model.sizes.dim=0", "expected at least 1"),
        ("model.sizes.dim=big", "expected an integer, got 'big'"),
        ("model.sizes=512", "expected keys below it, got 512"),
        (
            "model.converters=[]",
            "converts nothing until quantize.linear.float8.recipe_name is set; set it to",
        ),
        (
            "parallelism.tensor_parallel_degree=2",
            "FSDP shards the model instead; set it to 1, got 2",
        ),
        ("compile.backend=foo", "expected 'inductor', 'aot_eager' or 'eager', got 'foo'"),
        (
            "activation_checkpoint.selective_ac_option=foo",
            "expected 'op' or a number in quotes, got 'foo'",
        ),
        (
            "checkpoint.folder=/x",
            "expected a folder within the run directory, of letters, digits, _ and -, got '/x'",
        ),
        ("checkpoint.folder=a/../../b", "expected a folder within the run directory"),
        ("checkpoint.folder=''", "expected a folder within the run directory"),
        (
            "checkpoint.folder=recipe.yaml",
            "expected a folder within the run directory, of letters, digits, _ and -",
        ),
        ("metrics.save_tb_folder=attempt1", "expected a folder within the run directory"),
        (
            "checkpoint.load_only=true",
            "a run saves what it can go on from; set it to false, got true",
        ),
        (
            "profiling.enable_profiling=true",
            "`python -m experiments.bench` gives times by part; set it to false",
        ),
        ("job.dump_folder=/x", "has no effect here; leave it out, got '/x'"),
        ("quantize.grouped_mm.float8.fqns=[a]", 'has no effect here; leave it out, got ["a"]'),
        (
            "parallelism.pipeline_parallel_schedule=GPipe",
            "has no effect here; leave it out, got 'GPipe'",
        ),
        ("debug.seed=null", "expected an integer, got null"),
        (f"model.flavor=[{'1,' * 5000}]", "…"),
        # keys that contradict each other
        (
            f"training.seq_len=100 {FLOAT8}.recipe_name=rowwise",
            "seq_len x local_batch_size is 100; FP8 needs",
        ),
        (
            f"{FLOAT8}.enable_fsdp_float8_all_gather=true {FLOAT8}.recipe_name=rowwise",
            "needs recipe_name: tensorwise",
        ),
        (
            f"{FLOAT8}.precompute_float8_dynamic_scale_for_fsdp=true",
            "needs enable_fsdp_float8_all_gather: true",
        ),
        (f"{FLOAT8}.fast_accumulation_in_backward=true", "does nothing without a recipe_name"),
        (f"{FLOAT8}.emulate=true", "does nothing without a recipe_name"),
        ("optimizer.stochastic_rounding=true training.dtype=float32", "rounds bf16 weights"),
        ("optimizer.built=before_conversion compile.enable=true", "set compile.enable to false"),
        ("compile.cuda_graphs=true", "set compile.enable to true"),
        (
            "compile.cuda_graphs=true compile.enable=true training.global_batch_size=1024",
            "set training.global_batch_si",
        ),
        (
            "training.global_batch_size=7 training.local_batch_size=2",
            "expected a multiple of local_batch_size",
        ),
        ("training.dataset_path=text.parquet", "set training.dataset to parquet"),
        (
            "training.dataset_path=text.parquet training.dataset=c4",
            "set training.dataset to parquet",
        ),
        (
            "data.text_column=body",
            "is not read with training.dataset=python_stdlib_with_tests; leave it out, or set",
        ),
        (
            "data.subset=en training.dataset=parquet",
            "set training.dataset to a name on Hugging Face",
        ),
        ("checkpoint.initial_load_path=/x", "set checkpoint.enable to true"),
        (
            "training.dataloader.num_workers=0 training.dataloader.prefetch_factor=2",
            "expected 1 or more with",
        ),
        ("lr_scheduler.total_steps=999", "expected at least training.steps (1000), got 999"),
        ("activation_checkpoint.mode=memory_budget", "set compile.enable to true"),
        (
            "activation_checkpoint.mode=memory_budget compile.enable=true compile.scope=model",
            "scope to block",
        ),
    ],
)
def test_what_would_fail_or_be_ignored_is_refused(overrides, message):
    [line] = problems("baseline", overrides=overrides.split())
    assert line.startswith(f"command line: {overrides.split()[0]}: ") and message in line


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "training.dtype=float32",
            "training.dtype is float32; set it to bfloat16, or the states to null",
        ),
        ("optimizer.stochastic_rounding=true", "set one of them to false or null"),
        (
            "optimizer.states.first_moment=null",
            "expected a dtype for first_moment too, or null for all three",
        ),
    ],
)
def test_master_weights_stand_beside_bf16_parameters_that_are_rounded_to_the_nearest(
    override, message
):
    [line] = problems("fp8_optimizer", overrides=[override])
    assert message in line


def test_each_restricted_key_exists_and_its_value_in_base_is_fine():
    config = load("base").config
    for key, rule in values.VALUES.items():
        assert rule(functools.reduce(getattr, key.split("."), config)) is None
    known = [key for key, _ in rules.flat(config.to_dict())]
    assert all(
        any(key.startswith(beginning) for key in known) for beginning in values.WITHOUT_EFFECT
    )


@pytest.mark.parametrize(
    "spoiled, message",
    [("training:", "expected keys below it, got null"), ("optimizer: hello", "expected keys below it, got 'hello'"),
     ("training: {seq_len: many}", "expected an integer"), ("training: {seq_len: 0}", "expected at least 2")],
)  # fmt: skip
def test_all_mistakes_of_all_layers_are_named_although_later_ones_replace_them(
    write, spoiled, message
):
    write("foo", HEAD + spoiled)
    write("overlays/bar", "description: bar\n" + spoiled)
    keys = ["training.seq_len=256", "optimizer.lr=1e-3"]
    lines = problems("foo", ["bar", "cpu"], [*keys, "model.flavour=cpu"])
    places = [
        "recipes/foo.yaml:3: ",
        "recipes/overlays/bar.yaml:2: ",
        "command line: model.flavour=cpu: ",
    ]
    for line, place, expected in zip(lines, places, [message, message, "unknown key"], strict=True):
        assert line.startswith(place) and expected in line


# ---- files that are no recipes ----


def test_torchtitans_defaults_need_not_suit(tmp_path):
    (tmp_path / "bare.yaml").write_text("description: bare\n")
    [line] = problems(str(tmp_path / "bare.yaml"))
    assert line.startswith("torchtitan default: model.converters: converts nothing until")


def test_a_circle_of_parents(write):
    for name, parent in (("a", "b"), ("b", "c"), ("c", "b")):
        write(name, f"base: {parent}\ndescription: {name}\n")
    assert problems("a") == ["b.yaml: base: circular: b -> c -> b"]


@pytest.mark.parametrize(
    "name", ["/x", "../x", "a/b", "..", ".hidden", "", "a=b", "x" * 101, "a\nb", ["x"]]
)
def test_a_resolved_recipe_names_no_place_but_its_own(name, tmp_path):
    text = to_yaml(load("baseline", ["cpu"])).replace(
        "name: baseline", f"name: {json.dumps(name)}", 1
    )
    (tmp_path / "recipe.yaml").write_text(text)
    [line] = problems(str(tmp_path / "recipe.yaml"))
    assert "recipe.yaml:4: name: expected letters, digits," in line


@pytest.mark.parametrize(
    "name, overlay, sentence",
    [
        (
            "baselin",
            "cpu",
            "unknown recipe `baselin`; did you mean `baseline` or `base`? known: base, baseline, ",
        ),
        ("runs/baseline", "cpu", "unknown recipe `runs/baseline`; "),
        ("overlays/cpu", "cpu", "unknown recipe `overlays/cpu`; "),
        ("x" * 300, "cpu", "known: base, baseline, "),
        (
            "nowhere.yaml",
            "cpu",
            "nowhere.yaml: no such file; give the path of a recipe, or a name: base, baseline, ",
        ),
        ("loop.yaml", "cpu", "loop.yaml: no such file"),
        (f"{'x' * 300}.yaml", "cpu", "no such file"),
        ("baseline", "cpuu", "unknown overlay `cpuu`; did you mean `cpu`? known: alps, "),
    ],
)
def test_names_that_are_not_there(name, overlay, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.symlink("loop.yaml", "loop.yaml")
    [line] = problems(name, [overlay])
    assert sentence in line


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink(path, path)])
def test_what_is_not_a_file_is_no_recipe(make, write):
    make(recipes.RECIPES / "foo.yaml")
    assert problems("foo") == [
        "recipes/foo.yaml: is not a file, or a link that leads nowhere: give a YAML file"
    ]


def test_a_file_that_may_not_be_read(write, monkeypatch):
    def denied(*_):
        raise PermissionError(13, "Permission denied")

    write("foo", HEAD)
    monkeypatch.setattr(yaml_source, "open", denied, raising=False)  # root may read all
    assert problems("foo") == ["recipes/foo.yaml: cannot be read: Permission denied"]
