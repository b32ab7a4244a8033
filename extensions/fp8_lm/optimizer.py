"""AdamW whose states each have a dtype (FP8-LM, arXiv 2310.18313)."""

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.adamw import adamw

from models.device import local_tensor

# Precision decoupling of FP8-LM (arXiv 2310.18313). The parameters that the model computes with
# stay as they are, and are a rounded copy of the master weights. A state in FP8 or FP16 is stored
# times a scale, one a tensor: a power of two, so that scaling rounds nothing. bf16 and float32 have
# range enough without a scale.

STATES = ("first_moment", "second_moment", "master_weights")
# Largest values of the dtypes that have a scale
SCALED_MAX = {torch.float8_e4m3fn: 448.0, torch.float16: 65504.0}
CHUNK = 1 << 24  # elements in float32 at a time: five such copies of a chunk are 320 MiB


class AdamWFp8LM(torch.optim.Optimizer):
    """PyTorch's AdamW in float32, whose states are stored in other dtypes.

    Shards of a tensor have the scale of the whole tensor, so that they are stepped as the whole
    tensor would be.

    Args:
        params: contiguous parameters or groups of them; of FSDP's, each process steps its shards.
        dtypes: of each state of `STATES`.
        kwargs: `lr`, `betas`, `eps` and `weight_decay`, as PyTorch's.
    """

    def __init__(self, params: Iterable, dtypes: dict[str, torch.dtype], **kwargs):
        self.dtypes = dtypes
        self.clamped = 0  # values of states, on this rank, that became their dtype's largest
        super().__init__(params, kwargs)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Step the parameters that have a gradient. Checkpoints call it with a `closure` of
        None."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            for parameter in parameters:
                if not self.state[parameter]:
                    self._init_state(parameter)
            magnitudes = self._find_magnitudes(parameters)
            for parameter, row in zip(parameters, magnitudes, strict=True):
                self._step_parameter(parameter, group, self._choose_scales(group, *row))

    def load_state_dict(self, state_dict: dict) -> None:
        """Load as PyTorch's optimizer, which however casts the states to the dtype of their
        parameter: here they stay as saved."""
        super().load_state_dict(state_dict)
        for saved_group, group in zip(state_dict["param_groups"], self.param_groups, strict=True):
            for number, parameter in zip(saved_group["params"], group["params"], strict=True):
                for name, tensor in state_dict["state"].get(number, {}).items():
                    if name != "step":
                        self.state[parameter][name] = tensor.to(parameter.device)

    def _init_state(self, parameter: Tensor) -> None:
        """Begin with moments of 0; the first step takes the parameter for its master weights."""
        state = self.state[parameter]
        state["step"] = torch.tensor(0.0)
        for name, dtype in self.dtypes.items():
            state[name] = torch.zeros_like(parameter, dtype=dtype)
            state[f"{name}_scale"] = torch.ones((), device=parameter.device)

    def _find_magnitudes(self, parameters: list[Tensor]) -> Tensor:
        """Find the largest magnitudes of each parameter's gradient and states, over all shards:
        float32 (parameters, 4).

        One all-reduce is enough: processes that do not share a parameter have equal ones.
        """
        rows = []
        for parameter in parameters:
            state = self.state[parameter]
            row = [_find_magnitude(state[name]) / state[f"{name}_scale"] for name in STATES]
            if not state["step"]:
                row[-1] = _find_magnitude(parameter)  # the master weights of the first step
            rows.append(torch.stack([_find_magnitude(parameter.grad), *row]))
        magnitudes = torch.stack(rows)
        if dist.is_initialized():
            dist.all_reduce(magnitudes, dist.ReduceOp.MAX)
        return magnitudes

    def _choose_scales(self, group: dict, gradient, first, second, master) -> dict[str, Tensor]:
        """Choose each state's scale from a bound on its values after this step, so that nothing has
        to be computed twice.

        Args:
            gradient, first, second, master: largest magnitudes, scalars.
        """
        beta1, beta2 = group["betas"]
        # A step is at most lr times the larger of these (Kingma & Ba, arXiv 1412.6980, section
        # 2.1), up to rounding.
        longest_step = 2 * group["lr"] * max(1, (1 - beta1) / math.sqrt(1 - beta2))
        bounds = {
            "first_moment": beta1 * first + (1 - beta1) * gradient,
            "second_moment": beta2 * second + (1 - beta2) * gradient.square(),
            "master_weights": master + longest_step,
        }
        return {name: _choose_scale(bound, self.dtypes[name]) for name, bound in bounds.items()}

    def _step_parameter(self, parameter: Tensor, group: dict, scales: dict[str, Tensor]) -> None:
        """Step one parameter, chunk by chunk, and store its states with new scales."""
        state = self.state[parameter]
        beta1, beta2 = group["betas"]
        weights = local_tensor(parameter).view(-1)
        gradients = local_tensor(parameter.grad).flatten()
        stored = {name: local_tensor(state[name]).view(-1) for name in STATES}
        for start in range(0, len(weights), CHUNK):
            chunk = slice(start, start + CHUNK)
            values = {}
            for name in STATES:
                values[name] = stored[name][chunk].float() / state[f"{name}_scale"]
            if not state["step"]:
                values["master_weights"] = weights[chunk].to(torch.float32, copy=True)
            adamw(
                [values["master_weights"]],
                [gradients[chunk].float()],
                [values["first_moment"]],
                [values["second_moment"]],
                [],
                [state["step"].clone()],
                foreach=False,
                amsgrad=False,
                beta1=beta1,
                beta2=beta2,
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )
            for name, value in values.items():
                dtype_max = SCALED_MAX.get(self.dtypes[name], math.inf)
                self.clamped += (value.mul_(scales[name]).abs() > dtype_max).sum()
                stored[name][chunk] = value.clamp_(-dtype_max, dtype_max)
            weights[chunk] = stored["master_weights"][chunk].float() / scales["master_weights"]
        state["step"] += 1
        for name, scale in scales.items():
            state[f"{name}_scale"] = scale


def _choose_scale(bound: Tensor, dtype: torch.dtype) -> Tensor:
    """Choose the largest power of two that keeps values up to `bound` in the range of `dtype`; 1
    where it has no scale."""
    if dtype not in SCALED_MAX:
        return torch.ones_like(bound)
    exponent = torch.frexp(SCALED_MAX[dtype] / bound.clamp(min=1e-30)).exponent
    return torch.exp2(exponent.float() - 1)  # the mantissa is from 0.5 to 1


def _find_magnitude(tensor: Tensor) -> Tensor:
    """Find the largest magnitude of this rank's shard, a float32 scalar; 0 of an empty one."""
    shard = local_tensor(tensor).flatten()
    magnitude = shard.new_zeros((), dtype=torch.float32)
    for chunk in filter(len, shard.split(CHUNK)):
        magnitude = magnitude.maximum(torch.linalg.vector_norm(chunk.float(), math.inf))
    return magnitude
