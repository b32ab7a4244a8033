"""Measure the signal to noise of each scaling in a layer's three matmuls under planted outliers:

    python -m extensions.scalings.signal_to_noise FILE [KEY=VALUE ...]

An experiment on numbers, in one process, emulated. The small model of the overlay `cpu` trains in
bf16. One more batch gives each linear layer's input, weight and gradient. Each scaling's three
matmuls, by the layer's own code, are compared to those in float64: signal to noise in dB, where
20 dB is an error of a tenth. The model is stressed by a factor that is a power of two; 1 is the
model as it was trained:

* `outliers`: four features of each norm's output and of each SwiGLU are multiplied by the factor,
  and the weights that read them divided by it. In exact arithmetic nothing changes.
* `swiglu`: what long training itself grows (arXiv 2409.12517). For four features of each SwiGLU
  the two input matrices are aligned, w3's rows become w1's, and both are multiplied by the factor.
  The feature grows with its square, on the tokens that w1's row points to; w2 is divided by that.

A scaling's excess loss (`lost` in FILE) is its loss minus the loss of the same stressed model in
exact arithmetic. The factor at which a scaling breaks is its distance from the run's own tensors.

Takes minutes on a CPU. Exit codes: 0 done, 2 wrong argument.
"""

import copy
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.config import recipes
from experiments.jobs.command import exit_with
from experiments.training.plan import plan
from extensions.scalings import ALL, SCALINGS, Scaling
from extensions.scalings.layer import scaled_linear
from tools.trained_model import train_model

TENSOR = (ALL, ALL)
ROW = (1, ALL)
# torchao's scalings, and those of this extension. `delayed` would round as `tensorwise` as long as
# values do not jump.
COMPARED = {
    "tensorwise": Scaling(TENSOR, TENSOR, "e5m2"),
    "rowwise": Scaling(ROW, ROW, scale="power_of_2"),
    "blockwise": SCALINGS["blockwise"],
    "mxfp8": SCALINGS["mxfp8"],
    "mxfp8_ocp": SCALINGS["mxfp8_ocp"],
    "nvfp4": SCALINGS["nvfp4"],
    "tensorwise, e4m3 gradients": Scaling(TENSOR, TENSOR),
    "rowwise, e5m2 gradients": Scaling(ROW, ROW, "e5m2", "power_of_2"),
}
FACTORS = [2**power for power in (0, 2, 4, *range(6, 23))]
N_OUTLIERS = 4  # features of each matrix

Batch = tuple[Tensor, Tensor]  # inputs and labels


def main(file: str, *keys: str) -> int:
    """Write the measurements to a file, as JSON; `keys` change the recipe `baseline`."""
    model, batches = train_model(plan(recipes.load("baseline", ["cpu"], keys)))
    batch = next(batches)
    measurements = [*measure_stress(model.cpu().float(), batch)]
    content = {"torch": torch.__version__, "keys": keys, "stress": measurements}
    Path(file).write_text(json.dumps(content, indent=1))
    return 0


# ---- one batch ----


def compute_loss(model: nn.Module, batch: Batch, hook: Callable) -> Tensor:
    """Compute the mean cross entropy of a batch. `hook` is called with the name of each linear
    layer of the blocks and the arguments of a forward hook, and may replace the layer's output."""
    hooked_model = copy.deepcopy(model)
    for name, layer in hooked_model.named_modules():
        if isinstance(layer, nn.Linear) and name != "output":
            layer.register_forward_hook(partial(hook, name))
    inputs, labels = batch
    logits = hooked_model(inputs).flatten(0, 1).float()
    return cross_entropy(logits, labels.flatten())


def collect_operands(model: nn.Module, batch: Batch) -> tuple[float, dict[str, list[Tensor]]]:
    """Compute the loss; collect each layer's input (tokens, in), weight (out, in) and output's
    gradient (tokens, out) in float32, by the layer's name."""
    operands = {}

    def collect(name: str, layer: nn.Module, args: tuple[Tensor], out: Tensor) -> None:
        operands[name] = [args[0], layer.weight]
        out.register_hook(operands[name].append)

    loss = compute_loss(model, batch, collect)
    loss.backward()
    for name, matrices in operands.items():
        operands[name] = [matrix.detach().flatten(0, -2).float() for matrix in matrices]
    return loss.item(), operands


@torch.no_grad()
def compute_fp8_loss(model: nn.Module, scaling: Scaling, batch: Batch) -> float:
    """Compute the loss of a model whose linear layers multiply as a scaling does."""

    def multiply_scaled(name: str, layer: nn.Module, args: tuple[Tensor], out: Tensor) -> Tensor:
        return scaled_linear(args[0], layer.weight, scaling)

    return compute_loss(model, batch, multiply_scaled).item()


# ---- signal to noise ----


def measure_layer(*operands: Tensor) -> Iterator[dict]:
    """Make a record for each scaling and matmul of a layer."""
    exact = three_matmuls(nn.functional.linear, *(operand.double() for operand in operands))
    for name, scaling in COMPARED.items():
        rounded = three_matmuls(partial(scaled_linear, scaling=scaling), *operands)
        for matmul, result in exact.items():
            noise = (rounded[matmul] - result).square().sum() / result.square().sum()
            yield {"scaling": name, "matmul": matmul, "snr_db": -10 * noise.log10().item()}


def three_matmuls(
    multiply: Callable, x: Tensor, weight: Tensor, out_grad: Tensor
) -> dict[str, Tensor]:
    """Do the three matmuls of a layer."""
    out = multiply(x.requires_grad_(), weight.requires_grad_())
    x_grad, weight_grad = torch.autograd.grad(out, (x, weight), out_grad)
    return {"output": out.detach(), "input's gradient": x_grad, "weight's gradient": weight_grad}


# ---- stress ----


@torch.no_grad()
def grow_features(layer: nn.Module, factor: int, *readers: nn.Module) -> slice:
    """Multiply features of a layer's output by a factor, and divide the weights that read them by
    it; returns the features."""
    features = slice(0, None, len(layer.weight) // N_OUTLIERS)
    layer.weight[features] *= factor
    for reader in readers:
        reader.weight[:, features] /= factor
    return features


def plant_outliers(block: nn.Module, factor: int) -> None:
    """Give a block outliers, exactly compensated if `factor` is a power of two."""
    attention = block.attention
    mlp = block.feed_forward
    grow_features(block.attention_norm, factor, attention.wq, attention.wk, attention.wv)
    grow_features(block.ffn_norm, factor, mlp.w1, mlp.w3)
    grow_features(mlp.w3, factor, mlp.w2)


@torch.no_grad()
def align_swiglu(block: nn.Module, factor: int) -> None:
    """Align features of a block's SwiGLU and let them grow."""
    mlp = block.feed_forward
    features = grow_features(mlp.w1, factor, mlp.w2)
    mlp.w3.weight[features] = mlp.w1.weight[features]
    mlp.w2.weight[:, features] /= factor


# Each stress: how it changes a block, and how the names of the measured layers end
STRESSES = {"outliers": (plant_outliers, ""), "swiglu": (align_swiglu, ".w2")}


def measure_stress(model: nn.Module, batch: Batch) -> Iterator[dict]:
    """Make a record for each stress, factor and scaling: the loss, and the median signal to noise
    of each matmul of the measured layers."""
    for stress, (change_block, name_ending) in STRESSES.items():
        for factor in FACTORS:
            stressed_model = copy.deepcopy(model)
            for block in stressed_model.layers.values():
                change_block(block, factor)
            exact_loss, operands = collect_operands(stressed_model, batch)
            rows = []
            for name, matrices in operands.items():
                if name.endswith(name_ending):
                    rows += measure_layer(*matrices)
            snr_db = pd.DataFrame(rows).groupby(["scaling", "matmul"])["snr_db"].median()
            for name, scaling in COMPARED.items():
                fp8_loss = compute_fp8_loss(stressed_model, scaling, batch)
                yield {
                    "stress": stress,
                    "factor": factor,
                    "scaling": name,
                    "exact_loss": exact_loss,
                    "lost": fp8_loss - exact_loss,
                    "snr_db": snr_db[name].to_dict(),
                }


if __name__ == "__main__":
    exit_with(partial(main, *sys.argv[1:]))
