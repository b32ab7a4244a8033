"""What torchtitan's Trainer builds a run from: model, frozen parameters, compilation and sharding,
optimizer, loss."""

from dataclasses import replace
from fnmatch import fnmatchcase
from unittest.mock import patch

import models.device  # noqa: F401  # before torchtitan: see there  # isort: skip
import torch
import torch._inductor.config
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torchtitan.components.loss import build_cross_entropy_loss
from torchtitan.components.lr_scheduler import build_lr_schedulers
from torchtitan.distributed import ParallelDims
from torchtitan.models.llama3.infra import parallelize as titan
from torchtitan.models.llama4.infra import parallelize as with_experts
from torchtitan.protocols.train_spec import TrainSpec

from models.architectures import ARCHITECTURES
from models.errors import InputError, by_pattern
from models.flops import has_experts
from models.fp8_gradients import Fp8ReduceScatter
from models.optimizer import build_optimizers


def train_spec(name: str, **builders) -> TrainSpec:
    """The TrainSpec of an architecture; `builders` are the parts that are not the model's: data,
    metrics."""
    return TrainSpec(
        model_cls=ARCHITECTURES[name].model,
        model_args=ARCHITECTURES[name].flavors,
        parallelize_fn=parallelize,
        pipelining_fn=None,
        build_optimizers_fn=build_optimizers,
        build_lr_schedulers_fn=build_lr_schedulers,
        build_loss_fn=build_cross_entropy_loss,
        build_tokenizer_fn=None,
        **builders,
    )


def freeze(model: nn.Module, patterns: list[str]) -> None:
    """Stop training the parameters that shell patterns match.

    Raises `InputError` if a pattern matches nothing, or nothing is left to train.
    """
    parameters = dict(model.named_parameters())
    for pattern in patterns:
        matched = [
            parameter for name, parameter in parameters.items() if fnmatchcase(name, pattern)
        ]
        if not matched:
            raise InputError(
                f"model.freeze: `{pattern}` matches no parameter; there are {by_pattern(parameters)}"
            )
        for parameter in matched:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise InputError(
            f"model.freeze={patterns} leaves no parameter to train: leave a pattern out"
        )


def parallelize(model: nn.Module, parallel_dims: ParallelDims, job_config) -> nn.Module:
    """torchtitan's `parallelize_llama`, which also follows the keys `model.freeze`, `compile` and
    `quantize.gradients`.

    It serves any model of an embedding, blocks, a norm and a head by Llama's names.
    """
    freeze(model, job_config.model.freeze)
    keys = job_config.compile
    torch._inductor.config.emulate_precision_casts = keys.emulate_precision_casts
    torch._inductor.config.triton.cudagraphs = keys.cuda_graphs
    torch._inductor.config.max_autotune_pointwise = keys.max_autotune_pointwise
    whole = keys.enable and "model" in keys.components and keys.scope == "model"
    if whole:  # torchtitan would compile block by block
        others = [name for name in keys.components if name != "model"]
        job_config = replace(job_config, compile=replace(keys, components=others))
    tied = model.model_args.enable_weight_tying
    compile_blocks = (
        _compile_around_experts if has_experts(model.model_args) else titan.apply_compile
    )
    with (
        patch.object(titan, "fully_shard", _with_embedding(model) if tied else fully_shard),
        patch.object(titan, "apply_compile", compile_blocks),
    ):
        model = titan.parallelize_llama(model, parallel_dims, job_config)
    if whole:
        model.compile(backend=keys.backend)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # The same as torchtitan's average with a division factor of 1; gloo, the CPU's backend,
            # has sums alone.
            module.set_force_sum_reduction_for_comms(True)
            if job_config.quantize.gradients:
                module.set_custom_reduce_scatter(Fp8ReduceScatter())
    return model


def _compile_around_experts(model: nn.Module, keys) -> None:
    """torchtitan's compilation of what stands around experts, since no graph has how many tokens
    each of them gets."""
    with_experts.apply_compile(model, keys, ep_enabled=False)


def _with_embedding(model: nn.Module):
    """`fully_shard` for torchtitan's calls, of which one would shard the embedding and another one
    the head and norm.

    A tied matrix is both: sharded twice, it would be two parameters from then on.
    """

    def shard(modules: nn.Module | list[nn.Module], **keys) -> None:
        if isinstance(modules, list):
            modules = [model.tok_embeddings, *modules]
        if modules is not model.tok_embeddings:
            fully_shard(modules, **keys)

    return shard
