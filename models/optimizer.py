"""Step the parameters: AdamW as a recipe asks for it, and the norm by which gradients are clipped.

AdamW is PyTorch's. The last part of this file is one whose states have dtypes of their own, for the
study of FP8-LM.
"""

import math
from collections.abc import Iterable

import models.device  # noqa: F401  # before torchtitan: see there  # isort: skip
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torchao import optim
from torchtitan.components.optimizer import OptimizersContainer
from torchtitan.components.optimizer import build_optimizers as build_torch_optimizers
from torchtitan.distributed import ParallelDims

from models.device import local


def build_optimizers(
    model_parts: list[nn.Module], keys, parallel_dims: ParallelDims, ft_manager=None
):
    """Build torchtitan's container of the optimizer that the section `optimizer` describes.

    PyTorch's AdamW, unless the recipe asks for states in FP8 (ours) or stochastic rounding
    (torchao's).
    """
    settings = {
        "lr": keys.lr,
        "betas": (keys.beta1, keys.beta2),
        "eps": keys.eps,
        "weight_decay": keys.weight_decay,
    }
    if keys.states.master_weights:
        dtypes = {name: getattr(torch, getattr(keys.states, name)) for name in STATES}
        return OptimizersContainer(model_parts, AdamWFp8LM, settings | {"dtypes": dtypes})
    if keys.stochastic_rounding:
        settings["bf16_stochastic_round"] = True
        return OptimizersContainer(model_parts, optim._AdamW, settings)
    return build_torch_optimizers(model_parts, keys, parallel_dims, ft_manager)


def gradient_norm(parameters: Iterable[nn.Parameter]) -> torch.Tensor:
    """Compute the norm of all gradients together, all ranks' shards included: a scalar."""
    norm = get_total_norm([p.grad for p in parameters if p.grad is not None], foreach=True)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def clip(parameters: Iterable[nn.Parameter], norm: torch.Tensor, max_norm: float) -> None:
    """Scale the gradients, whose norm is `norm`, down to `max_norm`.

    A norm that is not finite changes no gradient: scaling by it would make NaN of those that are
    finite, and hide where the others come from.
    """
    clip_grads_with_norm_(parameters, max_norm, norm.nan_to_num(0, 0), foreach=True)


# ---- AdamW with states in FP8 ----

# Precision decoupling of FP8-LM (arXiv 2310.18313). The parameters that the model computes with
# stay as they are, and are a rounded copy of the master weights. A state in FP8 or FP16 is stored
# times a scale, one a tensor: a power of two, so that scaling rounds nothing. bf16 and float32 have
# range enough without.

STATES = ("first_moment", "second_moment", "master_weights")
SCALED = {torch.float8_e4m3fn: 448.0, torch.float16: 65504.0}  # with the largest value of each
CHUNK = 1 << 24  # elements that are in float32 together: five such copies of a chunk are 320 MiB


class AdamWFp8LM(torch.optim.Optimizer):
    """AdamW by PyTorch's formula, in float32, between states that are stored in other dtypes.

    Shards of a tensor have the scale of the whole tensor, so that they are stepped as the whole
    tensor would be.

    Args:
        params: contiguous parameters or groups of them; of FSDP's, each process steps its shards.
        dtypes: of each state of `STATES`.
        keys: `lr`, `betas`, `eps` and `weight_decay`, as PyTorch's.
    """

    def __init__(self, params: Iterable, dtypes: dict[str, torch.dtype], **keys):
        self.dtypes = dtypes
        self.clamped = dict.fromkeys(STATES, 0)  # values that became their dtype's largest
        super().__init__(params, keys)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Step the parameters that have a gradient. Checkpoints call it with a `closure` of
        None."""
        stepped, groups = [], []
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    stepped.append(parameter)
                    groups.append(group)
                    if not self.state[parameter]:
                        self._start(parameter)
        for parameter, group, largest in zip(stepped, groups, self._largest(stepped), strict=True):
            self._step(parameter, group, self._scales(group, *largest))

    def load_state_dict(self, state_dict: dict) -> None:
        """As PyTorch's, which however casts the states to the dtype of their parameter: here they
        stay as saved."""
        super().load_state_dict(state_dict)
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, parameter in zip(numbers, parameters, strict=True):
            saved = state_dict["state"].get(number, {})
            self.state[parameter] = {
                k: t if k == "step" else t.to(parameter.device) for k, t in saved.items()
            }

    def _start(self, parameter: Tensor) -> None:
        """Moments of 0; the first step takes the parameter for its master weights."""
        shard, state = local(parameter), self.state[parameter]
        state["step"] = torch.tensor(0.0)
        for name, dtype in self.dtypes.items():
            state[name] = _placed_as(parameter, torch.zeros_like(shard, dtype=dtype))
            state[f"{name}_scale"] = torch.ones((), device=shard.device)

    def _largest(self, parameters: list[Tensor]) -> Tensor:
        """Largest magnitudes of each parameter's gradient and states, over all shards: (parameters,
        4), float32.

        One all-reduce a step, or one for each dimension of the mesh that shards.
        """
        rows = []
        for p in parameters:
            state = self.state[p]
            stored = [_magnitude(local(state[name])) / state[f"{name}_scale"] for name in STATES]
            if not state["step"]:
                stored[2] = _magnitude(local(p))
            rows.append(torch.stack([_magnitude(local(p.grad)), *stored]))
        largest = torch.stack(rows)
        axes = {}  # in one order on all ranks
        for p in parameters:
            for dim, placement in enumerate(getattr(p, "placements", ())):
                if placement.is_shard():
                    axes[p.device_mesh, dim] = None
        for mesh, dim in axes:
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=mesh.get_group(dim))
        return largest

    def _scales(self, group: dict, gradient, first, second, master) -> dict[str, Tensor]:
        """Of each state, from a bound on what this step can make of it, so that nothing has to be
        computed twice.

        Args:
            gradient, first, second, master: largest magnitudes, scalars.
        """
        beta1, beta2 = group["betas"]
        # A step is at most lr times the larger of these (Kingma & Ba, arXiv 1412.6980, section
        # 2.1), but for rounding.
        furthest = 2 * group["lr"] * max(1, (1 - beta1) / math.sqrt(1 - beta2))
        bounds = (
            beta1 * first + (1 - beta1) * gradient,
            beta2 * second + (1 - beta2) * gradient.square(),
            master + furthest,
        )
        return {
            name: _scale(bound, self.dtypes[name])
            for name, bound in zip(STATES, bounds, strict=True)
        }

    def _step(self, parameter: Tensor, group: dict, scales: dict[str, Tensor]) -> None:
        """One parameter, chunk by chunk."""
        state = self.state[parameter]
        begins = not state["step"]
        state["step"] += 1
        step, old = state["step"].item(), [state[f"{name}_scale"] for name in STATES]
        weights, *stored = (local(t).view(-1) for t in (parameter, *map(state.get, STATES)))
        gradients = local(parameter.grad).flatten()
        for at in range(0, len(weights), CHUNK):
            chunk = slice(at, at + CHUNK)
            places = [tensor[chunk] for tensor in stored]
            values = [
                place.to(torch.float32, copy=True).div_(scale)
                for place, scale in zip(places, old, strict=True)
            ]
            first, second, master = values
            if begins:
                master.copy_(weights[chunk])
            _adamw(master, gradients[chunk].float(), first, second, step, group)
            for place, value, name in zip(places, values, STATES, strict=True):
                largest = SCALED.get(place.dtype)
                if largest:
                    value.mul_(scales[name])
                    self.clamped[name] += (value.abs() > largest).sum()
                    value.clamp_(-largest, largest)
                place.copy_(value)
            weights[chunk] = master.copy_(places[2]).div_(scales["master_weights"])
        for name, scale in scales.items():
            state[f"{name}_scale"].copy_(scale)


def _adamw(weight, gradient, first, second, step: float, group: dict) -> None:
    """Step number `step` of AdamW on float32 tensors, in place, in PyTorch's order of
    operations."""
    (beta1, beta2), lr = group["betas"], group["lr"]
    weight.mul_(1 - lr * group["weight_decay"])
    first.lerp_(gradient, 1 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    root = second.sqrt().div_(math.sqrt(1 - beta2**step)).add_(group["eps"])
    weight.addcdiv_(first, root, value=-lr / (1 - beta1**step))


def _scale(bound: Tensor, dtype: torch.dtype) -> Tensor:
    """The largest power of two that keeps values up to `bound` in the range of `dtype`; 1 where it
    is not scaled."""
    if dtype not in SCALED:
        return torch.ones_like(bound)
    exponent = (
        torch.frexp(SCALED[dtype] / bound.clamp(min=1e-30)).exponent - 1
    )  # of a mantissa from 0.5 to 1
    return torch.exp2(exponent.float())


def _magnitude(tensor: Tensor) -> Tensor:
    """The largest magnitude, a float32 scalar; 0 of an empty shard."""
    if not tensor.numel():
        return torch.zeros((), device=tensor.device)
    chunks = tensor.flatten().split(CHUNK)
    return torch.stack(
        [torch.linalg.vector_norm(chunk.float(), math.inf) for chunk in chunks]
    ).max()


def _placed_as(parameter: Tensor, shard: Tensor) -> Tensor:
    """A state's shard as a tensor that is sharded as its parameter is; checkpoints put it
    together."""
    if not isinstance(parameter, DTensor):
        return shard
    keys = {"shape": parameter.shape, "stride": parameter.stride(), "run_check": False}
    return DTensor.from_local(shard, parameter.device_mesh, parameter.placements, **keys)
