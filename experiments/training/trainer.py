"""torchtitan's Trainer with this project's records around it; its loop is used as it is.

What is called, in this order; `*` marks what this project adds or adds to:

    train
      checkpointer.load                   * the newest whole checkpoint, if there is one
      checkpoint.py should_continue_training            * last step? asked to stop? the first time:
      records go on from this step train_step                          * switch FP8 on or off by the
      step's number            models/float8.py
                                          * watch the optimizer (first step), profile (third of a
                                          phase)  proof.py
        batch_generator                   * count tokens
        forward_backward_step             * keep each micro-batch's loss
        clip_grad_norm_                   * our norm; clip here, or within a fused optimizer
        models/optimizer.py optimizers.step, lr_schedulers.step metrics_processor.should_log      *
        norm finite? do all ranks stop here? metrics_processor.log               at the end of a log
        window metrics_processor.end_step        * the window's line; timing.json, proof.json
        metrics.py, attempt.py
      checkpointer.save                   * also where the run was asked to stop
"""

import json
import math
import os
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from unittest.mock import patch

import torch
import torch.distributed as dist

from models import device  # before anything of torchtitan: see there  # isort: skip
import torchtitan.train as titan
from torchtitan.components.loss import IGNORE_INDEX
from torchtitan.protocols.train_spec import register_train_spec

from experiments.config.phases import first_and_last, fp8_steps
from experiments.config.rules import FLOAT8, flat
from experiments.corpus import rows, tokens
from experiments.jobs.signals import Interrupted, Stop
from experiments.training import compile_cache
from experiments.training.checkpoint import Checkpoints
from experiments.training.metrics import NOT_STEADY_STEPS, Metrics
from experiments.training.proof import PROFILED_STEP, RECORDING_STEP, Proof
from experiments.training.timeline import TIMELINE, compiled_s
from models import float8, optimizer
from models.architectures import ARCHITECTURES, model_args
from models.errors import InputError
from models.fused_adamw import local
from models.train_spec import train_spec


def _build_dataloader(job_config, **keys):
    token_file = tokens.prepare(job_config)
    rows.check_vocabulary(token_file, model_args(job_config).vocab_size)
    return rows.build_dataloader(token_file, job_config=job_config, **keys)


for _name in ARCHITECTURES:
    _spec = train_spec(
        _name,
        build_dataloader_fn=TIMELINE.marked(_build_dataloader, before="distributed", after="data"),
        # torchtitan converts the model between building it and building this
        build_metrics_processor_fn=TIMELINE.marked(Metrics, before="conversion"),
    )
    register_train_spec(
        _name,
        replace(
            _spec,
            model_cls=TIMELINE.marked(_spec.model_cls, before="model_build", after="model_build"),
            build_optimizers_fn=TIMELINE.marked(_spec.build_optimizers_fn, before="model_build"),
        ),
    )


_IDENTITY_SECTIONS = ("model", "optimizer", "lr_scheduler", "training", "quantize")
_RANDOM = {"cpu": torch} | (
    {"cuda": torch.cuda} if device.TYPE == "cuda" else {}
)  # what draws random numbers


class _Finished(Exception):
    """The last step is done."""


def _identity(config, data: str) -> dict:
    """What a checkpoint's numbers depend on, as key paths and values; how long the run is does not
    matter.

    `data` is name and content hash of the token file, which stand for the keys that say where it
    comes from.
    """
    sections = {name: asdict(getattr(config, name)) for name in _IDENTITY_SECTIONS}
    del (
        sections["training"]["steps"],
        sections["training"]["dataset_path"],
        sections["model"]["hf_assets_path"],
    )
    keys = dict(flat(sections)) | {"debug.seed": config.debug.seed, "data": data}
    keys |= zip(
        (f"{FLOAT8}.first_step", f"{FLOAT8}.last_step"), first_and_last(config), strict=True
    )
    return keys | {"processes": dist.get_world_size()}


class Trainer(titan.Trainer):
    """One run. Call `train()`; `proof` and `metrics_processor` hold the records, `data` names what
    it reads.

    Raises what torchtitan raises, and `ProofError`, `Diverged`, `Interrupted`, `InputError`.
    """

    metrics_processor: Metrics
    checkpointer: Checkpoints

    def __init__(self, job_config, stop: Stop):
        TIMELINE.mark("import")
        self.stop = stop
        compile_cache.restore(job_config)
        TIMELINE.mark("compile_cache")
        convert_late = job_config.optimizer.built == "before_conversion"
        unconverted = replace(job_config, model=replace(job_config.model, converters=[]))
        with patch.object(titan, "CheckpointManager", Checkpoints):  # torchtitan has no hook for it
            super().__init__(unconverted if convert_late else job_config)
        if convert_late:
            self.job_config = job_config
            float8.Float8Converter(job_config, self.parallel_dims).convert(self.model_parts[0])
        training = job_config.training
        if training.dtype == training.mixed_precision_param:
            self.maybe_enable_amp = (
                nullcontext()
            )  # nothing to cast; autocast would only slow down every operator
        self.fp8_steps = fp8_steps(job_config)
        self.proof = Proof(
            job_config,
            self.model_parts[0],
            self.optimizers.optimizers[0],
            self.parallel_dims,
            self.gradient_accumulation_steps,
        )
        self.data = self.dataloader.rows.token_file.path.name
        self.checkpointer.identity = json.loads(json.dumps(_identity(job_config, self.data)))
        self.metrics_processor.stops_here = self._stops_here
        self._hosts = dist.new_group(backend="gloo")  # to agree without waiting for the devices
        self._stop_code = 0
        self._micro_losses: list[torch.Tensor] = []
        self._steps_done = 0  # by this process: fewer than self.step after a resume
        self._phase = self._steps_in_phase = 0  # its first step; steps of it that this process did
        self.switches: dict[
            int, dict
        ] = {}  # by step: whether to FP8, and what torch.compile took of it
        TIMELINE.mark("optimizer")

    def init_distributed(self):
        """As torchtitan's; one rank alone has only itself to wait for, for which it needs no
        NCCL."""
        if ctas := self.job_config.comm.nccl_max_ctas:
            os.environ["NCCL_MAX_CTAS"] = str(ctas)  # read when a communicator is created
        alone = {device.TYPE: "gloo"} if os.environ["WORLD_SIZE"] == "1" else {}
        with patch.dict(dist.Backend.default_device_backend_map, alone):
            return super().init_distributed()

    def state_dict(self) -> dict:
        """What torchtitan checkpoints of its trainer, the random numbers to come of every rank, and
        whose it is."""
        random = {name: source.get_rng_state() for name, source in _RANDOM.items()}
        own = {
            f"random_{dist.get_rank()}": random,
            "identity": json.dumps(self.checkpointer.identity),
        }
        return super().state_dict() | own

    def load_state_dict(self, state_dict: dict) -> None:
        super().load_state_dict(state_dict)
        for name, source in _RANDOM.items():
            source.set_rng_state(state_dict[f"random_{dist.get_rank()}"][name])

    def train(self) -> None:
        """Train to the last step."""
        with suppress(_Finished):
            super().train()

    def should_continue_training(self) -> bool:
        """torchtitan's question at each step boundary, the first time right after loading a
        checkpoint."""
        if not self._steps_done:
            if self.step > (asked := self.job_config.training.steps):
                raise InputError(
                    f"the run's checkpoint is of step {self.step}, and training.steps={asked} asks for fewer: raise it"
                )
            self.metrics_processor.on_resume(self.step)
        self.stop.deferred = self.stop.deferred or self._steps_done > 0
        if self._stop_code:
            kept = (
                "a checkpoint was saved"
                if self.checkpointer.enable
                else "without a checkpoint: none are enabled"
            )
            why = self.stop.why or "another rank"
            raise Interrupted(self._stop_code, f"stopped after step {self.step} by {why}, {kept}")
        if not super().should_continue_training():
            raise _Finished  # past torchtitan's two seconds of waiting for other ranks, who wait for one another here
        return True

    def _stops_here(self) -> bool:
        """Whether this step is the last because a rank was asked to stop; all ranks ask one another
        in each step.

        By now the device has the optimizer's step to do while the host waits for the gradient norm.
        """
        if not math.isfinite(self._norm()):
            self.metrics_processor.diverged = (
                f"the gradient norm was not finite in step {self.step}"
                + self._parameters_not_finite()
            )
        code = torch.tensor(self.stop.code)
        if dist.get_world_size() > 1:
            dist.all_reduce(code, dist.ReduceOp.MAX, group=self._hosts)
        if self.step < self.job_config.training.steps:
            self._stop_code = int(code)
        self.checkpointer.asked = self._stop_code > 0
        return self.checkpointer.asked

    def batch_generator(self, data_iterable):
        for input_dict, labels in super().batch_generator(data_iterable):
            self.metrics_processor.tokens += labels.numel()
            self.metrics_processor.valid_tokens += int((labels != IGNORE_INDEX).sum())
            yield input_dict, labels

    def forward_backward_step(self, **kwargs) -> torch.Tensor:
        loss = super().forward_backward_step(**kwargs)
        self._micro_losses.append(loss.detach())
        return loss

    def train_step(self, data_iterator):
        metrics = self.metrics_processor
        saved_before = self.checkpointer._should_save(
            self.step - 1
        )  # between two steps: this one's time holds it
        self._enter_phase()
        self._steps_done += 1
        self._steps_in_phase += 1
        if self._steps_done == 1:
            metrics.clock.start()
        self._micro_losses.clear()
        clip = patch.object(
            titan.dist_utils, "clip_grad_norm_", self._clip
        )  # torchtitan has no hook for it
        compiled_before = compiled_s()
        with self._observed(), clip:
            super().train_step(data_iterator)
        if self.step in self.switches:
            self.switches[self.step]["compile_s"] = compiled_s() - compiled_before
        metrics.losses.append(torch.stack(self._micro_losses).sum())
        if self._steps_done == 1:
            device.synchronize()
            TIMELINE.end_first_step()
        to_come = (
            0 < len(self.fp8_steps) < self.job_config.training.steps
        )  # another precision, with its own kernels
        if self._profiles() and len(self.switches) == to_come:  # by now all is compiled
            compile_cache.save(self.job_config)
        settling = (
            self._steps_in_phase <= PROFILED_STEP
        )  # a switch may compile, and the third step is profiled
        if self._steps_done <= NOT_STEADY_STEPS or settling or saved_before:
            metrics.not_steady.append(self.step)
        metrics.end_step(self.step)

    def _enter_phase(self) -> None:
        """Switch FP8 on or off where this step asks for it: by its number, whichever step a resumed
        run begins with."""
        phase = self._phase_of(self.step)
        if phase == self._phase:
            return
        in_fp8 = self.step in self.fp8_steps
        float8.switch(self.model_parts[0], in_fp8)
        if self._steps_done:
            self.switches[self.step] = {"in_fp8": in_fp8}
        self._phase, self._steps_in_phase = phase, 0
        self.metrics_processor.fp8_flops_per_token = 0.0  # until a step of the phase is profiled

    def _phase_of(self, step: int) -> int:
        """The first step of the phase that `step` belongs to."""
        return max(
            first for first in (1, self.fp8_steps.start, self.fp8_steps.stop) if first <= step
        )

    @contextmanager
    def _observed(self):
        """The proof's share of a step: watch the optimizer in the first, profile a later one."""
        watch = None
        if self._steps_done == 1:
            watch = self.optimizers.register_step_pre_hook(lambda *_: self.proof.before_step())
        profiled = self._profiles()
        phase = {"first": self._phase, "in_fp8": self.step in self.fp8_steps}
        with self.proof.profile(self.step, **phase) if profiled else nullcontext():
            yield
        if watch:
            watch.remove()
            self.proof.after_step()
        if profiled:
            self.metrics_processor.fp8_flops_per_token = self.proof.fp8_flops_per_token

    def _profiles(self) -> bool:
        """Whether this step is its phase's profiled one; in a phase that ends before that, its last
        step is."""
        chosen = RECORDING_STEP if self.job_config.compile.cuda_graphs else PROFILED_STEP
        last = (
            self.step == self.job_config.training.steps
            or self._phase_of(self.step + 1) != self._phase
        )
        return self._steps_in_phase == chosen or (self._steps_in_phase < chosen and last)

    def _clip(self, parameters: list[torch.nn.Parameter], max_norm: float, **_) -> torch.Tensor:
        """Clip gradients as torchtitan does, or within the optimizer's step; not if their norm is
        not finite."""
        norm = optimizer.gradient_norm(parameters)
        self._norm = device.read_later(norm)
        optimizer.clip(self.optimizers, parameters, norm, max_norm)
        return norm

    def _parameters_not_finite(self) -> str:
        """The end of a sentence that names parameters whose gradient is not finite, of the first
        rank that has any."""
        with_gradient = (
            (name, p.grad) for name, p in self.proof.trainable().items() if p.grad is not None
        )
        names = [name for name, gradient in with_gradient if not local(gradient).isfinite().all()]
        by_rank = [names] * dist.get_world_size()
        dist.all_gather_object(by_rank, names, group=self._hosts)
        if not (names := next(filter(None, by_rank), [])):
            return (
                ", although each gradient is"  # their squares add up to more than the dtype holds
            )
        more = (
            f" and {len(names) - len(shown)} more" if len(names) > len(shown := names[:3]) else ""
        )
        return f": the gradient of {', '.join(shown)}{more}"
