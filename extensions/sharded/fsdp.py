"""Shard a model by FSDP2, with the weights that one device would draw."""

from datetime import timedelta
from functools import partial

from models.device import local_tensor  # before torchtitan: see there  # isort: skip
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp
from torchtitan.config import TORCH_DTYPE_MAP
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.utils import set_pg_timeouts


def parallelize(model: nn.Module, parallel_dims: ParallelDims, job_config) -> None:
    """Shard parameters, gradients and optimizer states by FSDP2, as torchtitan's `apply_fsdp` does.

    Serves any model of an embedding, blocks, a norm and a head by Llama's names. Differs for a tied
    head: torchtitan shards the embedding in one group and the head in another, and sharded twice
    the matrix would be two parameters from then on.
    """
    if not parallel_dims.fsdp_enabled:
        return
    axes = ["dp_replicate", "fsdp"] if parallel_dims.dp_replicate_enabled else ["fsdp"]
    training, reshard = job_config.training, job_config.parallelism.fsdp_reshard_after_forward
    policy = MixedPrecisionPolicy(
        param_dtype=TORCH_DTYPE_MAP[training.mixed_precision_param],
        reduce_dtype=TORCH_DTYPE_MAP[training.mixed_precision_reduce],
    )
    keys = {"mesh": parallel_dims.get_mesh(axes), "mp_policy": policy}

    last = [model.norm, model.output]
    if model.model_args.enable_weight_tying:
        last.insert(0, model.tok_embeddings)
    else:
        fully_shard(model.tok_embeddings, **keys, reshard_after_forward=reshard != "never")
    for block in model.layers.values():
        fully_shard(block, **keys, reshard_after_forward=reshard != "never")
    # The last group's backward pass follows at once, so its weights stay gathered.
    fully_shard(last, **keys, reshard_after_forward=reshard == "always")
    fully_shard(model, **keys)

    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Sums, not means: the loss is divided by all ranks' tokens. gloo has sums alone.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)

    draw_shard = model.init_weights

    def init_weights(buffer_device: torch.device | None = None) -> None:
        with _WholeDraws():
            draw_shard(buffer_device)

    model.init_weights = init_weights


def before_step(trainer, step: int) -> None:
    """Have one all-reduce after each optimizer step find the scales of all weights that are
    gathered in FP8. Once the first step has compiled all, ranks wait less long for one another."""
    config = trainer.job_config
    if step == trainer.first_step + 1 and trainer.plan.world_size > 1:
        seconds = timedelta(seconds=config.comm.train_timeout_seconds)
        set_pg_timeouts(seconds, trainer.parallel_dims)
    keys = config.quantize.linear.float8
    if step == trainer.first_step and keys.precompute_float8_dynamic_scale_for_fsdp:
        find_scales = partial(precompute_float8_dynamic_scale_for_fsdp, trainer.model_parts[0])
        trainer.optimizers.register_step_post_hook(lambda *_: find_scales())


class _WholeDraws(TorchDispatchMode):
    """Draw a sharded tensor's random numbers whole, on every rank, and keep the rank's shard.

    All ranks have the same seed, so any number of them starts from the weights of one device. Takes
    the memory of one whole tensor at a time. torch draws each shard by itself: on a CPU all shards
    get the same numbers.
    """

    DRAWS = (torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func not in self.DRAWS or not isinstance(args[0], DTensor):
            return func(*args, **kwargs)
        sharded, *distribution = args
        mesh, placements = sharded.device_mesh, sharded.placements
        whole = torch.empty(sharded.shape, dtype=sharded.dtype, device=local_tensor(sharded).device)
        func(whole, *distribution, **kwargs)
        # src_data_rank=None: each rank cuts its own copy, and nothing is sent
        shard = distribute_tensor(whole, mesh, placements, src_data_rank=None)
        local_tensor(sharded).copy_(shard.to_local())
        return sharded
