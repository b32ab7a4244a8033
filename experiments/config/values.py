"""What the value of one key may be, besides its type: a range, one value, text of a certain form. See `VALUES`."""

import json
import re
from collections.abc import Callable

Rule = Callable[[object], str | None]
"""What is wrong with a value of the right type, None if nothing."""


def shown(value: object) -> str:
    """A value as a message quotes it, cut where it is long."""
    text = repr(value) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def within(interval: str) -> Rule:
    """Numbers in an interval, written as in mathematics, as `[0, 1)`; or, before it, a single one: `-1 or [1, inf)`.

    nan lies in no interval, and null is no number.
    """
    single, _, bounds = interval.rpartition(" or ")
    low, high = (float(bound) for bound in bounds[1:-1].split(","))
    words = f"{'at least' if bounds[0] == '[' else 'more than'} {low:,.15g}"
    if high < float("inf"):
        words += f" and {'at most' if bounds[-1] == ']' else 'less than'} {high:,.15g}"

    def rule(value):
        at_an_end = (value == low and bounds[0] == "[") or (value == high and bounds[-1] == "]")
        if value is None or low < value < high or at_an_end or (single and value == float(single)):
            return None
        if value == float("inf") == high:
            return "expected a finite number, got Infinity"
        return f"expected {single + ' or ' if single else ''}{words}, got {shown(value)}"

    return rule


def only(expected: object, why: str) -> Rule:
    """One value: another would fail in torchtitan, be ignored, or run code that the recipe names."""
    return lambda value: None if value == expected else f"{why}; set it to {shown(expected)}, got {shown(value)}"


def text(pattern: str, words: str) -> Rule:
    """Text that a regular expression matches in full."""

    def rule(value):
        matches = isinstance(value, str) and re.fullmatch(pattern, value)
        return None if matches else f"expected {words}, got {shown(value)}"

    return rule


_AT_LEAST_0, _AT_LEAST_1 = within("[0, inf)"), within("[1, inf)")
_NOT_SUPPORTED = only(False, "not supported")
_NOT_PARALLEL = only(1, "not supported: FSDP shards the model instead")
_NO_CODE = only("", "would run code that the recipe names")
_INSIDE = r"(?!/|(.*/)?\.\.?(/|$)).{1,200}"  # relative, without `.` and `..`
_RUN_FOLDER = text(_INSIDE, "a folder within the run directory")

VALUES: dict[str, Rule] = {
    "job.custom_config_module": _NO_CODE,
    "job.save_config_file": only(None, "each run writes its recipe.yaml anyway"),
    "profiling.save_traces_folder": _RUN_FOLDER,
    "profiling.profile_freq": _AT_LEAST_1,
    "profiling.profiler_active": _AT_LEAST_1,
    "profiling.profiler_warmup": _AT_LEAST_0,
    "profiling.save_memory_snapshot_folder": _RUN_FOLDER,
    "metrics.log_freq": _AT_LEAST_1,
    "metrics.fp8_ranges_every": _AT_LEAST_0,
    "metrics.save_tb_folder": _RUN_FOLDER,
    "model.name": only("llama", "there is one architecture"),
    "model.converters": only(["fp8"], "converts nothing until quantize.linear.float8.recipe_name is set"),
    "optimizer.name": only("AdamW", "there is one optimizer"),
    "optimizer.lr": _AT_LEAST_0,
    "optimizer.beta1": within("[0, 1)"),
    "optimizer.beta2": within("[0, 1)"),
    "optimizer.eps": within("(0, inf)"),  # by 0 a parameter without a gradient becomes nan
    "optimizer.weight_decay": _AT_LEAST_0,
    "optimizer.early_step_in_backward": only(False, "leaves no gradients for the proof to look at"),
    "lr_scheduler.warmup_steps": _AT_LEAST_0,
    "lr_scheduler.total_steps": _AT_LEAST_1,
    "lr_scheduler.decay_ratio": within("[0, 1]"),
    "lr_scheduler.min_lr_factor": within("[0, 1]"),
    "training.local_batch_size": _AT_LEAST_1,
    "training.global_batch_size": within("-1 or [1, inf)"),
    "training.seq_len": within("[2, inf)"),
    "training.max_norm": within("(0, inf]"),
    "training.steps": _AT_LEAST_1,
    "training.enable_cpu_offload": _NOT_SUPPORTED,
    "training.gc_freq": _AT_LEAST_1,
    "training.dataloader.num_workers": within("[0, 1000]"),
    "training.dataloader.prefetch_factor": _AT_LEAST_1,
    "parallelism.data_parallel_replicate_degree": _AT_LEAST_1,
    "parallelism.data_parallel_shard_degree": within("-1 or [1, inf)"),
    "parallelism.tensor_parallel_degree": _NOT_PARALLEL,
    "parallelism.pipeline_parallel_degree": _NOT_PARALLEL,
    "parallelism.context_parallel_degree": _NOT_PARALLEL,
    "parallelism.expert_parallel_degree": _NOT_PARALLEL,
    "parallelism.expert_tensor_parallel_degree": _NOT_PARALLEL,
    "checkpoint.folder": _RUN_FOLDER,
    "checkpoint.interval": _AT_LEAST_1,
    "checkpoint.initial_load_in_hf": _NOT_SUPPORTED,
    "checkpoint.last_save_in_hf": _NOT_SUPPORTED,
    "checkpoint.keep_latest_k": within("0 or [2, inf)"),  # 0 keeps all; of 1, the one may be half written
    "checkpoint.load_step": only(-1, "a run goes on from its newest checkpoint"),
    "checkpoint.exclude_from_loading": only([], "a run goes on with all that it saved"),
    "checkpoint.create_seed_checkpoint": _NOT_SUPPORTED,
    "activation_checkpoint.selective_ac_option": text(r"op|\d{1,9}", "'op' or a number in quotes"),
    "activation_checkpoint.memory_budget": within("[0, 1]"),
    "activation_checkpoint.determinism_check": text(r"default|none", "'default' or 'none'"),
    "comm.init_timeout_seconds": within("[1, 1000000]"),
    "comm.train_timeout_seconds": within("[1, 1000000]"),
    "comm.trace_buf_size": _AT_LEAST_0,
    "comm.save_traces_folder": _RUN_FOLDER,
    "comm.save_traces_file_prefix": text(_INSIDE, "a file within the run directory"),
    "comm.mode": only("default", "the other modes do not train"),
    "fault_tolerance.enable": _NOT_SUPPORTED,
    "experimental.custom_import": _NO_CODE,
    "experimental.custom_args_module": _NO_CODE,
    "validation.enable": only(False, "there is no validation here"),
    "debug.seed": within("[0, 1e18)"),
    "data.max_tokens": _AT_LEAST_1,
    "data.bpe_vocab_size": within("[257, 1000000]"),  # 256 bytes and end-of-text
}
