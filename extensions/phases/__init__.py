"""FP8 for a part of a run's steps: bf16, then FP8, then bf16.

A phase is the steps from one switch to the next. Parameters and optimizer stay as they are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from experiments.records.run import PROOF, AtLeast1, Proof


@dataclass
class Keys:
    """The section `phases` of a recipe."""

    first_step: Literal["after_warmup"] | AtLeast1 | None = None
    """First step in FP8, those before it are in bf16: a number, or `after_warmup` of
    `lr_scheduler.warmup_steps`; null: the run starts in FP8."""

    last_step: Literal["before_last_tenth"] | AtLeast1 | None = None
    """Last step in FP8, those after it are in bf16: a number, or `before_last_tenth` of
    `training.steps`; null: the run ends in FP8."""


def contradictions(config) -> Iterator[tuple[str, str]]:
    """Find keys that contradict a switch between precisions."""
    keys, (first, last) = config.quantize.linear.float8, first_and_last(config)
    without = "or choose a recipe without phases"
    if keys.recipe_name is None:
        yield (
            "quantize.linear.float8.recipe_name",
            f"is null, so there is no FP8 to switch; set it, {without}",
        )
    if config.phases.last_step is not None and last < first:
        yield (
            "phases.last_step",
            f"is step {last}, before first_step, which is {first}: FP8 would never run",
        )
    if keys.enable_fsdp_float8_all_gather:
        yield (
            "quantize.linear.float8.enable_fsdp_float8_all_gather",
            f"gathers weights in FP8, and bf16 steps need them in bf16; set it to false, {without}",
        )
    if config.profiling.enable_profiling:
        yield (
            "profiling.enable_profiling",
            f"cannot run beside the proofs of phases; set it to false, {without}",
        )


# ---- which steps ----


def first_and_last(config) -> tuple[int, int]:
    """The two keys as numbers of steps, from 1."""
    first, last, steps = config.phases.first_step, config.phases.last_step, config.training.steps
    if first == "after_warmup":
        first = config.lr_scheduler.warmup_steps + 1
    if last == "before_last_tenth":
        last = steps - max(1, steps // 10)
    return first or 1, steps if last is None else last


def fp8_steps(config) -> range:
    """The run's steps in FP8, counted from 1."""
    first, last = first_and_last(config)
    return range(first, min(last, config.training.steps) + 1)


def phase(config, step: int) -> range:
    """The steps around `step` that have its precision."""
    fp8 = fp8_steps(config)
    starts = {1, fp8.start, fp8.stop, config.training.steps + 1}
    start = max(start for start in starts if start <= step)
    return range(start, min(start for start in starts if start > step))


# ---- hooks ----


def before_step(trainer, step: int) -> None:
    """Switch where a phase begins. A resumed run may be in the midst of one."""
    from experiments.training.metrics import compiled_s
    from models.float8 import Choice

    now, in_fp8 = phase(trainer.job_config, step), step in fp8_steps(trainer.job_config)
    if step in (now.start, trainer.first_step):
        switch(trainer.proof.converted.values(), in_fp8)
        trainer.proof.fp8 = trainer.plan.fp8 if in_fp8 else Choice()
        trainer.begin_stretch(now.stop - 1)
        trainer.compiled_before_s = compiled_s()


def switch(layers, in_fp8: bool) -> None:
    """Have FP8 layers multiply in FP8, or as `nn.Linear` does, which has the same parameter.

    The first switch of a compiled layer compiles a second graph; the way back finds the first one.
    """
    from torch import nn

    for layer in layers:
        layer.fp8_class = getattr(layer, "fp8_class", type(layer))
        layer.__class__ = layer.fp8_class if in_fp8 else nn.Linear


def evidence(trainer) -> Proof:
    """Sum up the proofs of all phases so far, which an earlier attempt may have begun with; the
    latest in FP8 gives the FLOPs. Note what the switch took to compile."""
    from experiments.records.files import read_if_there
    from experiments.training.metrics import compiled_s

    proof, before = trainer.proof.record(), {}
    start = phase(trainer.job_config, proof.profiled_step).start
    profiled, first = proof.stretches["1"], str(start)
    earlier = read_if_there(Path(trainer.job_config.job.dump_folder) / PROOF, Proof)
    if earlier:
        stretches = earlier.stretches.items()
        before = {step: it for step, it in stretches if it.profiled_step < profiled.profiled_step}
    if start > trainer.first_step:
        profiled.compile_s = compiled_s() - trainer.compiled_before_s
    elif first in before:  # this process began in the midst of it
        profiled.compile_s = before[first].compile_s
    if not profiled.in_fp8 and any(it.in_fp8 for it in before.values()):
        proof = earlier
    return proof.model_copy(update={"stretches": before | {first: profiled}})
