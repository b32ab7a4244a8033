"""FP8 for a part of a run's steps: bf16, then FP8, then bf16.

A phase is the steps from one switch to the next. Parameters and optimizer stay as they are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from experiments.records.run import AtLeast1, Proof


@dataclass
class Section:
    """The section `phases` of a recipe."""

    first_step: Literal["after_warmup"] | AtLeast1 | None = None
    """First step in FP8, those before it are in bf16: a number, or `after_warmup` of
    `lr_scheduler.warmup_steps`; null: the run starts in FP8."""

    last_step: Literal["before_last_tenth"] | AtLeast1 | None = None
    """Last step in FP8, those after it are in bf16: a number, or `before_last_tenth` of
    `training.steps`; null: the run ends in FP8."""


def contradictions(config) -> Iterator[tuple[str, str]]:
    """Find keys that contradict a switch between precisions."""
    float8_config = config.quantize.linear.float8
    if float8_config.recipe_name is None:
        yield "quantize.linear.float8.recipe_name", "is null, so there is no FP8 to switch; set it"
    if config.phases.last_step is not None and not find_fp8_steps(config):
        yield "phases.last_step", "is before first_step, or the run ends first: FP8 never runs"
    if float8_config.enable_fsdp_float8_all_gather:
        yield (
            "quantize.linear.float8.enable_fsdp_float8_all_gather",
            "gathers weights in FP8, and bf16 steps need them in bf16; set it to false",
        )
    if config.profiling.enable_profiling:
        yield (
            "profiling.enable_profiling",
            "cannot run with the proofs of phases; set it to false",
        )


# ---- steps of a phase ----


def find_fp8_steps(config) -> range:
    """Number the run's steps in FP8, from 1."""
    steps = config.training.steps
    first_step = config.phases.first_step
    last_step = config.phases.last_step
    if first_step is None:
        first_step = 1
    elif first_step == "after_warmup":
        first_step = config.lr_scheduler.warmup_steps + 1
    if last_step is None:
        last_step = steps
    elif last_step == "before_last_tenth":
        last_step = max(1, steps - max(1, steps // 10))
    return range(first_step, min(last_step, steps) + 1)


def find_phase(config, step: int) -> range:
    """Number the steps of the phase of `step`, which all have its precision."""
    fp8_steps = find_fp8_steps(config)
    steps_end = config.training.steps + 1
    if step < fp8_steps.start:
        return range(1, min(fp8_steps.start, steps_end))
    if step < fp8_steps.stop:
        return fp8_steps
    return range(fp8_steps.stop, steps_end)


# ---- hooks ----


def before_step(trainer, step: int) -> None:
    """Switch where a phase begins. A resumed run may begin in the middle of one."""
    from experiments.training.metrics import compiled_s
    from extensions.phases.layers import switch_precision
    from models.float8 import Float8Choice

    phase = find_phase(trainer.job_config, step)
    if step not in (phase.start, trainer.first_step):
        return
    in_fp8 = step in find_fp8_steps(trainer.job_config)
    switch_precision(trainer.proof.converted.values(), in_fp8)
    if in_fp8:
        trainer.proof.fp8 = trainer.plan.fp8
    else:
        trainer.proof.fp8 = Float8Choice()
    trainer.begin_stretch(step, phase.stop - 1)
    trainer.compiled_before_s = compiled_s()


def metrics(trainer) -> dict[str, float]:
    """Count the share of a log interval's steps that ran in FP8."""
    fp8_steps = find_fp8_steps(trainer.job_config)
    steps = trainer.interval_steps
    return {"fp8_share_of_steps": sum(step in fp8_steps for step in steps) / len(steps)}


def evidence(trainer) -> Proof:
    """Sum up the proofs of all phases so far, which an earlier attempt may have begun with; the
    last one in FP8 gives the FLOPs. Note what the switch took to compile."""
    from experiments.training.metrics import compiled_s

    proof = trainer.proof.record()
    profiled = proof.stretches["1"]
    phase_start = find_phase(trainer.job_config, profiled.profiled_step).start
    if phase_start > trainer.first_step:
        profiled.compile_s = compiled_s() - trainer.compiled_before_s
    stretches = {}
    recorded = trainer.directory.record.proof
    if recorded:
        stretches = {
            start: stretch
            for start, stretch in recorded.stretches.items()
            if stretch.profiled_step < profiled.profiled_step
        }
    had_fp8 = any(stretch.in_fp8 for stretch in stretches.values())
    if had_fp8 and not profiled.in_fp8:
        proof = recorded
    # A phase that an earlier attempt has profiled keeps that proof
    stretches.setdefault(str(phase_start), profiled)
    return proof.model_copy(update={"stretches": stretches})
