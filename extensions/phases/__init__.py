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
    keys = config.quantize.linear.float8
    if keys.recipe_name is None:
        yield "quantize.linear.float8.recipe_name", "is null, so there is no FP8 to switch; set it"
    if config.phases.last_step is not None and not fp8_steps(config):
        yield "phases.last_step", "is before first_step, or the run ends first: FP8 never runs"
    if keys.enable_fsdp_float8_all_gather:
        yield (
            "quantize.linear.float8.enable_fsdp_float8_all_gather",
            "gathers weights in FP8, and bf16 steps need them in bf16; set it to false",
        )
    if config.profiling.enable_profiling:
        yield (
            "profiling.enable_profiling",
            "cannot run beside the proofs of phases; set it to false",
        )


# ---- which steps ----


def fp8_steps(config) -> range:
    """Number the run's steps in FP8, from 1."""
    first, last, steps = config.phases.first_step, config.phases.last_step, config.training.steps
    if first == "after_warmup":
        first = config.lr_scheduler.warmup_steps + 1
    if last == "before_last_tenth":
        last = steps - max(1, steps // 10)
    return range(first or 1, min(last or steps, steps) + 1)


def phase(config, step: int) -> range:
    """Number the steps around `step` that have its precision."""
    fp8 = fp8_steps(config)
    starts = {1, fp8.start, fp8.stop, config.training.steps + 1}
    start = max(start for start in starts if start <= step)
    return range(start, min(start for start in starts if start > step))


# ---- hooks ----


def before_step(trainer, step: int) -> None:
    """Switch where a phase begins. A resumed run may be in the midst of one."""
    from experiments.training.metrics import compiled_s
    from extensions.phases.layers import switch
    from models.float8 import Float8Choice

    now, in_fp8 = phase(trainer.job_config, step), step in fp8_steps(trainer.job_config)
    if step in (now.start, trainer.first_step):
        switch(trainer.proof.converted.values(), in_fp8)
        trainer.proof.fp8 = trainer.plan.fp8 if in_fp8 else Float8Choice()
        trainer.begin_stretch(step, now.stop - 1)
        trainer.compiled_before_s = compiled_s()


def evidence(trainer) -> Proof:
    """Sum up the proofs of all phases so far, which an earlier attempt may have begun with; the
    latest in FP8 gives the FLOPs. Note what the switch took to compile."""
    from experiments.training.metrics import compiled_s

    proof, before = trainer.proof.record(), {}
    profiled = proof.stretches["1"]
    start = phase(trainer.job_config, profiled.profiled_step).start
    if start > trainer.first_step:
        profiled.compile_s = compiled_s() - trainer.compiled_before_s
    earlier = Proof.read_if_there(Path(trainer.job_config.job.dump_folder) / PROOF)
    if earlier:
        stretches = earlier.stretches.items()
        before = {step: it for step, it in stretches if it.profiled_step < profiled.profiled_step}
    if not profiled.in_fp8 and any(it.in_fp8 for it in before.values()):
        proof = earlier
    now = {str(start): before.get(str(start), profiled)}
    return proof.model_copy(update={"stretches": before | now})
