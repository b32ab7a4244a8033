"""Each mistake in recipes, overlays and on the command line is refused where it was made.

What is said is in tests/messages.txt.
"""

import pytest

from experiments.config import recipes
from experiments.config.recipes import load
from models.errors import InputError

FLOAT8 = "quantize.linear.float8"
HEAD = "base: baseline\ndescription: foo\n"


def problems(*args) -> list[str]:
    with pytest.raises(InputError) as error:
        load(*args)
    return str(error.value).splitlines()


# ---- mistakes in one layer ----


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        (f"{HEAD}training:\n  stepz: 5", 4, "training.stepz"),
        (f"{HEAD}optimiser:\n  lr: 1", 3, "optimiser"),
        (f"{HEAD}optimizer:\n  lr: fast", 4, "optimizer.lr"),
        (f"{HEAD}training:\n\n  steps: 1.5", 5, "training.steps"),
        (f"{HEAD}training:\n  steps: true", 4, "training.steps"),
        (f"{HEAD}training:\n", 3, "training"),
        (f"{HEAD}optimizer: hello", 3, "optimizer"),
        (f"{HEAD}compile:\n  enable: yes", 4, "compile.enable"),
        (f"{HEAD}compile:\n  components: model", 4, "compile.components"),
        (f"{HEAD}compile:\n  components: [model, foo]", 4, "compile.components"),
        (f"{HEAD}model:\n  flavor:", 4, "model.flavor"),
        (f"{HEAD}validation:\n  steps: 5", 3, "validation"),
        (f"{HEAD}job:\n  description: x", 4, "job.description"),
        (f"{HEAD}training:\n  steps: 1\n  steps: 2", 5, "training.steps"),
        (f"{HEAD}training:\n  steps: [1\n", 5, "YAML error"),
        (f"{HEAD}training: {{steps: *x}}", 3, "YAML error"),
        (f"{HEAD}job:\n  dump_folder: !!python/object/apply:os.getcwd []", 4, "YAML error"),
        ("just text", 1, "expected keys"),
        ("base: baseline", 1, "description"),
        ("\nbase: baselin\ndescription: foo", 2, "base"),
        (f"name: ../x\n{HEAD}", 1, "name"),
        (f"name: a/b\n{HEAD}", 1, "name"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_line(write, text, line, key):
    write("foo", text)
    [message] = problems("foo")
    assert message.startswith(f"recipes/foo.yaml:{line}: {key}")


@pytest.mark.parametrize(
    ("key", "outside", "inside"),
    [
        ("optimizer.lr", "-1 .nan .inf", "0 1e-9"),
        ("optimizer.eps", "-1 0 .nan 1e-3", "1e-9 1e-4"),
        ("optimizer.beta1", ".nan 1 -1", "0 0.999999"),
        ("lr_scheduler.warmup_steps", "-5", "0 2000"),
        ("lr_scheduler.decay_ratio", ".nan 2 -0.1", "0 1 null"),
        ("training.max_norm", "-1 0 .nan", ".inf 1e-9"),
        ("training.steps", "0 -1", f"1 {10**9}"),
        ("training.seq_len", "1 0", "2 100"),
        ("training.global_batch_size", "0 -2", "-1 1"),
        ("checkpoint.keep_latest_k", "1 -1", "0 2"),
        ("parallelism.data_parallel_replicate_degree", "0 -1", "1 2"),
        ("parallelism.data_parallel_shard_degree", "0 -2", "-1 1"),
        ("activation_checkpoint.selective_ac_option", "'x' '0' 2", "op '2'"),
        ("model.sizes.dim", "0 big", "null 512"),
        ("data.bpe_vocab_size", f"256 {10**12}", "257"),
        ("debug.seed", f"-1 null {10**18}", "0"),
        (f"{FLOAT8}.implementation", "slow", "torchao fast"),
        (f"{FLOAT8}.first_step", "0 after", "null"),
    ],
)
def test_a_value_out_of_range_is_refused(key, outside, inside):
    for value in outside.split():
        [line] = problems("baseline", [], [f"{key}={value}"])
        assert line.startswith(f"command line: {key}={value}: {key}: ")
    for value in inside.split():
        load("baseline", [], [f"{key}={value}"])


GATHER = f"{FLOAT8}.enable_fsdp_float8_all_gather=true"


@pytest.mark.parametrize(
    "overrides",
    [
        "foo.bar=1",
        # keys of torchtitan's that have no effect here, or would run code
        "experimental.custom_import=runs.evil",
        "job.custom_config_module=x",
        "model.converters=[]",
        "parallelism.tensor_parallel_degree=2",
        "checkpoint.folder=/x",
        "profiling.enable_profiling=true",
        "quantize.grouped_mm.float8.fqns=[a]",
        # keys that contradict each other
        f"training.seq_len=100 {FLOAT8}.recipe_name=rowwise",
        f"{GATHER} {FLOAT8}.recipe_name=rowwise",
        f"{FLOAT8}.implementation=fast {GATHER} {FLOAT8}.recipe_name=tensorwise",
        f"{FLOAT8}.precompute_float8_dynamic_scale_for_fsdp=true",
        f"{FLOAT8}.fast_accumulation_in_backward=true",
        f"{FLOAT8}.emulate=true",
        "optimizer.stochastic_rounding=true training.dtype=float32",
        "optimizer.built=before_conversion compile.enable=true",
        "compile.cuda_graphs=true",
        "compile.cuda_graphs=true compile.enable=true training.global_batch_size=1024",
        "training.global_batch_size=7 training.local_batch_size=2",
        "training.dataset_path=text.parquet",
        "training.dataset_path=text.parquet training.dataset=c4",
        "data.text_column=body",
        "data.subset=en training.dataset=parquet",
        "checkpoint.initial_load_path=/x",
        "lr_scheduler.total_steps=999",
        "activation_checkpoint.mode=memory_budget",
        "activation_checkpoint.mode=memory_budget compile.enable=true compile.scope=model",
    ],
)
def test_what_would_fail_or_be_ignored_is_refused(overrides):
    first = overrides.split()[0]
    section = first.split(".")[0]
    [line] = problems("baseline", [], overrides.split())
    assert line.startswith(f"command line: {first}: {section}")


@pytest.mark.parametrize(
    "override",
    [
        "training.dtype=float32",
        "optimizer.stochastic_rounding=true",
        "optimizer.states.first_moment=null",
    ],
)
def test_master_weights_stand_beside_bf16_parameters_that_are_rounded_to_the_nearest(override):
    [line] = problems("fp8_optimizer", [], [override])
    assert ": optimizer.st" in line


def test_all_mistakes_of_all_layers_are_named_although_later_ones_replace_them(write):
    write("foo", f"{HEAD}training: {{seq_len: 0}}")
    write("overlays/bar", "description: bar\ntraining: {seq_len: many, steps: 0}")
    keys = ["training.seq_len=256", "optimizer.lr=1e-3", "model.flavour=cpu"]
    assert [line.split(": ")[:2] for line in problems("foo", ["bar", "cpu"], keys)] == [
        ["recipes/foo.yaml:3", "training.seq_len"],
        ["recipes/overlays/bar.yaml:2", "training.seq_len"],
        ["recipes/overlays/bar.yaml:2", "training.steps"],
        ["command line", "model.flavour=cpu"],
    ]


# ---- names and files ----


def test_a_circle_of_parents(write):
    for name, parent in (("a", "b"), ("b", "c"), ("c", "b")):
        write(name, f"base: {parent}\ndescription: {name}\n")
    [line] = problems("a")
    assert ".yaml:1: base: " in line


@pytest.mark.parametrize(
    ("name", "overlay"),
    [
        ("baselin", "cpu"),
        ("runs/baseline", "cpu"),
        ("overlays/cpu", "cpu"),
        ("nowhere.yaml", "cpu"),
        ("baseline", "cpuu"),
    ],
)
def test_names_that_are_not_there(name, overlay):
    [line] = problems(name, [overlay])
    assert name in line or overlay in line


def test_what_is_no_text_is_no_recipe(write):
    (recipes.RECIPES / "folder.yaml").mkdir()
    write("bytes", b"base: b\xff")
    for name in ("folder", "bytes"):
        [line] = problems(name)
        assert line.startswith(f"recipes/{name}.yaml: ")
