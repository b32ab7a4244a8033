"""What no key of a recipe alone can tell: which keys contradict each other."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiments.config.keys import Config

ALL_GATHER = "quantize.linear.float8.enable_fsdp_float8_all_gather"


def contradictions(config: "Config") -> list[tuple[str, str]]:
    """List all that is wrong with a recipe whose keys are right one by one: the key to look at, and
    what to do."""
    training, data, profiling = config.training, config.data, config.profiling
    local, whole = training.local_batch_size, training.global_batch_size
    tokens, total_steps = training.seq_len * local, config.lr_scheduler.total_steps
    keys, float8 = config.compile, config.quantize.linear.float8
    compiled = keys.enable and keys.scope == "block" and "model" in keys.components
    is_stdlib = training.dataset.startswith("python_stdlib")
    is_local = is_stdlib or training.dataset == "parquet"
    unread = f"is not read with training.dataset={training.dataset}; leave it out"
    rules = [
        (
            whole > 0 and whole % local,
            "training.global_batch_size",
            f"should be a multiple of local_batch_size ({local}), got {whole}",
        ),
        (
            total_steps and total_steps < training.steps,
            "lr_scheduler.total_steps",
            f"should be at least training.steps ({training.steps}), got {total_steps}",
        ),
        (
            config.checkpoint.initial_load_path and not config.checkpoint.enable,
            "checkpoint.initial_load_path",
            "is not read without checkpoints; set checkpoint.enable to true",
        ),
        (
            config.activation_checkpoint.mode == "memory_budget" and not compiled,
            "activation_checkpoint.mode",
            "memory_budget is the compiler's; set compile.enable to true, scope to block, "
            "components to [model]",
        ),
        (
            profiling.enable_profiling
            and profiling.profile_freq <= profiling.profiler_warmup + profiling.profiler_active,
            "profiling.profile_freq",
            "must be larger than profiler_warmup and profiler_active together; raise it",
        ),
        (
            training.dataset_path and training.dataset != "parquet",
            "training.dataset_path",
            unread,
        ),
        (data.text_column != "text" and is_stdlib, "data.text_column", unread),
        (data.subset and is_local, "data.subset", unread),
        (data.split != "train" and is_local, "data.split", unread),
        (
            float8.recipe_name and tokens % 16,
            "training.seq_len",
            f"seq_len x local_batch_size is {tokens}; FP8 needs a multiple of 16, since the "
            "weight-gradient GEMM contracts over tokens",
        ),
        (
            float8.enable_fsdp_float8_all_gather and float8.recipe_name != "tensorwise",
            ALL_GATHER,
            f"needs recipe_name: tensorwise, got {float8.recipe_name}; set it to false",
        ),
    ]
    return [(key, message) for broken, key, message in rules if broken]
