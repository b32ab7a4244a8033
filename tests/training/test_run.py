"""`python -m experiments.run` without training: what it says, refuses and estimates."""

import logging
import re
import sys

import pytest
import torch
import torch.distributed as dist

from experiments.config import recipes
from experiments.jobs.progress import display
from experiments.run import main
from experiments.training.plan import check_here, plan, slow_attention
from models import device
from models.errors import InputError
from tests import processes
from tests.make_corpus import write_tokenizer
from tests.runs import TINY

BASELINE = ["baseline", "--overlay", "cpu"]
FLOAT8 = "quantize.linear.float8"
QWEN = "model.name=qwen3 model.flavor=qwen3-cpu"


def test_dry_run_says_what_would_run(capsys):
    assert main(["rowwise_fp8_compiled", "--overlay", "cpu", "--seed", "3", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "28 linear layers in rowwise FP8" in printed and "python_stdlib: " in printed
    assert "ready    rowwise_fp8_compiled + cpu, seed 3" in printed


# ---- bad input: one sentence, exit code 2, nothing left behind ----


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "tensorwise_fp8",
            "unknown recipe `tensorwise_fp8`; did you mean `tensorwise_fp8_compiled`",
        ),
        (
            "baseline training.stepz=3",
            "training.stepz=3: training.stepz: unknown key; did you mean `training.steps`?",
        ),
        ("baseline model.flavor=8B", "model.flavor '8B' is not one of 8B-published"),
        (
            "baseline model.flavor=qwen3-8B",
            "cpu: choose one of them, or set model.name to qwen3, which has it",
        ),
        ("baseline model.name=qwen3", "model.flavor 'cpu' is not one of qwen3-0.6B"),
        (
            f"baseline {QWEN} model.fused_projections=true",
            "model.fused_projections is not there for qwen3",
        ),
        ("baseline model.sizes.n_heads=7", "model.sizes: n_heads (7) must divide dim (256)"),
        (
            f"baseline {QWEN} model.sizes.n_kv_heads=3",
            "model.sizes: n_kv_heads (3) must divide n_heads (8)",
        ),
        (
            f"baseline {QWEN} model.sizes.head_dim=15",
            "a head has 15 features, and rotations need an even number",
        ),
        ("baseline model.sizes.head_dim=64", "model.sizes.head_dim is not a Llama's"),
        ("baseline model.sizes.vocab_size=512", "has 4,096 tokens and the model 512"),
        (
            "tensorwise_fp8_compiled model.sizes.hidden_dim=1000",
            "w1 is 1000 x 256, and FP8 needs multiples of 16",
        ),
        ("baseline model.hf_assets_path=./nowhere", "does not exist"),
        ("baseline model.attention_backend=cudnn", "model.attention_backend cudnn needs a GPU"),
        ("baseline comm.nccl_max_ctas=16", "comm.nccl_max_ctas needs a GPU: set it to null"),
        ("baseline compile.cuda_graphs=true", "compile.cuda_graphs"),
        (
            "baseline profiling.enable_memory_snapshot=true",
            "profiling.enable_memory_snapshot needs a GPU: set it to",
        ),
        (
            "baseline model.freeze=['*.weight']",
            "model.freeze=['*.weight'] leaves no parameter to train",
        ),
        (
            "baseline checkpoint.enable=true checkpoint.initial_load_path=x",
            "initial_load_path=x: holds no checkpoint",
        ),
        ("baseline --budget 60", "--budget needs checkpoints"),
        (
            "baseline parallelism.data_parallel_shard_degree=3",
            "is 1 x 3, which must be the number of processes, 1: ",
        ),
        (
            "tensorwise_fp8_allgather",
            "enable_fsdp_float8_all_gather needs FSDP over two or more processes",
        ),
        (
            "tensorwise_fp8_compiled quantize.linear.float8.filter_fqns=[lm_head]",
            "`lm_head` matches no linear layer",
        ),
    ],
)
def test_what_a_run_would_fail_on_is_found_before_it(fails, words, sentence, monkeypatch):
    monkeypatch.setattr(device, "TYPE", "cpu")
    assert sentence in fails(main, *words.split(), "--overlay", "cpu", "--dry-run")


@pytest.mark.parametrize(
    ("arguments", "variables", "sentence"),
    [
        ([], {"WORLD_SIZE": "2"}, "needs --out DIR"),
        (["--budget", "60"], {}, "--budget needs checkpoints"),
        ([], {"STUDY_BUDGET_S": "an hour"}, "the environment variable STUDY_BUDGET_S is 'an hour'"),
        (
            ["model.fused_projections=true"],
            {"WORLD_SIZE": "2"},
            "model.fused_projections needs whole weights",
        ),
        (
            ["optimizer.built=before_conversion"],
            {"WORLD_SIZE": "2"},
            "optimizer.built needs whole weights",
        ),
        (
            [
                "model.flavor=llama3.2-1B",
                "model.sizes={n_layers: 1}",
                f"{FLOAT8}.recipe_name=tensorwise",
                f"{FLOAT8}.enable_fsdp_float8_all_gather=true",
                f"{FLOAT8}.filter_fqns=[]",
            ],
            {"WORLD_SIZE": "2"},
            "the head of llama3.2-1B is also its embedding, which FSDP gathers in bf16",
        ),
        (
            ["training.global_batch_size=12"],
            {"WORLD_SIZE": "2"},
            "expected a multiple of local_batch_size x processes",
        ),
        (
            ["parallelism.data_parallel_replicate_degree=3"],
            {"WORLD_SIZE": "2"},
            "is 3 x 1, which must be the number",
        ),
        (
            ["parallelism.data_parallel_shard_degree=4"],
            {"WORLD_SIZE": "2"},
            "is 1 x 4, which must be the number of",
        ),
        (["training.dataset=c4"], {}, "say with data.max_tokens how much of it to read"),
        (
            ["model.flavor=8B-published", "training.local_batch_size=10000"],
            {},
            "the run needs about",
        ),
        (
            [],
            {"WORLD_SIZE": "two"},
            "the environment variable WORLD_SIZE is 'two': set it to 1 or more, or unset it",
        ),
        (
            [],
            {device.MEASURED_PEAK: "fast"},
            f"the environment variable {device.MEASURED_PEAK} is 'fast'",
        ),
        (
            [],
            {device.MEASURED_PEAK: "nan"},
            f"the environment variable {device.MEASURED_PEAK} is 'nan'",
        ),
    ],
)
def test_what_is_refused_leaves_no_directory(
    fails, arguments, variables, sentence, monkeypatch, tmp_path
):
    monkeypatch.setattr(device, "peak", device.peak.__wrapped__)
    monkeypatch.setattr(device, "TYPE", "cpu")
    one = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    for name, value in (one | variables).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    assert sentence in fails(main, *BASELINE, *arguments)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--budget", "-3"),
        ("--budget", "nan"),
        ("--budget", "inf"),
        ("--budget", "x"),
    ],
)
def test_options_that_make_no_sense(option, value, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([*BASELINE, option, value, "checkpoint.enable=true", "--dry-run"])
    assert f"argument {option}: " in capsys.readouterr().err


def test_vocabulary_larger_than_the_models(fails, config):
    keys = [
        f"training.dataset_path={config.training.dataset_path}",
        f"data.cache_dir={config.data.cache_dir}",
    ]
    write_tokenizer(config.model.hf_assets_path, {"</s>": 0} | {f"w{i}": i for i in range(1, 5000)})
    keys += [
        "training.dataset=parquet",
        f"model.hf_assets_path={config.model.hf_assets_path}",
        "training.seq_len=8",
    ]
    assert "has 5,000 tokens and the model 4,096" in fails(main, *BASELINE, *keys, "--dry-run")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the compiler is inductor's for CPUs")
def test_no_cpp_compiler(monkeypatch, fails):
    monkeypatch.setenv("CXX", "no-such-compiler")
    errors = fails(main, "baseline_compiled", "--overlay", "cpu", "--dry-run")
    assert (
        "needs a C++ compiler on a CPU and `no-such-compiler` is not" in errors
        and "variable CXX" in errors
    )


# ---- the machine ----


@pytest.mark.parametrize(
    ("keys", "world_size", "local", "memory", "finding"),
    [
        ("", 1, "1", 141, "about 87.0 GiB of 141 GiB$"),
        ("", 1, "1", 80, "of 80 GiB: this will probably not fit"),
        ("", 1, "1", 24, "needs .* here: choose a smaller model.flavor or the overlay `cpu`"),
        # activations and logits are not sharded: 176 and 40 GiB on each of 8 GPUs
        ("training.local_batch_size=8", 8, "1", 139, "needs about 224.3 GiB of 139 GiB"),
        (
            "training.local_batch_size=8 activation_checkpoint.mode=full",
            8,
            "1",
            139,
            "about 61.8 GiB of 139 GiB$",
        ),
        ("", 4, "4", 96, "of 24 GiB"),  # processes of one machine without a GPU share its memory
        ("", 4, "x", 96, "LOCAL_WORLD_SIZE is 'x'"),
    ],
)
def test_memory(keys, world_size, local, memory, finding, monkeypatch):
    monkeypatch.setattr(device, "TYPE", "cpu")
    monkeypatch.setattr(device, "memory_bytes", lambda: memory * 2**30)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    try:
        planned = plan(recipes.load("baseline", [], keys.split()), world_size)
        assert re.search(finding, dict(check_here(planned))["memory"])
    except InputError as error:
        assert re.search(finding, str(error))


@pytest.mark.slow
def test_peak_memory_is_the_process_own():
    """A study that has trained a tokenizer has a peak of its own, which its runs must not start
    from."""
    child = "from models import device; print(device._CpuDevice.memory_stats()['active_bytes.all.peak'])"
    parent = (
        f"import subprocess, sys; b'x' * 2**30; subprocess.run([sys.executable, '-c', {child!r}])"
    )
    assert 50 * 2**20 < int(processes.run([sys.executable, "-c", parent]).stdout) < 2**30


def test_one_rank_alone_starts_no_library_for_several(train, monkeypatch):
    """On a GPU it would start NCCL; here the map of backends says so of the CPU, where there is
    none."""
    monkeypatch.setitem(dist.Backend.default_device_backend_map, device.TYPE, "nccl")
    train(recipes.load("baseline", ["cpu"], TINY).config)
    assert dist.get_backend() == "gloo"


@pytest.mark.parametrize(
    ("version", "backend", "warned"),
    [("9.10.2", "auto", True), ("9.10.2", "cudnn", True), ("9.10.2", "flash", False), ("9.15.1", "auto", False),
     (None, "auto", False)],
)  # fmt: skip
def test_a_cudnn_that_is_too_old_is_named(version, backend, warned, monkeypatch):
    monkeypatch.setattr(device, "cudnn", lambda: version)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    config = recipes.load("baseline", ["h200"], [f"model.attention_backend={backend}"]).config
    assert bool(slow_attention(config)) == warned


def test_what_was_not_logged_before_a_run_does_not_silence_its_log(tmp_path):
    """Loggers remember which levels are off."""
    logger = logging.getLogger()
    logger.setLevel(logging.WARNING)
    logger.info("off")
    with display("run", 1, tmp_path / "log.txt"):
        logger.info("on")
    assert "INFO on" in (tmp_path / "log.txt").read_text()
