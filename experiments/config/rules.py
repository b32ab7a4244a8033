"""What no key of a recipe alone can tell: which keys contradict each other.

A rule is an `if` that yields the key to look at, and what to do.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiments.config.keys import Config

FLOAT8 = "quantize.linear.float8"


# ---- contradictions, by topic ----

Found = Iterator[tuple[str, str]]


def contradictions(config: "Config") -> Found:
    """Find all that is wrong with a recipe whose keys are right one by one."""
    yield from _training(config)
    yield from _compile(config)
    yield from _data(config)
    yield from _profiling(config)
    yield from _float8(config)


def _training(config: "Config") -> Found:
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


def _compile(config: "Config") -> Found:
    keys = config.compile
    by_blocks = keys.enable and keys.scope == "block" and "model" in keys.components
    if config.activation_checkpoint.mode == "memory_budget" and not by_blocks:
        yield (
            "activation_checkpoint.mode",
            (
                "memory_budget is the compiler's; "
                "set compile.enable to true, scope to block, components to [model]"
            ),
        )


def _data(config: "Config") -> Found:
    """Find keys that the chosen kind of dataset does not read."""
    dataset, data = config.training.dataset, config.data
    is_parquet, is_stdlib = dataset == "parquet", dataset.startswith("python_stdlib")
    message = f"is not read with training.dataset={dataset}; leave it out, or set that to "
    parquet, hugging_face = f"{message}parquet", f"{message}a name on Hugging Face"
    if config.training.dataset_path and not is_parquet:
        yield "training.dataset_path", parquet
    if data.text_column != "text" and is_stdlib:
        yield "data.text_column", parquet
    if data.subset and (is_parquet or is_stdlib):
        yield "data.subset", hugging_face
    if data.split != "train" and (is_parquet or is_stdlib):
        yield "data.split", hugging_face


def _profiling(config: "Config") -> Found:
    keys = config.profiling
    if keys.enable_profiling and keys.profile_freq <= keys.profiler_warmup + keys.profiler_active:
        yield (
            "profiling.profile_freq",
            "must be larger than profiler_warmup and profiler_active together; raise it",
        )


def _float8(config: "Config") -> Found:
    keys, training = config.quantize.linear.float8, config.training
    gathers = keys.enable_fsdp_float8_all_gather
    tokens = training.seq_len * training.local_batch_size
    if not keys.recipe_name:
        if keys.emulate:
            yield f"{FLOAT8}.emulate", "does nothing without a recipe_name; set it to false"
    elif tokens % 16:
        yield (
            "training.seq_len",
            (
                f"seq_len x local_batch_size is {tokens}; FP8 needs a multiple of 16, since the "
                "weight-gradient GEMM contracts over tokens"
            ),
        )
    if gathers and keys.recipe_name != "tensorwise":
        yield (
            f"{FLOAT8}.enable_fsdp_float8_all_gather",
            f"needs recipe_name: tensorwise, got {keys.recipe_name}; set it to false",
        )
    if keys.precompute_float8_dynamic_scale_for_fsdp and not gathers:
        yield (
            f"{FLOAT8}.precompute_float8_dynamic_scale_for_fsdp",
            "needs enable_fsdp_float8_all_gather: true; set that, or set this to false",
        )
