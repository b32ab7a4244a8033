"""Train a recipe with torchtitan's parts, in the order of `Trainer`'s calls.

torchtitan builds the parts, see `Trainer.__init__`. `Trainer.train` is a run and
`Trainer.train_step` a step of it: read both from top to bottom.
"""

import logging
import math
import re
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from models import device  # before anything of torchtitan: see there  # isort: skip
import torchtitan.train as titan
from torchtitan.components.loss import IGNORE_INDEX, build_cross_entropy_loss
from torchtitan.components.lr_scheduler import build_lr_schedulers
from torchtitan.components.optimizer import build_optimizers
from torchtitan.protocols.train_spec import TrainSpec
from torchtitan.tools.logging import logger
from torchtitan.tools.profiling import maybe_enable_memory_snapshot

from experiments.corpus.rows import BatchLoader
from experiments.jobs.command import Interrupted, StopRequest
from experiments.records.run import NOT_STEADY_STEPS
from experiments.training.checkpoint import Checkpoints
from experiments.training.metrics import TIMELINE, Meter, end_traced_step, tracer
from experiments.training.plan import Plan
from experiments.training.proof import Proof
from models import float8
from models.architectures import find_architecture, parallelize_model
from models.device import local_tensor

if TYPE_CHECKING:
    from experiments.training.attempt import RunDirectory

# Steps of a stretch, whose steps do the same work, counted from 1. The first compiles, and the
# second may compile again.
PROFILED = 3
NOT_STEADY = 3  # with the profiled one

_RANDOM = {"cpu": torch}  # what draws random numbers
if device.TYPE == "cuda":
    _RANDOM["cuda"] = torch.cuda


# Lines, or parts of lines, of torchtitan and torch that do not hold for any run here
UNTRUE = (
    r'"_enforced": .*\n\s*',
    r'"eos_id": .*\n\s*',  # the token file's end of text is another
    r" \(warmup \d+\)$",  # the line before it may have shortened that
    r"^Peak FLOPS used for computing MFU: nan$",
    r"  \S*mfu: nan%",
    r"^CPU memory usage for model.*",  # it is the memory of the process, libraries included
    r"(?s:^.*Profiler clears events at the end of each cycle.*)",  # the proof's has one
    r"(?s:^.*Torchinductor does not support code generation for complex operators.*)",  # RoPE's
)
NO_CAST = r"^Mixed precision training is handled by .*"


class TrueLines(logging.Filter):
    """Takes out of a run's log what is not true of the run."""

    def __init__(self, config):
        super().__init__()
        is_cast = config.training.dtype != config.training.mixed_precision_param
        self.untrue = re.compile("|".join(UNTRUE if is_cast else [*UNTRUE, NO_CAST]))

    def filter(self, record: logging.LogRecord) -> bool:
        line = record.getMessage()
        record.msg, record.args = self.untrue.sub("", line), None
        return bool(record.msg) or not line


class Diverged(RuntimeError):
    """A loss or a gradient norm is not finite."""


def no_reduce(values: torch.Tensor, operation: str = "sum") -> torch.Tensor:
    """Return the values of a run's only process: their `sum` and `max` over processes."""
    return values


def clip(parameters: list[torch.nn.Parameter], max_norm: float) -> torch.Tensor:
    """Scale the gradients down to a norm of `max_norm`, as torch does.

    An infinite `max_norm` skips the scaling. Returns the norm before, all ranks' shards included: a
    scalar. A norm that is not finite changes no gradient: scaling by it would make NaN of finite
    gradients too, and hide where the others come from.
    """
    norm = get_total_norm([p.grad for p in parameters if p.grad is not None], foreach=True)
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    if math.isfinite(max_norm):
        clip_grads_with_norm_(parameters, max_norm, norm.nan_to_num(0, 0), foreach=True)
    return norm


class Trainer(titan.Trainer):
    """One run of a plan. Its records go into a run directory, if there is one."""

    checkpointer: Checkpoints

    def __init__(self, plan: Plan, stop: StopRequest, directory: "RunDirectory | None" = None):
        TIMELINE.mark("setup")
        self.plan, self.stop, self.directory = plan, stop, directory
        config = plan.config

        # In here, in this order: process group, loader, model on the meta device, FP8 conversion,
        # recomputation, compilation and sharding, weights, optimizer, schedule, checkpoints.
        # torchtitan has a registry for all runs instead of the first patch, and no hook for the
        # other one.
        with (
            patch.object(titan.train_spec_module, "get_train_spec", self._train_spec),
            patch.object(titan, "CheckpointManager", Checkpoints),
        ):
            super().__init__(config)
        if config.training.dtype == config.training.mixed_precision_param:
            # Nothing to cast: autocast would only slow down every operator
            self.maybe_enable_amp = nullcontext()

        self.proof = Proof(plan, self.model_parts[0], self.optimizers.optimizers[0])
        self.all_reduce = plan.recipe.find_hook("all_reduce", no_reduce)
        self._stop_code = 0
        self._short_steps = 0  # steady ones, in which memory was short
        self.unsaved = ""  # why there is no checkpoint of the last step
        TIMELINE.mark("optimizer")

    # ---- torchtitan's parts, in the order in which its `__init__` builds them ----

    def _train_spec(self, _) -> TrainSpec:
        """Say how torchtitan builds the parts of a run."""
        kind = find_architecture(self.plan.config)
        return TrainSpec(
            model_cls=kind.model,
            model_args=kind.flavors,  # torchtitan changes the flavor: one run a process
            pipelining_fn=None,
            build_tokenizer_fn=None,
            build_dataloader_fn=self._build_loader,
            parallelize_fn=self._convert,
            build_loss_fn=build_cross_entropy_loss,
            build_optimizers_fn=self._build_optimizers,
            build_lr_schedulers_fn=build_lr_schedulers,
        )

    def _build_loader(self, dp_rank: int, dp_world_size: int, **_) -> BatchLoader:
        """Build the loader of this process's rows."""
        return BatchLoader(self.plan.token_file, self.plan.config, dp_rank, dp_world_size)

    def _convert(self, model: torch.nn.Module, *others) -> torch.nn.Module:
        """Swap linear layers for FP8 layers; recompute, compile and shard the model.

        The model has no weights yet.
        """
        TIMELINE.mark("model_build")
        self.plan.recipe.find_hook("convert", float8.convert_linears)(model, self.plan)
        TIMELINE.mark("conversion")
        return parallelize_model(model, *others, shard=self.plan.recipe.find_hook("parallelize"))

    def _build_optimizers(self, *parts):
        """Build the optimizer; the model has its weights."""
        TIMELINE.mark("model_build")
        build = self.plan.recipe.find_hook("build_optimizers")
        return build(self.plan.config, *parts) if build else build_optimizers(*parts)

    # ---- a run ----

    def train(self, checkpoint_step: int = 0) -> None:
        """Train from the checkpoint of a step (0: none) to the last step.

        Raises `Interrupted`, `Diverged`, `ProofError`, and what torchtitan raises.
        """
        config, last = self.job_config, self.job_config.training.steps
        # Only rank 0 looks for a checkpoint
        checkpoint_step = int(self.all_reduce(torch.tensor(checkpoint_step), "max"))
        self.checkpointer.load(checkpoint_step)
        self.begin()
        logger.info(f"Training starts at step {self.first_step}")
        snapshots = maybe_enable_memory_snapshot(
            config.profiling, global_step=self.step, base_folder=config.job.dump_folder
        )
        with snapshots as memory, tracer(config, self.step, skip=PROFILED - 1) as trace:
            batches = self.batch_generator(self.dataloader)
            while self.step < last:
                self.step += 1
                self.gc_handler.run(self.step)
                self.train_step(batches)
                self._save()
                if memory:
                    memory.step()
                if trace and end_traced_step(trace):
                    self._disturb_next_step()
                if self._stop_code:
                    self._interrupt()

    def begin(self) -> None:
        """Begin the steps of this process, after a checkpoint's if there is one."""
        self.first_step = self.step + 1
        self.begin_stretch(self.first_step, self.job_config.training.steps)
        self.meter = Meter(self.plan, self.metrics_processor, self.all_reduce, self.directory)

    def _save(self) -> None:
        """Save a checkpoint where one is due. Raises `CheckpointException`, except after the last
        step."""
        if self.step < self.job_config.training.steps:
            self.checkpointer.save(self.step)
            return
        # A checkpoint that only an overlay asked for would be deleted at once
        if not self.plan.recipe.provenance.overlay_checkpoints:
            self.unsaved = self.checkpointer.save_last(self.step)
            if self.unsaved:
                logger.warning(self.unsaved)

    def _interrupt(self) -> None:
        """End a run on request, once its checkpoint is written. Raises `Interrupted`."""
        sentence = f"stopped after step {self.step} by {self.stop.signal_name or 'another process'}"
        if self.checkpointer.enable:
            self.checkpointer._async_wait()
            sentence += ", a checkpoint was saved"
        raise Interrupted(self._stop_code, sentence)

    def train_step(self, batches: Iterator) -> None:
        """Do one step; end the log interval if it is the interval's last one."""
        config, first = self.job_config, self.step == self.first_step
        for prepare in self.plan.recipe.find_hooks("before_step"):
            prepare(self, self.step)
        profiled = self.step == self.profiled_step

        with self.proof.profile(self.step) if profiled else nullcontext():
            self.optimizers.zero_grad()
            lr = self.lr_schedulers.schedulers[0].get_last_lr()[0]
            micro_batches = [next(batches) for _ in range(self.plan.passes)]
            # Tokens that are not padding, counted on the host: nothing waits for the device
            local_valid = sum((labels != IGNORE_INDEX).sum() for _, labels in micro_batches)
            valid = float(self.all_reduce(local_valid))
            losses = []
            for inputs, labels in micro_batches:
                loss = self.forward_backward_step(
                    input_dict={"input": device.to_device(inputs["input"], self.device)},
                    labels=device.to_device(labels, self.device),
                    global_valid_tokens=valid,
                )
                losses.append(loss.detach())

            parameters = list(self.model_parts[0].parameters())
            norm = clip(parameters, config.training.max_norm)
            read_norm = device.copy_scalar_async(norm)
            self.checkpointer.maybe_wait_for_staging()
            with self.proof.movement() if first else nullcontext():
                self.optimizers.step()
            self.lr_schedulers.step()
            norm = read_norm()  # the device has the optimizer's step to do while the host waits
            # One process that is asked to stop stops all of them
            stop_code = int(self.all_reduce(torch.tensor(self.stop.exit_code), "max"))

        if first:
            device.wait_for_device()  # the time to the first step is that of its kernels too
            # From now on a request to stop waits for the end of a step
            self.stop.waits_for_step_end = True
        loss, last = torch.stack(losses).sum(), self.step == config.training.steps
        self.meter.end_step(self.step, loss, valid, self.step >= self._steady_from)
        self._record_step()

        self._stop_code = 0 if last else stop_code
        if self._stop_code:
            self.checkpointer.interval = self.step  # so that one is saved now
        saves = self.checkpointer._should_save(self.step)
        if saves:
            self._disturb_next_step()
        # An interval ends also where a checkpoint is saved: a resume loses no step
        ends = last or saves or self._stop_code or not math.isfinite(norm)
        if ends or self.metrics_processor.should_log(self.step):
            self._end_window(loss * valid / float(local_valid), norm, lr)

    # ---- the parts of a step ----

    def begin_stretch(self, first: int, last: int) -> None:
        """Begin a stretch of steps with the same work.

        One of its steps is profiled, and the first are not steady.
        """
        self.profiled_step = min(first + PROFILED - 1, last)
        self._steady_from = max(self.first_step + NOT_STEADY_STEPS, first + NOT_STEADY)

    def _record_step(self) -> None:
        """Record where the time to the end of the first step went, and the proof of a profiled
        step."""
        if self.directory and self.step == self.first_step:
            self.directory.attempt.timing = TIMELINE.end_first_step()
            self.directory.write()
        if self.directory and self.step == self.profiled_step:
            evidence = self.plan.recipe.find_hook(
                "evidence", lambda trainer: trainer.proof.record()
            )
            self.directory.record.proof = evidence(self)
            self.directory.write()

    def _disturb_next_step(self) -> None:
        """Count the next step as not steady: this one ends with a checkpoint or in a trace."""
        self._steady_from = max(self._steady_from, self.step + 2)

    def _end_window(self, local_loss: torch.Tensor, norm: float, lr: float) -> None:
        """Record a log interval, and log torchtitan's curves. Raises `Diverged`."""
        fp8 = self.proof.fp8
        in_fp8 = 0 if fp8.emulated else fp8.flops_per_token
        interval = self.meter.close(self.step, norm, lr, in_fp8)
        self._short_steps += len({*interval.allocator_retries} - {*interval.not_steady})
        if None in interval.losses:
            raise Diverged(f"the loss was not finite by step {self.step}")
        if interval.grad_norm is None:
            broken = self._broken()  # none where their squares are more than the dtype holds
            raise Diverged(
                f"the gradient norm was not finite in step {self.step}, nor the gradients of "
                f"{len(broken)} parameters: {', '.join(broken[:3])}"
            )
        largest = float(self.all_reduce(local_loss, "max"))
        curves = {"n_tokens_seen": self.ntokens_seen * self.plan.world_size, "lr": lr}
        self.metrics_processor.log(self.step, interval.losses[-1], largest, norm, curves)

    def _broken(self) -> list[str]:
        """Name the parameters whose gradient is not finite."""
        names = []
        for name, parameter in self.proof.trainable.items():
            broken = torch.tensor(int(not local_tensor(parameter.grad).isfinite().all()))
            if self.all_reduce(broken, "max"):
                names.append(name)
        return names

    def notes(self) -> list[str]:
        """Say what a reader of this run's figures should know."""
        notes = [f"attention: {self.proof.attention}"] if self.proof.attention else []
        if self._short_steps:
            notes.append(
                f"the GPU's memory was short in {self._short_steps} steady steps, which made them "
                "slower: take a smaller size"
            )
        if self.unsaved:
            notes.append(self.unsaved)
        for own in self.plan.recipe.find_hooks("notes"):
            notes += own(self)
        return notes

    # ---- checkpoints ----

    def state_dict(self) -> dict:
        """Return torchtitan's trainer state, each rank's RNG state, and the identity of the run."""
        random = {name: source.get_rng_state() for name, source in _RANDOM.items()}
        ours = {f"random_{dist.get_rank()}": random, "identity": self.plan.identity}
        return super().state_dict() | ours

    def load_state_dict(self, state_dict: dict) -> None:
        super().load_state_dict(state_dict)
        for name, source in _RANDOM.items():
            source.set_rng_state(state_dict[f"random_{dist.get_rank()}"][name])
