"""What can be known before a run. Each check raises an `InputError`, or returns a sentence about
what it looked at."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path, PurePath

import torch

from experiments.config.phases import fp8_steps
from experiments.config.recipes import Recipe
from experiments.corpus import rows
from experiments.corpus.tokens import TokenFile
from experiments.jobs.ranks import number
from experiments.jobs.shares import BUDGET
from experiments.training import checkpoint_files
from models import device, float8, flops
from models.architectures import build, label, model_args
from models.errors import InputError, by_pattern
from models.train_spec import freeze

HOPELESS = (
    1.3  # times the memory that is there, beyond which no inaccuracy of the estimate can help
)


def check_checkpoints(config, budget_s: float | None = None) -> None:
    """Raise `InputError` for folders that are shared or not there, and for a time budget without
    checkpoints."""
    folder = PurePath(config.checkpoint.folder)
    if folder.is_absolute() or ".." in folder.parts or not folder.parts:
        raise InputError(
            f"checkpoint.folder={config.checkpoint.folder}: expected a folder within the run directory, as checkpoint: "
            "a run must not delete or load another's checkpoints"
        )
    if config.checkpoint.initial_load_path:
        _check_first_weights(config)
    if budget_s is not None and not config.checkpoint.enable:
        raise InputError(
            "--budget needs checkpoints, or what it stops starts again from the first step: add checkpoint.enable=true"
        )


def _check_first_weights(config) -> None:
    """Raise `InputError` where there is no checkpoint, or one of another model."""
    first = f"checkpoint.initial_load_path={config.checkpoint.initial_load_path}"
    folder = Path(config.checkpoint.initial_load_path)
    if not (folder / ".metadata").is_file():
        raise InputError(
            f"{first}: holds no checkpoint: give the folder of one, as runs/STUDY/RECIPE/seed0/checkpoint/step-500"
        )
    try:
        tensors = checkpoint_files.tensors(folder)
    except Exception as error:  # whatever unpickling raises
        raise InputError(
            f"{first}: its .metadata cannot be read ({error}): give another checkpoint"
        ) from error
    sizes = {name: size for name, (size, _) in tensors.items()}
    if missing := [
        name
        for name, weight in _model(config).named_parameters()
        if sizes.get(name) != weight.shape
    ]:
        raise InputError(
            f"{first}: is of another model, without this one's {by_pattern(missing)}: give another one"
        )
    asked = {name: dtype for name, dtype in asdict(config.optimizer.states).items() if dtype}
    names = {
        name.rpartition(".")[2]: str(dtype).removeprefix("torch.")
        for name, (_, dtype) in tensors.items()
    }
    saved = {name: names[name] for name in asdict(config.optimizer.states) if name in names}
    if (
        asked != saved and not config.checkpoint.initial_load_model_only
    ):  # a cast would not fit a state's scale
        raise InputError(
            f"{first}: has optimizer.states {saved or 'null'}, the recipe {asked or 'null'}: choose a recipe with the "
            "same, or set checkpoint.initial_load_model_only to true"
        )


def check_ranks(config, world_size: int) -> None:
    """Raise `InputError` for what does not suit so many processes."""
    degrees, keys = config.parallelism, config.training
    replicas, shards = degrees.data_parallel_replicate_degree, degrees.data_parallel_shard_degree
    shards = max(1, world_size // replicas) if shards == -1 else shards
    if replicas * shards != world_size:
        raise InputError(
            f"parallelism.data_parallel_replicate_degree x data_parallel_shard_degree is {replicas} x {shards}, which "
            f"must be the number of processes, {world_size}: change a degree (1 and -1 always fit), or start as many"
        )
    if (batch := keys.global_batch_size) > 0 and batch % (keys.local_batch_size * world_size):
        raise InputError(
            f"training.global_batch_size={batch}: expected a multiple of local_batch_size x processes, "
            f"{keys.local_batch_size} x {world_size}, or -1"
        )
    all_gather = config.quantize.linear.float8.enable_fsdp_float8_all_gather
    if all_gather and shards == 1 and config.optimizer.built is None:
        raise InputError(
            "quantize.linear.float8.enable_fsdp_float8_all_gather needs FSDP over two or more processes: run it "
            "with --processes 2 or more, or set it to false"
        )
    if config.quantize.gradients and shards == 1:
        raise InputError(
            "quantize.gradients needs FSDP over two or more processes: run it with --processes 2 or more, or set it to "
            "null"
        )
    if world_size > 1:
        _check_sharding(config, world_size)


def _check_sharding(config, world_size: int) -> None:
    """Raise `InputError` for what needs whole weights, since FSDP shards them, and for replicas
    without shards."""
    if config.parallelism.data_parallel_replicate_degree == world_size:
        raise InputError(  # the loss is divided by all ranks' tokens before DDP takes the mean over ranks
            f"parallelism.data_parallel_replicate_degree={world_size} leaves nothing to shard, and torchtitan 0.2.2 "
            f"then divides gradients by the {world_size} processes twice: set it to 1, or to less than the processes"
        )
    sharded = f"needs whole weights, and {world_size} processes shard them: set it to"
    if config.model.fused_projections:
        raise InputError(f"model.fused_projections {sharded} false")
    if config.optimizer.built == "before_conversion":
        raise InputError(f"optimizer.built {sharded} null")
    gathered = config.quantize.linear.float8.enable_fsdp_float8_all_gather
    if gathered and model_args(config).enable_weight_tying and "output" in fp8_layers(config):
        raise InputError(
            f"the head of {config.model.flavor} is also its embedding, which FSDP gathers in bf16: "
            "set quantize.linear.float8.filter_fqns to [output]"
        )


def check_device(config) -> str:
    """FP8 units, an attention kernel and a compiler where they are needed."""
    if config.quantize.linear.float8.recipe_name and not config.quantize.linear.float8.emulate:
        float8.check_device(torch.device(device.TYPE))
    if device.TYPE == "cpu" and config.model.attention_backend == "cudnn":
        raise InputError(
            "model.attention_backend cudnn needs a GPU: on a CPU there are auto, flash and math"
        )
    gpu_only = {
        "compile.cuda_graphs": config.compile.cuda_graphs,
        "comm.nccl_max_ctas": config.comm.nccl_max_ctas,
        "profiling.enable_memory_snapshot": config.profiling.enable_memory_snapshot,
    }
    if device.TYPE == "cpu" and (asked := [key for key, value in gpu_only.items() if value]):
        raise InputError(
            f"{asked[0]} needs a GPU: set it to {'null' if 'nccl' in asked[0] else 'false'}"
        )
    compiles = "torchao's optimizer" if config.optimizer.stochastic_rounding else ""
    compiles = "compile.enable" if config.compile.enable else compiles
    if (
        device.TYPE == "cpu"
        and compiles
        and not shutil.which(compiler := os.environ.get("CXX", "g++").split(" ")[0])
    ):
        raise InputError(
            f"{compiles} needs a C++ compiler on a CPU and `{compiler}` is not there: install g++, point the "
            "environment variable CXX at another one, or run the recipe `baseline`, which is not compiled"
        )
    finding = f"{device.name()}, {device.memory_bytes() / 2**30:.0f} GiB ({device.TYPE})"
    return f"{finding}; {slow}" if (slow := slow_attention(config)) else finding


def slow_attention(config) -> str | None:
    """What to do about a cuDNN older than 9.15, whose attention PyTorch does not take; None if
    there is nothing to do.

    PyTorch prefers cuDNN's attention on GPUs of compute capability 9 and up.
    """
    version, other = device.cudnn(), config.model.attention_backend in ("flash", "math")
    if not version or other or torch.cuda.get_device_capability() < (9, 0):
        return None
    if tuple(map(int, version.split(".")[:2])) >= (9, 15):
        return None
    package = f"nvidia-cudnn-cu{(torch.version.cuda or '13').split('.')[0]}"
    return (
        f"cuDNN {version} is older than 9.15, with which PyTorch takes a slower attention: take its folder off "
        f"LD_LIBRARY_PATH, or install a newer one (python -m pip install '{package}>=9.15')"
    )


def check_memory(config, world_size: int = 1) -> str:
    """Estimated need of each device against what it has; an error only far beyond that, since it is
    an estimate."""
    need, capacity = memory_needed(config, world_size), device.memory_bytes()
    if device.TYPE == "cpu":  # the processes of the run here share it
        capacity /= number("LOCAL_WORLD_SIZE", 1, least=1)
    finding = memory_finding(need, capacity)
    if need > HOPELESS * capacity:
        raise InputError(
            f"the run needs {finding} here: choose a smaller model.flavor or the overlay `cpu`, recompute activations "
            "(activation_checkpoint.mode=full), lower training.local_batch_size, or shard over more GPUs"
        )
    return finding + ("" if need <= capacity else ": this will probably not fit")


def memory_finding(need: float, capacity: float) -> str:
    """Bytes needed, and bytes there are, for people."""
    return f"about {need / 2**30:.1f} GiB of {capacity / 2**30:.0f} GiB"


def memory_needed(config, world_size: int = 1) -> float:
    """Bytes on each device."""
    return sum(memory_estimate(config, world_size).values())


def memory_estimate(config, world_size: int = 1) -> dict[str, float]:
    """Bytes on each of `world_size` devices by use, see `flops.memory_estimate`."""
    tokens = config.training.local_batch_size * config.training.seq_len
    param_bytes = flops.ITEMSIZE[config.training.dtype]
    state_bytes = flops.state_bytes(config.training.dtype, asdict(config.optimizer.states).values())
    recompute = config.activation_checkpoint.mode == "full"
    shards = max(1, world_size // config.parallelism.data_parallel_replicate_degree)
    args = model_args(config)
    return flops.memory_estimate(
        args, tokens, param_bytes, state_bytes, config.compile.enable, recompute, shards
    )


def checkpoint_bytes(config) -> float:
    """What a checkpoint takes on disk; 0 where none are enabled."""
    estimate = memory_estimate(config)
    return (estimate["parameters"] + estimate["optimizer"]) * config.checkpoint.enable


def fp8_layers(config) -> set[str]:
    """Names of the linear layers that the recipe runs in FP8."""
    keys = config.quantize.linear.float8
    return (
        float8.choose_modules(_model(config), keys.recipe_name, keys.filter_fqns)
        if keys.recipe_name
        else set()
    )


def _model(config) -> torch.nn.Module:
    """Its modules by name; no weights."""
    with torch.device("meta"):
        return build(config)


def check_model(config) -> str:
    """The flavor, its parameters to freeze, and that its sizes suit FP8."""
    args = model_args(config)
    name = config.quantize.linear.float8.recipe_name
    freeze(_model(config), config.model.freeze)
    precision = (
        f"{len(fp8_layers(config))} linear layers in {name} FP8{_when(config)}"
        if name
        else "no FP8"
    )
    per_token = flops.flops_per_token(args, config.training.seq_len) / 1e9
    active = (
        f" ({flops.parameters(args, active=True) / 1e9:.3g} B active)"
        if flops.has_experts(args)
        else ""
    )
    return f"{flops.parameters(args) / 1e9:.3g} B parameters{active}, {per_token:.4g} GFLOP per token, {precision}"


def _when(config) -> str:
    """Which steps are in FP8, where not all of them are."""
    in_fp8, steps = fp8_steps(config), config.training.steps
    if len(in_fp8) == steps:
        return ""
    return (
        f" in steps {in_fp8[0]} to {in_fp8[-1]} of {steps}"
        if in_fp8
        else f" in none of the {steps} steps"
    )


def check_data(config, world_size: int = 1, token_file: TokenFile | None = None) -> str:
    """The token file, prepared if it is not there yet, and that the model has a row for each of its
    tokens."""
    token_file = token_file or rows.prepare(config)
    rows.check_vocabulary(token_file, model_args(config).vocab_size)
    return rows.describe(token_file, config, world_size)


def all_checks(config, world_size: int, budget_s: float | None = None) -> Iterator[tuple[str, str]]:
    """(topic, finding) of every check."""
    check_ranks(config, world_size)
    check_checkpoints(config, budget_s)
    yield "model", check_model(config)
    yield "device", check_device(config)
    yield "memory", check_memory(config, world_size)
    yield "data", check_data(config, world_size)


def facts(recipe: Recipe, world_size: int) -> dict:
    """What the manifest says of a run from the start: the recipe, the machine, and the figures that
    rates need."""
    config, args = recipe.config, model_args(recipe.config)
    fp8 = config.quantize.linear.float8
    return {
        "recipe": recipe.name,
        "base": recipe.base,
        "overlays": list(recipe.overlays),
        "description": recipe.description,
        "seed": config.debug.seed,
        "steps": config.training.steps,
        "study_budget_s": number(BUDGET, 0) or None,
        "compiled": config.compile.enable,
        "float8": fp8.recipe_name,
        "fp8_product": asdict(float8.product(device.TYPE, fp8.recipe_name, fp8.emulate))
        if fp8.recipe_name
        else None,
        "world_size": world_size,
        "hardware": device.hardware(),
        "peak_flops": device.peak_record(),
        "flavor": label(config),
        "parameters": flops.parameters(args),
        "flops_per_token": flops.flops_per_token(args, config.training.seq_len),
        "flops_per_token_causal": flops.flops_per_token(args, config.training.seq_len, causal=True),
        "cuda": torch.version.cuda,
    }
