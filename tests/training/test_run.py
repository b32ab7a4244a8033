"""`python -m experiments.run` as a user meets it: bad input, interruptions, records."""

import logging
import re
import sys

import pytest
import torch
import torch.distributed as dist

from experiments import recipe
from experiments.config import recipes
from experiments.jobs.progress import display
from experiments.run import main
from experiments.training import preflight
from models import device
from models.errors import InputError
from tests import processes
from tests.make_corpus import write_tokenizer
from tests.runs import TINY


@pytest.fixture
def fails(capsys):
    """Call the command in this process; returns what it said on stderr after an exit with code 2."""

    def call(*args: str) -> str:
        assert main([*map(str, args)]) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: ") and "Traceback" not in said
        return said

    return call


# ---- what it says without training ----


def test_list_has_a_line_for_each_recipe_and_overlay(capsys):
    assert recipe.main(["list"]) == 0
    said = capsys.readouterr().out
    for name in (*recipes.names(), *recipes.overlay_names()):
        assert f"  {name} " in said


def test_show_prints_the_recipe_and_its_difference(capsys):
    assert recipe.main(["show", "tensorwise_fp8_compiled"]) == 0
    said = capsys.readouterr().out
    assert "flavor: 8B-published" in said
    assert said.rstrip().endswith("quantize.linear.float8.recipe_name: None -> 'tensorwise'")


def test_dry_run_says_what_would_run_and_trains_nothing(capsys, tmp_path, monkeypatch):
    assert main(["rowwise_fp8_compiled", "--overlay", "cpu", "--seed", "3", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "28 linear layers in rowwise FP8" in said and "python_stdlib: " in said
    assert "ready    rowwise_fp8_compiled + cpu, seed 3" in said


# ---- bad input: one sentence, exit code 2, nothing left behind ----


def test_unknown_recipe_names_the_nearest(fails):
    assert "unknown recipe `tensorwise_fp8`; did you mean `tensorwise_fp8_compiled`" in fails("tensorwise_fp8")


def test_unknown_key_on_the_command_line(fails):
    said = fails("baseline", "training.stepz=3")
    assert "command line: training.stepz=3: training.stepz: unknown key; did you mean `steps`?" in said


def test_unknown_flavor_names_those_there_are(fails):
    assert "model.flavor '8B' is not one of 8B-published" in fails("baseline", "model.flavor=8B", "--dry-run")


def test_vocabulary_larger_than_the_models(fails, config):
    keys = [f"training.dataset_path={config.training.dataset_path}", f"data.cache_dir={config.data.cache_dir}"]
    write_tokenizer(config.model.hf_assets_path, {"</s>": 0} | {f"w{i}": i for i in range(1, 5000)})
    keys += ["training.dataset=parquet", f"model.hf_assets_path={config.model.hf_assets_path}", "training.seq_len=8"]
    said = fails("baseline", "--overlay", "cpu", *keys, "--dry-run")
    assert "has 5,000 tokens and the model 4,096" in said


def test_missing_tokenizer(fails):
    said = fails("baseline", "--overlay", "cpu", "model.hf_assets_path=./nowhere", "--dry-run")
    assert "model.hf_assets_path=./nowhere" in said and "does not exist" in said


def test_filter_that_matches_nothing(fails):
    said = fails(
        "tensorwise_fp8_compiled", "--overlay", "cpu", "quantize.linear.float8.filter_fqns=[lm_head]", "--dry-run"
    )
    assert "`lm_head` matches no linear layer" in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="the compiler is inductor's for CPUs")
@pytest.mark.parametrize("compiler", ["no-such-compiler", ""])
def test_no_cpp_compiler(compiler, monkeypatch, fails):
    monkeypatch.setenv("CXX", compiler)
    said = fails("baseline_compiled", "--overlay", "cpu", "--dry-run")
    assert f"needs a C++ compiler on a CPU and `{compiler}` is not" in said and "variable CXX" in said


@pytest.mark.parametrize(
    "override",
    ["training.local_batch_size=0", "training.seq_len=-3", "metrics.log_freq=0", "optimizer.name=Adamm",
     "debug.seed=null", "validation.enable=true", "training.global_batch_size=6", "data.bpe_vocab_size=10",
     "optimizer.lr=-1", "optimizer.lr=1e400", "training.dataset_path=text.parquet",
     "parallelism.context_parallel_degree=2", "model.attention_backend=cudnn", "compile.cuda_graphs=true"],
)  # fmt: skip
def test_what_a_run_would_fail_on_is_found_before_it(fails, override, monkeypatch):
    monkeypatch.setattr(preflight.device, "TYPE", "cpu")
    assert override.split("=")[0] in fails("baseline", "--overlay", "cpu", override, "--dry-run")


def several_ranks(monkeypatch) -> None:
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)


def test_several_processes_need_a_common_directory(fails, monkeypatch):
    several_ranks(monkeypatch)
    assert "needs --out DIR" in fails("baseline", "--overlay", "cpu")


@pytest.mark.parametrize(
    "words",
    [
        "baseline model.fused_projections=true",
        "puzzle_fp8_optimizer_first optimizer.built=before_conversion",
        "baseline model.flavor=llama3.2-1B",
    ],
)
def test_what_needs_whole_weights_is_refused_with_several_ranks(fails, words, monkeypatch, tmp_path):
    several_ranks(monkeypatch)
    said = fails(*words.split(), "--overlay", "cpu", "--out", tmp_path / "run")
    assert words.split()[1].split("=")[0] in said and not (tmp_path / "run").exists()


@pytest.mark.parametrize("folder", ["/tmp/ck", "../ck", "a/../../b", ".", '""'])
def test_checkpoints_stay_in_the_runs_folder(folder, fails, tmp_path):
    for name, keys in ("run", ["--out", tmp_path / "run"]), ("dry run", ["--dry-run"]):
        said = fails("baseline", "--overlay", "cpu", *keys, f"checkpoint.folder={folder}")
        assert "expected a folder within the run directory" in said, name
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("peak", ["fast", "0", "nan"])
def test_a_measured_peak_that_is_none(peak, monkeypatch):
    monkeypatch.setenv(device.MEASURED_PEAK, peak)
    monkeypatch.setattr(device, "TYPE", "cpu")
    with pytest.raises(InputError, match=f"{device.MEASURED_PEAK} is '{peak}': set it to FLOP/s, or unset it"):
        device.peak.__wrapped__()


def test_budget_without_checkpoints(fails, tmp_path):
    said = fails("baseline", "--overlay", "cpu", "--budget", "60", "--out", tmp_path / "run")
    assert "--budget needs checkpoints" in said and not (tmp_path / "run").exists()


def test_an_empty_name_of_a_folder(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["baseline", "--overlay", "cpu", "--out", ""])
    assert "expected a folder, got an empty name" in capsys.readouterr().err


@pytest.mark.parametrize("budget", ["-3", "0", "nan", "inf", "soon"])
def test_budget_that_no_run_can_keep_to(budget, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["baseline", "--overlay", "cpu", "--budget", budget, "checkpoint.enable=true", "--dry-run"])
    assert "--budget" in capsys.readouterr().err


GIB = 2**30


@pytest.mark.parametrize(
    ("keys", "world_size", "memory", "finding"),
    [
        ([], 1, 141, "about 87.0 GiB of 141 GiB$"),
        ([], 1, 80, "of 80 GiB: this will probably not fit"),
        ([], 1, 24, "needs .* here: choose a smaller model.flavor or the overlay `cpu`"),
        # activations and logits are not sharded: 176 and 40 GiB on each of 8 GPUs
        (["training.local_batch_size=8"], 8, 139, "needs about 224.3 GiB of 139 GiB"),
        (["training.local_batch_size=8", "activation_checkpoint.mode=full"], 8, 139, "about 61.8 GiB of 139 GiB$"),
    ],
)
def test_memory(keys, world_size, memory, finding, monkeypatch):
    monkeypatch.setattr(preflight.device, "memory_bytes", lambda: memory * GIB)
    try:
        assert re.search(finding, preflight.check_memory(recipes.load("baseline", [], keys).config, world_size))
    except InputError as error:
        assert re.search(finding, str(error))


def test_processes_of_one_machine_share_its_memory(monkeypatch):
    monkeypatch.setattr(preflight.device, "TYPE", "cpu")
    monkeypatch.setattr(preflight.device, "memory_bytes", lambda: 96 * GIB)
    config = recipes.load("baseline").config
    assert "of 96 GiB" in preflight.check_memory(config, 4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(InputError, match="of 24 GiB"):
        preflight.check_memory(config, 4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "four")
    with pytest.raises(InputError, match="LOCAL_WORLD_SIZE is 'four'"):
        preflight.check_memory(config, 4)


@pytest.mark.slow
def test_peak_memory_is_the_process_own():
    """A study that has trained a tokenizer has a peak of its own, which its runs must not start from."""
    child = "from models import device; print(device._CpuDevice.memory_stats()['active_bytes.all.peak'])"
    parent = f"import subprocess, sys; b'x' * 2**30; subprocess.run([sys.executable, '-c', {child!r}])"
    said = processes.run([sys.executable, "-c", parent]).stdout
    assert 50 * 2**20 < int(said) < 2**30


def test_one_rank_alone_starts_no_library_for_several(train, monkeypatch):
    """On a GPU it would start NCCL; here the map of backends says so of the CPU, where there is none."""
    monkeypatch.setitem(dist.Backend.default_device_backend_map, device.TYPE, "nccl")
    train(recipes.load("baseline", ["cpu"], TINY).config)
    assert dist.get_backend() == "gloo"


@pytest.mark.parametrize(
    ("version", "backend", "warned"),
    [
        ("9.10.2", "auto", True),
        ("9.10.2", "cudnn", True),
        ("9.10.2", "flash", False),
        ("9.15.1", "auto", False),
        (None, "auto", False),
    ],
)
def test_a_cudnn_that_is_too_old_is_named(version, backend, warned, monkeypatch):
    monkeypatch.setattr(device, "cudnn", lambda: version)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    config = recipes.load("baseline", ["h200"], [f"model.attention_backend={backend}"]).config
    assert bool(preflight.slow_attention(config)) == warned


def test_what_was_not_logged_before_a_run_does_not_silence_its_log(tmp_path):
    """Loggers remember which levels are off."""
    logger = logging.getLogger()
    logger.setLevel(logging.WARNING)
    logger.info("off")
    with display("run", 1, tmp_path / "log.txt"):
        logger.info("on")
    assert "INFO on" in (tmp_path / "log.txt").read_text()
