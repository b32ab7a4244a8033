"""Keys that contradict each other, by topic: what no key alone can tell."""

from typing import TYPE_CHECKING

from experiments.config.phases import first_and_last

if TYPE_CHECKING:
    from experiments.config.keys import Config

FLOAT8 = "quantize.linear.float8"

Checks = list[tuple[bool, str, str]]
"""Whether something is wrong, the key to look at, and what to do."""


def contradictions(config: "Config") -> list[tuple[str, str]]:
    """(key to look at, what to do) of all that is wrong with a recipe whose keys are right one by
    one."""
    checks = _training(config) + _optimizer(config) + _compile(config) + _data(config)
    checks += _float8(config) + _phases(config)
    return [(key, message) for is_wrong, key, message in checks if is_wrong]


def _training(config: "Config") -> Checks:
    training, total_steps = config.training, config.lr_scheduler.total_steps
    local, whole = training.local_batch_size, training.global_batch_size
    return [
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
    ]


def _optimizer(config: "Config") -> Checks:
    optimizer, states, dtype = config.optimizer, config.optimizer.states, config.training.dtype
    dtypes = [states.first_moment, states.second_moment, states.master_weights]
    rounds = "optimizer.stochastic_rounding"
    bf16_only = f"training.dtype is {dtype}; set that to bfloat16, or leave this out"
    return [
        (
            any(dtypes) and not all(dtypes),
            "optimizer.states",
            "should be a dtype for each of the three states, or null for all three",
        ),
        (
            any(dtypes) and dtype != "bfloat16",
            "optimizer.states",
            f"has master weights of bf16 parameters, and {bf16_only}",
        ),
        (
            optimizer.stochastic_rounding and dtype != "bfloat16",
            rounds,
            f"rounds bf16 weights, and {bf16_only}",
        ),
        (
            optimizer.stochastic_rounding and any(dtypes),
            rounds,
            "is for want of the master weights that optimizer.states has; leave one of them out",
        ),
        (
            optimizer.built == "before_conversion" and config.compile.enable,
            "optimizer.built",
            "its late conversion would find compiled blocks; set compile.enable to false",
        ),
    ]


def _compile(config: "Config") -> Checks:
    keys, training = config.compile, config.training
    by_blocks = keys.enable and keys.scope == "block" and "model" in keys.components
    return [
        (
            keys.cuda_graphs and not keys.enable,
            "compile.cuda_graphs",
            "records compiled graphs; set compile.enable to true",
        ),
        (
            keys.cuda_graphs and training.global_batch_size > training.local_batch_size,
            "compile.cuda_graphs",
            "a step's second pass overwrites the gradients of its first; "
            "set training.global_batch_size to -1",
        ),
        (
            config.activation_checkpoint.mode == "memory_budget" and not by_blocks,
            "activation_checkpoint.mode",
            "memory_budget is the compiler's; "
            "set compile.enable to true, scope to block, components to [model]",
        ),
    ]


def _data(config: "Config") -> Checks:
    """Keys that the chosen kind of dataset does not read."""
    dataset, data = config.training.dataset, config.data
    is_parquet, is_stdlib = dataset == "parquet", dataset.startswith("python_stdlib")
    is_local = is_parquet or is_stdlib
    message = f"is not read with training.dataset={dataset}; leave it out, or set that to "
    parquet, hugging_face = f"{message}parquet", f"{message}a name on Hugging Face"
    return [
        (config.training.dataset_path and not is_parquet, "training.dataset_path", parquet),
        (data.text_column != "text" and is_stdlib, "data.text_column", parquet),
        (data.subset and is_local, "data.subset", hugging_face),
        (data.split != "train" and is_local, "data.split", hugging_face),
    ]


def _float8(config: "Config") -> Checks:
    keys, training = config.quantize.linear.float8, config.training
    gathers = keys.enable_fsdp_float8_all_gather
    tokens = training.seq_len * training.local_batch_size
    nothing = "does nothing without a recipe_name; set it to false"
    return [
        (
            keys.fast_accumulation_in_backward and not keys.recipe_name,
            f"{FLOAT8}.fast_accumulation_in_backward",
            nothing,
        ),
        (keys.emulate and not keys.recipe_name, f"{FLOAT8}.emulate", nothing),
        (
            keys.recipe_name and tokens % 16,
            "training.seq_len",
            f"seq_len x local_batch_size is {tokens}; FP8 needs a multiple of 16, since the "
            "weight-gradient GEMM contracts over tokens",
        ),
        (
            gathers and keys.recipe_name != "tensorwise",
            f"{FLOAT8}.enable_fsdp_float8_all_gather",
            f"needs recipe_name: tensorwise, got {keys.recipe_name}; set it to false",
        ),
        (
            gathers and keys.implementation != "torchao",
            f"{FLOAT8}.implementation",
            "casts weights itself, not what FSDP gathers in FP8; set it to torchao",
        ),
        (
            keys.precompute_float8_dynamic_scale_for_fsdp and not gathers,
            f"{FLOAT8}.precompute_float8_dynamic_scale_for_fsdp",
            "needs enable_fsdp_float8_all_gather: true; set that, or set this to false",
        ),
    ]


def _phases(config: "Config") -> Checks:
    keys, (first, last) = config.quantize.linear.float8, first_and_last(config)
    has_phases = (first, last) != (None, None)
    or_no_phases = f"or first_step and last_step of {FLOAT8} to null"
    return [
        (
            has_phases and keys.recipe_name is None,
            f"{FLOAT8}.recipe_name",
            f"is null, so there is no FP8 to switch; set it, {or_no_phases}",
        ),
        (
            last is not None and last < (first or 1),
            f"{FLOAT8}.last_step",
            f"is step {last}, before first_step, which is {first or 1}: FP8 would never run",
        ),
        (
            has_phases and keys.enable_fsdp_float8_all_gather,
            f"{FLOAT8}.enable_fsdp_float8_all_gather",
            "gathers weights in FP8, of which bf16 steps cannot be made; "
            f"set it to false, {or_no_phases}",
        ),
        (
            has_phases and config.compile.cuda_graphs,
            "compile.cuda_graphs",
            f"leaves nothing to prove a later phase by; set it to false, {or_no_phases}",
        ),
    ]
