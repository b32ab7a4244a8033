"""What no key of a recipe alone can tell: which keys contradict each other.

A rule is an `if` that yields the key to look at, and what to do.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiments.config.keys import Config

FLOAT8 = "quantize.linear.float8"


def contradictions(config: "Config") -> Iterator[tuple[str, str]]:
    """Find all that is wrong with a recipe whose keys are right one by one."""
    training, total_steps = config.training, config.lr_scheduler.total_steps
    local, whole = training.local_batch_size, training.global_batch_size
    if whole > 0 and whole % local:
        yield (
            "training.global_batch_size",
            f"should be a multiple of local_batch_size ({local}), got {whole}",
        )
    if total_steps and total_steps < training.steps:
        yield (
            "lr_scheduler.total_steps",
            f"should be at least training.steps ({training.steps}), got {total_steps}",
        )
    if config.checkpoint.initial_load_path and not config.checkpoint.enable:
        yield (
            "checkpoint.initial_load_path",
            "is not read without checkpoints; set checkpoint.enable to true",
        )
    keys = config.compile
    by_blocks = keys.enable and keys.scope == "block" and "model" in keys.components
    if config.activation_checkpoint.mode == "memory_budget" and not by_blocks:
        yield (
            "activation_checkpoint.mode",
            "memory_budget is the compiler's; set compile.enable to true, scope to block, "
            "components to [model]",
        )
    keys = config.profiling
    if keys.enable_profiling and keys.profile_freq <= keys.profiler_warmup + keys.profiler_active:
        yield (
            "profiling.profile_freq",
            "must be larger than profiler_warmup and profiler_active together; raise it",
        )
    yield from _data(config)
    yield from _float8(config)


def _data(config: "Config") -> Iterator[tuple[str, str]]:
    """Find keys that the chosen kind of dataset does not read."""
    dataset, data = config.training.dataset, config.data
    local = dataset == "parquet" or dataset.startswith("python_stdlib")
    unread = {
        "training.dataset_path": config.training.dataset_path and dataset != "parquet",
        "data.text_column": data.text_column != "text" and dataset.startswith("python_stdlib"),
        "data.subset": data.subset and local,
        "data.split": data.split != "train" and local,
    }
    for key, wrong in unread.items():
        if wrong:
            yield key, f"is not read with training.dataset={dataset}; leave it out"


def _float8(config: "Config") -> Iterator[tuple[str, str]]:
    keys, training = config.quantize.linear.float8, config.training
    tokens = training.seq_len * training.local_batch_size
    if keys.recipe_name and tokens % 16:
        yield (
            "training.seq_len",
            f"seq_len x local_batch_size is {tokens}; FP8 needs a multiple of 16, since the "
            "weight-gradient GEMM contracts over tokens",
        )
    if keys.enable_fsdp_float8_all_gather and keys.recipe_name != "tensorwise":
        yield (
            f"{FLOAT8}.enable_fsdp_float8_all_gather",
            f"needs recipe_name: tensorwise, got {keys.recipe_name}; set it to false",
        )
