"""What the value of one key may be, besides its type: a range, one value, text of a certain form.
See `VALUES`."""

import json
import re
from collections.abc import Callable
from math import inf

Rule = Callable[[object], str | None]
"""What is wrong with a value of the right type, None if nothing."""


def shown(value: object) -> str:
    """A value as a message quotes it, cut where it is long."""
    text = repr(value) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def rule(accepts: Callable[[object], bool], words: str) -> Rule:
    """The rule that `accepts` is true of a value, said in `words`. null passes: the key's type says
    where it may be."""
    return lambda value: (
        None if value is None or accepts(value) else f"expected {words}, got {shown(value)}"
    )


def only(expected: object, why: str) -> Rule:
    """One value: another would fail in torchtitan, be ignored, or run code that the recipe
    names."""
    return lambda value: (
        None if value == expected else f"{why}; set it to {shown(expected)}, got {shown(value)}"
    )


def text(pattern: str, words: str) -> Rule:
    """Text that a regular expression matches in full."""
    return rule(lambda value: isinstance(value, str) and re.fullmatch(pattern, value), words)


def _step_or(word: str) -> Rule:
    accepts = lambda value: value == word or (isinstance(value, int) and value >= 1)  # noqa: E731
    return rule(accepts, f"a step of at least 1, or {word}")


_AT_LEAST_0 = rule(lambda value: 0 <= value < inf, "a finite number of at least 0")
_AT_LEAST_1 = rule(lambda value: value >= 1, "at least 1")
_BELOW_1 = rule(lambda value: 0 <= value < 1, "at least 0 and less than 1")
_SHARE = rule(lambda value: 0 <= value <= 1, "at least 0 and at most 1")
_AUTO_OR_COUNT = rule(lambda value: value == -1 or value >= 1, "-1 or at least 1")
_SECONDS = rule(lambda value: 1 <= value <= 1_000_000, "at least 1 and at most 1,000,000")
_SIZE = rule(lambda value: 1 <= value <= 1_000_000, "at least 1 and at most 1,000,000")
_NOT_SUPPORTED = only(False, "not supported")
_NO_TENSOR_PARALLEL = only(
    1,
    "compiled, its backward pass fails in torch 2.13, with and without FP8, so FSDP shards the model instead",
)
_NOT_PARALLEL = only(1, "not supported: FSDP shards the model instead")
_NO_CODE = only("", "would run code that the recipe names")
_INSIDE = r"(?!attempt|damaged_)(?=.{1,100}$)[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*"  # no record's name, no `.` and `..`
_RUN_FOLDER = text(_INSIDE, "a folder within the run directory, of letters, digits, _ and -")

WITHOUT_EFFECT = (
    "job.config_file", "job.dump_folder", "model.tokenizer_path", "profiling.profiler_", "profiling.save_traces",
    "parallelism.pipeline_parallel_", "parallelism.module_fqns_per_model_part", "parallelism.disable_loss_parallel",
    "parallelism.enable_async_tensor_parallel", "parallelism.context_parallel_", "parallelism.expert_parallel_",
    "checkpoint.enable_ft_", "quantize.linear.mx", "quantize.grouped_mm", "memory_estimation", "fault_tolerance",
    "validation", "debug.moe_",
)  # fmt: skip
"""How those keys of torchtitan begin that nothing here reads: they keep its defaults."""

VALUES: dict[str, Rule] = {
    "job.custom_config_module": _NO_CODE,
    "job.save_config_file": only(None, "each run writes its recipe.yaml anyway"),
    "profiling.enable_profiling": only(
        False,
        "cannot run beside the proof's profiler; `python -m experiments.bench` gives times by part",
    ),  # torch aborts the process where one profiler ends within another
    "profiling.profile_freq": _AT_LEAST_1,
    "profiling.save_memory_snapshot_folder": _RUN_FOLDER,
    "metrics.log_freq": _AT_LEAST_1,
    "metrics.fp8_ranges_every": _AT_LEAST_0,
    "metrics.save_tb_folder": _RUN_FOLDER,
    **{
        f"model.sizes.{name}": _SIZE
        for name in ("dim", "n_heads", "n_kv_heads", "head_dim", "hidden_dim")
    },
    "model.sizes.vocab_size": _SIZE,
    "model.sizes.n_layers": rule(lambda value: 1 <= value <= 1000, "at least 1 and at most 1,000"),
    "model.converters": only(
        ["fp8"], "converts nothing until quantize.linear.float8.recipe_name is set"
    ),
    "optimizer.name": only("AdamW", "there is one optimizer"),
    "optimizer.lr": _AT_LEAST_0,
    "optimizer.beta1": _BELOW_1,
    "optimizer.beta2": _BELOW_1,
    "optimizer.eps": rule(
        lambda value: 0 < value <= 1e-4, "more than 0 and at most 0.0001"
    ),  # by 0 a parameter without a gradient becomes nan; beside a large one gradients count for nothing
    "optimizer.weight_decay": _AT_LEAST_0,
    "optimizer.early_step_in_backward": only(False, "leaves no gradients for the proof to look at"),
    "lr_scheduler.warmup_steps": _AT_LEAST_0,
    "lr_scheduler.total_steps": _AT_LEAST_1,
    "lr_scheduler.decay_ratio": _SHARE,
    "lr_scheduler.min_lr_factor": _SHARE,
    "training.local_batch_size": _AT_LEAST_1,
    "training.global_batch_size": _AUTO_OR_COUNT,
    "training.seq_len": rule(lambda value: value >= 2, "at least 2"),
    "training.max_norm": rule(lambda value: value > 0, "more than 0"),
    "training.steps": rule(
        lambda value: 1 <= value <= 10**9, "at least 1 and at most 1,000,000,000"
    ),
    "training.enable_cpu_offload": _NOT_SUPPORTED,
    "training.gc_freq": _AT_LEAST_1,
    "training.gc_debug": _NOT_SUPPORTED,
    "training.dataloader.num_workers": rule(
        lambda value: 0 <= value <= 1000, "at least 0 and at most 1,000"
    ),
    "training.dataloader.prefetch_factor": _AT_LEAST_1,
    "parallelism.data_parallel_replicate_degree": _AT_LEAST_1,
    "parallelism.data_parallel_shard_degree": _AUTO_OR_COUNT,
    "parallelism.tensor_parallel_degree": _NO_TENSOR_PARALLEL,
    "parallelism.pipeline_parallel_degree": _NOT_PARALLEL,
    "parallelism.context_parallel_degree": _NOT_PARALLEL,
    "parallelism.expert_parallel_degree": _NOT_PARALLEL,
    "parallelism.expert_tensor_parallel_degree": _NOT_PARALLEL,
    "checkpoint.folder": _RUN_FOLDER,
    "checkpoint.interval": _AT_LEAST_1,
    "checkpoint.initial_load_in_hf": _NOT_SUPPORTED,
    "checkpoint.initial_load_in_hf_quantized": _NOT_SUPPORTED,
    "checkpoint.last_save_in_hf": _NOT_SUPPORTED,
    "checkpoint.keep_latest_k": rule(
        lambda value: value == 0 or value >= 2, "0 (all) or at least 2"
    ),  # the last may be half written
    "checkpoint.load_only": only(False, "a run saves what it can go on from"),
    "checkpoint.load_step": only(-1, "a run goes on from its newest checkpoint"),
    "checkpoint.exclude_from_loading": only([], "a run goes on with all that it saved"),
    "checkpoint.create_seed_checkpoint": _NOT_SUPPORTED,
    "activation_checkpoint.selective_ac_option": text(r"op|\d{1,9}", "'op' or a number in quotes"),
    "activation_checkpoint.memory_budget": _SHARE,
    "activation_checkpoint.determinism_check": text(r"default|none", "'default' or 'none'"),
    "quantize.linear.float8.first_step": _step_or("after_warmup"),
    "quantize.linear.float8.last_step": _step_or("before_last_tenth"),
    "comm.nccl_max_ctas": rule(lambda value: 1 <= value <= 64, "at least 1 and at most 64"),
    "comm.init_timeout_seconds": _SECONDS,
    "comm.train_timeout_seconds": _SECONDS,
    "comm.trace_buf_size": rule(
        lambda value: 0 <= value <= 10**6, "at least 0 and at most 1,000,000"
    ),
    "comm.save_traces_folder": _RUN_FOLDER,
    "comm.save_traces_file_prefix": text(_INSIDE, "a file within the run directory"),
    "comm.mode": only("default", "the other modes do not train"),
    "experimental.custom_import": _NO_CODE,
    "experimental.custom_args_module": _NO_CODE,
    "debug.seed": rule(lambda value: 0 <= value < 10**18, "at least 0 and less than 1e+18"),
    "data.max_tokens": _AT_LEAST_1,
    "data.bpe_vocab_size": rule(
        lambda value: 257 <= value <= 10**6, "at least 257 and at most 1,000,000"
    ),  # 256 bytes and end-of-text
}
