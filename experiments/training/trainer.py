"""Train a recipe with torchtitan's parts, in the order of `Trainer`'s calls.

torchtitan builds the parts, see `Trainer.__init__`. `Trainer.train` is a run and
`Trainer.train_step` a step of it: read both from top to bottom.
"""

import math
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
from torchtitan.distributed import ParallelDims
from torchtitan.protocols.train_spec import TrainSpec
from torchtitan.tools.logging import logger
from torchtitan.tools.profiling import maybe_enable_memory_snapshot

from experiments.corpus.rows import BatchLoader
from experiments.jobs.command import Interrupted, StopRequest
from experiments.jobs.durations import COMPILATION_HINT
from experiments.records.run import NOT_STEADY_STEPS, Proof
from experiments.training.checkpoint import Checkpoints
from experiments.training.metrics import TIMELINE, Meter, end_traced_step, make_tracer
from experiments.training.plan import OpenedPlan
from experiments.training.proof import ProofCollector, digest_tensors
from models import float8
from models.architectures import RecipeModel, find_architecture, parallelize_model
from models.device import local_tensor

if TYPE_CHECKING:
    from experiments.training.attempt import RunDirectory

# A stretch is steps with the same work. Its first step compiles, and the second may compile again
PROFILED_STEP = 3  # of a stretch, counted from 1
NOT_STEADY_STRETCH_STEPS = 3  # the first of a stretch, with the profiled one
MAX_REPORTED_PARAMETERS = 3

RANDOM_SOURCES = {"cpu": torch}
if device.TYPE == "cuda":
    RANDOM_SOURCES["cuda"] = torch.cuda


class Diverged(RuntimeError):
    """A loss or a gradient norm is not finite."""


def reduce_single_process(values: torch.Tensor, operation: str = "sum") -> torch.Tensor:
    """Return the values as they are: over a single process they are their own `sum` or `max`."""
    return values


def clip_gradients(parameters: list[torch.nn.Parameter], max_norm: float) -> torch.Tensor:
    """Scale the gradients down to a norm of `max_norm`, as torch does.

    An infinite `max_norm` skips the scaling. A norm that is not finite changes no gradient: scaling
    by it would make NaN of finite gradients too, and hide where the NaN came from.

    Returns:
        The norm before, all ranks' shards included: a scalar.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = get_total_norm(gradients, foreach=True)
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    if math.isfinite(max_norm):
        # For a norm that is not finite 0 is given, and torch scales by at most 1
        finite_norm = norm.nan_to_num(nan=0, posinf=0)
        clip_grads_with_norm_(parameters, max_norm, finite_norm, foreach=True)
    return norm


def casts_weights(config) -> bool:
    """Tell if weights are cast to another dtype for a forward pass."""
    return config.training.dtype != config.training.mixed_precision_param


class Trainer(titan.Trainer):
    """One run of a plan. Its records go into a run directory, if there is one."""

    checkpointer: Checkpoints
    dataloader: BatchLoader

    def __init__(
        self, plan: OpenedPlan, stop: StopRequest, directory: "RunDirectory | None" = None
    ):
        TIMELINE.mark("setup")
        self.plan = plan
        self.stop = stop
        self.directory = directory

        # In here, in this order: process group, loader, model on the meta device, FP8 conversion,
        # recomputation, compilation and sharding, weights, optimizer, schedule, checkpoints.
        # torchtitan has a registry for all runs instead of the first patch, and no hook for the
        # second one.
        with (
            patch.object(titan.train_spec_module, "get_train_spec", self._make_train_spec),
            patch.object(titan, "CheckpointManager", Checkpoints),
        ):
            super().__init__(plan.config)
        if not casts_weights(plan.config):
            self.maybe_enable_amp = nullcontext()  # autocast would only slow down every operator

        self.proof = ProofCollector(plan, self.model_parts[0], self.optimizers.optimizers[0])
        self.all_reduce = plan.recipe.find_hook("all_reduce", reduce_single_process)
        self._stop_code = 0
        self._n_short_steps = 0  # steady steps in which the GPU's memory was short
        self._unsaved_reason = ""  # why there is no checkpoint of the last step
        TIMELINE.mark("optimizer")

    @property
    def interval_steps(self) -> range:
        """The steps of the log interval so far, whose losses the meter holds until its end."""
        return range(self.step - len(self.meter.losses) + 1, self.step + 1)

    @property
    def _has_whole_model(self) -> bool:
        """True if this process has all weights and all rows, so that digests of them compare."""
        return self.plan.world_size == 1

    # ---- torchtitan's parts, in the order in which its `__init__` builds them ----

    def _make_train_spec(self, _) -> TrainSpec:
        """Say how torchtitan builds the parts of a run."""
        architecture = find_architecture(self.plan.config)
        return TrainSpec(
            model_cls=architecture.model,
            model_args=architecture.flavors,  # torchtitan writes the run's keys into the flavor
            pipelining_fn=None,
            build_tokenizer_fn=None,
            build_dataloader_fn=self._build_loader,
            parallelize_fn=self._parallelize_model,
            build_loss_fn=build_cross_entropy_loss,
            build_optimizers_fn=self._build_optimizers,
            build_lr_schedulers_fn=build_lr_schedulers,
        )

    def _build_loader(self, dp_rank: int, dp_world_size: int, **_) -> BatchLoader:
        """Build the loader of this process's rows."""
        return BatchLoader(self.plan.token_file, self.plan.config, dp_rank, dp_world_size)

    def _parallelize_model(
        self, model: RecipeModel, parallel_dims: ParallelDims, config
    ) -> RecipeModel:
        """Swap linear layers for FP8 layers; recompute, compile and shard the model.

        The model has no weights yet.
        """
        TIMELINE.mark("model_build")
        convert = self.plan.recipe.find_hook("convert", float8.convert_linears)
        convert(model, self.plan)
        TIMELINE.mark("conversion")
        parallelize = self.plan.recipe.find_hook("parallelize")
        return parallelize_model(model, parallel_dims, config, parallelize)

    def _build_optimizers(self, *arguments):
        """Build the optimizer; the model has its weights."""
        TIMELINE.mark("model_build")
        build = self.plan.recipe.find_hook("build_optimizers")
        if build:
            return build(self.plan.config, *arguments)
        return build_optimizers(*arguments)

    # ---- a run, and a step of it ----

    def train(self, checkpoint_step: int = 0) -> None:
        """Train from the checkpoint of a step (0: none) to the last step.

        Raises `Interrupted`, `Diverged`, `ProofError`, and what torchtitan raises.
        """
        config = self.job_config
        # Only rank 0 looks for a checkpoint
        checkpoint_step = int(self.all_reduce(torch.tensor(checkpoint_step), "max"))
        self.checkpointer.load(checkpoint_step)
        self.begin()
        logger.info(f"Training starts at step {self.first_step}")
        if config.compile.enable:
            logger.info(COMPILATION_HINT)
        snapshots = maybe_enable_memory_snapshot(
            config.profiling, global_step=self.step, base_folder=config.job.dump_folder
        )
        tracer = make_tracer(config, self.step, skipped_steps=PROFILED_STEP - 1)
        with snapshots as memory, tracer as trace:
            batches = self.batch_generator(self.dataloader)
            while self.step < config.training.steps:
                self.step += 1
                self.gc_handler.run(self.step)
                self.train_step(batches)
                self._save()
                if memory:
                    memory.step()
                if trace and end_traced_step(trace):
                    self._mark_next_step_not_steady()
                if self._stop_code:
                    self._interrupt()

    def train_step(self, batches: Iterator) -> None:
        """Do one step; end the log interval if it is the interval's last one."""
        config = self.job_config
        is_first = self.step == self.first_step
        is_last = self.step == config.training.steps
        for prepare in self.plan.recipe.find_hooks("before_step").values():
            prepare(self, self.step)
        # After `before_step`, because an extension may begin another stretch there
        is_profiled = self.step == self.profiled_step

        with self.proof.profile(self.step) if is_profiled else nullcontext():
            self.optimizers.zero_grad()
            lr = float(self.lr_schedulers.schedulers[0].get_last_lr()[0])
            micro_batches = [next(batches) for _ in range(self.plan.passes)]
            if self.step == 1 and self.directory and self._has_whole_model:
                tokens = [inputs["input"] for inputs, _ in micro_batches]
                self.directory.record.first_batch = digest_tensors(tokens)
            # Tokens that are not padding, counted on the host: nothing waits for the device
            local_valid_tokens = sum((labels != IGNORE_INDEX).sum() for _, labels in micro_batches)
            valid_tokens = float(self.all_reduce(local_valid_tokens))
            losses = []
            for inputs, labels in micro_batches:
                loss = self.forward_backward_step(
                    input_dict={"input": device.to_device(inputs["input"], self.device)},
                    labels=device.to_device(labels, self.device),
                    # torchtitan only divides by it
                    global_valid_tokens=valid_tokens,  # type: ignore[arg-type]
                )
                losses.append(loss.detach())

            parameters = list(self.model_parts[0].parameters())
            norm = clip_gradients(parameters, config.training.max_norm)
            read_norm = device.copy_scalar_async(norm)
            self.checkpointer.maybe_wait_for_staging()
            with self.proof.watch_movement() if is_first else nullcontext():
                self.optimizers.step()
            self.lr_schedulers.step()
            grad_norm = read_norm()  # the device has the optimizer's step to do meanwhile
            # One process that is asked to stop stops all of them
            stop_code = int(self.all_reduce(torch.tensor(self.stop.exit_code), "max"))

        if is_first:
            device.wait_for_device()  # the time to the first step is that of its kernels too
            # From now on a request to stop waits for the end of a step
            self.stop.waits_for_step_end = True
        loss = torch.stack(losses).sum()
        is_steady = self.step >= self._first_steady_step
        self.meter.end_step(self.step, loss, valid_tokens, is_steady)
        self._record_step()

        if stop_code and not is_last:
            self._stop_code = stop_code
            self.checkpointer.request_save(self.step)
        is_save_due = self.checkpointer.is_save_due(self.step)
        if is_save_due:
            self._mark_next_step_not_steady()
        # An interval ends also where a checkpoint is saved: a resume loses no step
        ends_early = is_last or is_save_due or self._stop_code or not math.isfinite(grad_norm)
        if ends_early or self.metrics_processor.should_log(self.step):
            # `loss` is this process's part of the run's mean: per valid token of all processes
            local_mean_loss = loss * valid_tokens / float(local_valid_tokens)
            self._end_interval(local_mean_loss, grad_norm, lr)

    # ---- the parts of a run ----

    def begin(self) -> None:
        """Begin the steps of this process, after a checkpoint's if there is one."""
        self.first_step = self.step + 1
        self.begin_stretch(self.first_step, self.job_config.training.steps)
        self.meter = Meter(self.plan, self.metrics_processor, self.all_reduce, self.directory)
        if self.first_step == 1 and self.directory and self._has_whole_model:
            weights = [local_tensor(weight) for weight in self.proof.parameters.values()]
            self.directory.record.first_weights = digest_tensors(weights)

    def begin_stretch(self, first_step: int, last_step: int) -> None:
        """Begin a stretch of steps with the same work.

        One of its steps is profiled, and the first are not steady.
        """
        self.profiled_step = min(first_step + PROFILED_STEP - 1, last_step)
        self._first_steady_step = max(
            self.first_step + NOT_STEADY_STEPS, first_step + NOT_STEADY_STRETCH_STEPS
        )

    def _mark_next_step_not_steady(self) -> None:
        """Count the next step as not steady: this one ends with a checkpoint or in a trace."""
        self._first_steady_step = max(self._first_steady_step, self.step + 2)

    def _save(self) -> None:
        """Save a checkpoint where one is due. Raises `CheckpointException`, except after the last
        step."""
        if self.step < self.job_config.training.steps:
            self.checkpointer.save(self.step)
            return
        # A checkpoint that only an overlay asked for would be deleted at once
        if not self.plan.recipe.provenance.overlay_checkpoints:
            self._unsaved_reason = self.checkpointer.save_last(self.step)
            if self._unsaved_reason:
                logger.warning(self._unsaved_reason)

    def _interrupt(self) -> None:
        """End a run on request, once its checkpoint is written. Raises `Interrupted`."""
        sentence = f"stopped after step {self.step} by {self.stop.signal_name or 'another process'}"
        if self.checkpointer.enable:
            self.checkpointer.wait_for_save()
            sentence += ", a checkpoint was saved"
        raise Interrupted(self._stop_code, sentence)

    # ---- the records of a step ----

    def _record_step(self) -> None:
        """Record where the time to the end of the first step went, and the proof of a profiled
        step."""
        if not self.directory:
            return
        if self.step == self.first_step:
            self.directory.attempt.timing = TIMELINE.end_first_step()
            self.directory.write()
        if self.step == self.profiled_step:
            sum_up_evidence = self.plan.recipe.find_hook("evidence", _record_proof)
            self.directory.record.proof = sum_up_evidence(self)
            self.directory.write()

    def _end_interval(self, local_loss: torch.Tensor, grad_norm: float, lr: float) -> None:
        """Record a log interval, and log torchtitan's curves. Raises `Diverged`."""
        fp8 = self.proof.fp8
        fp8_flops_per_token = 0 if fp8.emulated else fp8.flops_per_token
        sections = self._measure_extensions()
        interval = self.meter.record_interval(
            self.step, grad_norm, lr, fp8_flops_per_token, sections
        )
        self._n_short_steps += len(set(interval.allocator_retries) - set(interval.not_steady))
        finite_losses = [loss for loss in interval.losses if loss is not None]
        if len(finite_losses) < len(interval.losses):
            raise Diverged(f"the loss was not finite by step {self.step}")
        if interval.grad_norm is None:
            names = self._list_infinite_gradients()
            raise Diverged(
                f"the gradient norm was not finite in step {self.step}, nor the gradients of "
                f"{len(names)} parameters: {', '.join(names[:MAX_REPORTED_PARAMETERS])}"
            )
        largest_loss = float(self.all_reduce(local_loss, "max"))
        curves = {"n_tokens_seen": self.ntokens_seen * self.plan.world_size, "lr": lr}
        for extension, section in sections.items():
            for key, value in section.items():
                curves[f"{extension}/{key}"] = value
        self.metrics_processor.log(self.step, finite_losses[-1], largest_loss, grad_norm, curves)

    def _measure_extensions(self) -> dict[str, dict[str, float]]:
        """Ask the extensions for their numbers of the log interval, by extension and name."""
        sections = {}
        for extension, measure in self.plan.recipe.find_hooks("metrics").items():
            values = measure(self)
            if values:
                sections[extension] = values
        return sections

    def _list_infinite_gradients(self) -> list[str]:
        """Name the parameters whose gradient is not finite.

        Empty if only the sum of their squares is more than the dtype holds.
        """
        names = []
        for name, parameter in self.proof.trainable.items():
            gradient = parameter.grad
            is_finite = gradient is None or local_tensor(gradient).isfinite().all()
            if self.all_reduce(torch.tensor(int(not is_finite)), "max"):
                names.append(name)
        return names

    def notes(self) -> list[str]:
        """Say what a reader of this run's figures should know."""
        notes = []
        if self.proof.attention:
            notes.append(f"attention: {self.proof.attention}")
        if self._n_short_steps:
            notes.append(
                f"the GPU's memory was short in {self._n_short_steps} steady steps, which made "
                "them slower: take a smaller size"
            )
        if self._unsaved_reason:
            notes.append(self._unsaved_reason)
        for write_notes in self.plan.recipe.find_hooks("notes").values():
            notes += write_notes(self)
        return notes

    # ---- checkpoints ----

    def state_dict(self) -> dict:
        """Return torchtitan's trainer state, each rank's RNG state, and the identity of the run."""
        rng_states = {name: source.get_rng_state() for name, source in RANDOM_SOURCES.items()}
        run_states = {f"random_{dist.get_rank()}": rng_states, "identity": self.plan.identity}
        return super().state_dict() | run_states

    def load_state_dict(self, state_dict: dict) -> None:
        super().load_state_dict(state_dict)
        rng_states = state_dict[f"random_{dist.get_rank()}"]
        for name, source in RANDOM_SOURCES.items():
            source.set_rng_state(rng_states[name])


def _record_proof(trainer: Trainer) -> Proof:
    return trainer.proof.record()
