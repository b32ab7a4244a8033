"""Measure what each scaling keeps of a layer's three matmuls under planted outliers:

    python -m extensions.scalings.signal_to_noise FILE [KEY=VALUE ...]

An experiment on numbers, in one process, emulated. The small model of the overlay `cpu` trains in
bf16. Each linear layer's input, weight and gradient are taken from one more batch. Each scaling's
three matmuls, by the layer's own code, are compared to those in float64: signal to noise in dB,
where 20 dB is an error of a tenth. The model is stressed by a factor that is a power of two; 1 is
the model as it was trained:

* `outliers`: four features of each norm's output and of each SwiGLU are multiplied by the factor,
  and the weights that read them divided by it. In exact arithmetic nothing changes.
* `swiglu`: what long training itself grows (arXiv 2409.12517). For four features of each SwiGLU
  the two input matrices are aligned, w3's rows become w1's, and both are multiplied by the factor.
  The feature grows with its square, on the tokens that w1's row points to; w2 is divided by that.

What the loss gains over the same model's in exact arithmetic is lost by the scaling. The
factor at which a scaling breaks is its distance from the run's own tensors.

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
from experiments.jobs.command import leave
from experiments.training.plan import plan
from extensions.scalings import ALL, SCALINGS, Scaling
from extensions.scalings.layer import linear
from tools.trained_model import train_model

TENSOR, ROW = (ALL, ALL), (1, ALL)
COMPARED = {
    "tensorwise": Scaling(TENSOR, TENSOR, "e5m2"),
    "rowwise": Scaling(ROW, ROW, scale="power_of_2"),
    "blockwise": SCALINGS["blockwise"],
    "mxfp8": SCALINGS["mxfp8"],
    "mxfp8_ocp": SCALINGS["mxfp8_ocp"],
    "tensorwise, e4m3 gradients": Scaling(TENSOR, TENSOR),
    "rowwise, e5m2 gradients": Scaling(ROW, ROW, "e5m2", "power_of_2"),
}
"""torchao's scalings and ours. `delayed` rounds as `tensorwise` while values do not jump."""
FACTORS = [2**power for power in (0, 2, 4, *range(6, 23))]
OUTLIERS = 4  # features of each matrix

Batch = tuple[Tensor, Tensor]  # inputs and labels


def main(file: str, *keys: str) -> int:
    """Write what is found to a file, as JSON; `keys` change the recipe `baseline`."""
    model, batches = train_model(plan(recipes.load("baseline", ["cpu"], keys)))
    model, batch = model.cpu().float(), next(batches)
    found = {"torch": torch.__version__, "keys": keys, "stress": list(stressed(model, batch))}
    Path(file).write_text(json.dumps(found, indent=1))
    return 0


# ---- one batch ----


def loss_of(model: nn.Module, batch: Batch, hook: Callable) -> Tensor:
    """Compute the mean cross entropy of a batch. `hook` is called with the name of each linear
    layer of the blocks and what a forward hook is given, and may replace the layer's output."""
    model, (inputs, labels) = copy.deepcopy(model), batch
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and name != "output":
            layer.register_forward_hook(partial(hook, name))
    return cross_entropy(model(inputs).flatten(0, 1).float(), labels.flatten())


def operands_of(model: nn.Module, batch: Batch) -> tuple[float, dict[str, list[Tensor]]]:
    """Compute the loss; take each layer's input (tokens, in), weight (out, in) and output's
    gradient (tokens, out) in float32, by the layer's name."""
    taken = {}

    def take(name: str, layer: nn.Module, given: tuple[Tensor], out: Tensor) -> None:
        taken[name] = [given[0], layer.weight]
        out.register_hook(taken[name].append)

    loss = loss_of(model, batch, take)
    loss.backward()
    for name, three in taken.items():
        taken[name] = [matrix.detach().flatten(0, -2).float() for matrix in three]
    return loss.item(), taken


@torch.no_grad()
def loss_in_fp8(model: nn.Module, scaling: Scaling, batch: Batch) -> float:
    """Compute the loss of a model whose linear layers multiply as a scaling does."""

    def replace(name: str, layer: nn.Module, given: tuple[Tensor], out: Tensor) -> Tensor:
        return linear(given[0], layer.weight, scaling)

    return loss_of(model, batch, replace).item()


# ---- signal to noise ----


def measured(*operands: Tensor) -> Iterator[dict]:
    """Make a record for each scaling and matmul of a layer."""
    exact = three_matmuls(nn.functional.linear, *(operand.double() for operand in operands))
    for name, scaling in COMPARED.items():
        rounded = three_matmuls(partial(linear, scaling=scaling), *operands)
        for matmul, right in exact.items():
            noise = (rounded[matmul] - right).square().sum() / right.square().sum()
            yield {"scaling": name, "matmul": matmul, "snr_db": -10 * noise.log10().item()}


def three_matmuls(
    multiply: Callable, x: Tensor, weight: Tensor, gradient: Tensor
) -> dict[str, Tensor]:
    """Do the three matmuls of a layer."""
    out = multiply(x.requires_grad_(), weight.requires_grad_())
    to_input, to_weight = torch.autograd.grad(out, (x, weight), gradient)
    return {"output": out.detach(), "input's gradient": to_input, "weight's gradient": to_weight}


# ---- stress ----


@torch.no_grad()
def grow(layer: nn.Module, factor: int, *readers: nn.Module) -> slice:
    """Multiply features of a layer's output by a factor, and divide the weights that read them by
    it; returns the features."""
    features = slice(0, None, len(layer.weight) // OUTLIERS)
    layer.weight[features] *= factor
    for reader in readers:
        reader.weight[:, features] /= factor
    return features


def plant(block: nn.Module, factor: int) -> None:
    """Give a block outliers, exactly compensated if `factor` is a power of two."""
    attention, mlp = block.attention, block.feed_forward
    grow(block.attention_norm, factor, attention.wq, attention.wk, attention.wv)
    grow(block.ffn_norm, factor, mlp.w1, mlp.w3)
    grow(mlp.w3, factor, mlp.w2)


@torch.no_grad()
def align(block: nn.Module, factor: int) -> None:
    """Align features of a block's SwiGLU and let them grow."""
    mlp = block.feed_forward
    features = grow(mlp.w1, factor, mlp.w2)
    mlp.w3.weight[features] = mlp.w1.weight[features]
    mlp.w2.weight[:, features] /= factor


def stressed(model: nn.Module, batch: Batch) -> Iterator[dict]:
    """Make a record for each stress, factor and scaling: the loss, and the median signal to noise
    of each matmul of the layers whose names end so."""
    for stress, change, ending in ("outliers", plant, ""), ("swiglu", align, ".w2"):
        for factor in FACTORS:
            changed, rows = copy.deepcopy(model), []
            for block in changed.layers.values():
                change(block, factor)
            exact, operands = operands_of(changed, batch)
            for name, three in operands.items():
                if name.endswith(ending):
                    rows += measured(*three)
            found = pd.DataFrame(rows).groupby(["scaling", "matmul"])["snr_db"].median()
            for name, scaling in COMPARED.items():
                yield {
                    "stress": stress,
                    "factor": factor,
                    "scaling": name,
                    "exact_loss": exact,
                    "lost": loss_in_fp8(changed, scaling, batch) - exact,
                    "snr_db": found[name].to_dict(),
                }


if __name__ == "__main__":
    leave(partial(main, *sys.argv[1:]))
