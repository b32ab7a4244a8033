"""What each scaling keeps of a layer's three matmuls, on tensors of a run and under planted
outliers: `python -m extensions.scalings FILE`.

An experiment on numbers, in one process, emulated. The small model of the overlay `cpu` trains in
bf16. After an early step and after the last one, each linear layer's input, weight and gradient are
taken from one more batch. Each scaling's three matmuls are compared to those in float64: signal to
noise in dB, where 20 dB is an error of a tenth. Bytes an element are those of FP8 values and scales
of the six operands, counted.

Then the trained model is stressed, by a factor that is a power of two:

* `outliers`: four features of each norm's output and of each SwiGLU are multiplied by the factor,
  and the weights that read them divided by it. In exact arithmetic nothing changes.
* `swiglu`: what long training itself grows (arXiv 2409.12517). For four features of each SwiGLU
  the two input matrices are aligned, w3's rows become w1's, and both are multiplied by the factor.
  The feature grows with its square, on the tokens that w1's row points to; w2 is divided by that.

What the loss gains over that of the same model in exact arithmetic is lost by the scaling. The
factor at which a scaling breaks is its distance from the run's own tensors.

Example: python -m extensions.scalings out.json training.steps=20. Takes minutes on a
CPU. Exit codes: 0 done, 2 wrong argument.
"""

import copy
import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import torch
from torch import Tensor, nn

from experiments.benchmarks.small_run import batches, begin, check_file, loss_of, write_results
from experiments.config import recipes
from experiments.config.keys import Config
from experiments.jobs.command import CommandLine, leave
from experiments.training.plan import Plan, plan
from extensions.scalings import ALL, SCALINGS, Keys, Scaling, convert
from models import float8, fp8_matmul
from models.scaling import SCALINGS as TORCHAOS

EARLY = 5
COMPARED = {
    "tensorwise": ("tensorwise", Keys()),
    "rowwise": ("rowwise", Keys()),
    "blockwise": ("tensorwise", Keys("blockwise")),
    "mxfp8": ("tensorwise", Keys("mxfp8")),
    "mxfp8_ocp": ("tensorwise", Keys("mxfp8_ocp")),
    "tensorwise, e4m3 gradients": ("tensorwise", Keys(gradients="e4m3")),
    "rowwise, e5m2 gradients": ("rowwise", Keys(gradients="e5m2")),
}
"""torchao's scaling and the keys `scalings`. `delayed` rounds as `tensorwise` while values do not
jump."""
SHARED = {
    "tensorwise": Scaling((ALL, ALL), (ALL, ALL)),
    "rowwise": Scaling((1, ALL), (1, ALL)),
} | SCALINGS
"""Which values share a scale."""
FACTORS = [2**power for power in (0, 2, 4, *range(6, 23))]
OUTLIERS = 4  # features of each matrix


def main(argv: list[str] | None = None) -> int:
    parser = CommandLine("extensions.scalings", __doc__)
    parser.add_argument("file", type=Path, help="write the results here, as JSON")
    parser.add_argument("keys", nargs="*", metavar="key=value", help="of the recipe `baseline`")
    args = parser.parse_args(argv)
    check_file(args.file, "snr.json")
    trained, rows = train(plan(recipes.load("baseline", ["cpu"], args.keys)))
    stress = list(stressed(*trained))
    write_results(args.file, keys=args.keys, matmuls=rows, stress=stress)
    lost = pd.DataFrame(stress).pivot_table("lost", ["stress", "factor"], "scaling", sort=False)
    print(lost.round(4))
    return 0


# ---- tensors of a run ----


def train(planned: Plan) -> tuple[tuple[nn.Module, Tensor, Tensor], list[dict]]:
    """Train the model. Returns it in float32 with the inputs and labels of a new batch, and the
    signal to noise of early and late matmuls."""
    config, (trainer, token_file) = planned.config, begin(planned)
    config.debug.seed += 1  # other rows than it is trained on
    model, batch, rows = trainer.model_parts[0], next(batches(config, token_file)), []

    def measure(step: int) -> None:
        if step in (EARLY, config.training.steps):
            for name, operands in taken(model, *batch):
                rows.extend({"step": step, "layer": name} | row for row in measured(*operands))

    trainer.on_step = measure
    trainer.train()
    trainer.close()
    return (model.float(), *batch), rows


def taken(model: nn.Module, inputs: Tensor, labels: Tensor) -> Iterator[tuple[str, list[Tensor]]]:
    """Give name, input (tokens, in), weight (out, in) and gradient (tokens, out) of each layer that
    recipes convert, in float32."""
    model = copy.deepcopy(model)

    def keep(layer: nn.Module, given: tuple[Tensor], out: Tensor) -> None:
        out.retain_grad()
        layer.input, layer.output = given[0], out

    layers = {name: model.get_submodule(name) for name in chosen(model)}
    for layer in layers.values():
        layer.register_forward_hook(keep)
    loss_of(model, inputs, labels).backward()
    for name, layer in layers.items():
        three = layer.input, layer.weight, layer.output.grad
        yield name, [tensor.detach().flatten(0, -2).float() for tensor in three]


def chosen(model: nn.Module) -> list[str]:
    """Name the layers that recipes convert."""
    return sorted(float8.choose_modules(model, "rowwise", ["output"]))


def emulate(model: nn.Module, names: list[str], scaling: str) -> None:
    """Swap the linear layers of these names for emulated FP8 layers."""
    torchaos, keys = COMPARED[scaling]
    matmul = fp8_matmul.Matmul(fp8_matmul.EMULATED, "")
    fp8, config = float8.Choice(TORCHAOS[torchaos], frozenset(names), matmul), Config()
    config.scalings = keys
    convert(model, SimpleNamespace(fp8=fp8, config=config))


# ---- signal to noise ----


def measured(x: Tensor, weight: Tensor, gradient: Tensor) -> Iterator[dict]:
    """Make a record for each scaling and matmul of a layer."""
    exact = three_matmuls(linear(weight.double()), x.double(), gradient.double())
    for scaling in COMPARED:
        model = linear(weight)
        emulate(model, ["0"], scaling)
        for matmul, rounded in three_matmuls(model, x, gradient).items():
            noise = (rounded - exact[matmul]).square().sum() / exact[matmul].square().sum()
            yield {
                "scaling": scaling,
                "matmul": matmul,
                "snr_db": -10 * noise.log10().item(),
                "bytes_an_element": bytes_an_element(scaling, x, weight, gradient),
            }


def linear(weight: Tensor) -> nn.Module:
    layer = nn.Linear(*weight.t().shape, bias=False, device=weight.device)
    layer.weight.data = weight
    return nn.Sequential(layer)


def three_matmuls(model: nn.Module, x: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    x = x.clone().requires_grad_()
    output = model(x)
    to_input, to_weight = torch.autograd.grad(output, (x, model[0].weight), gradient)
    return {
        "output": output.detach(),
        "input's gradient": to_input,
        "weight's gradient": to_weight,
    }


def bytes_an_element(scaling: str, *operands: Tensor) -> float:
    """Count the bytes of the six operands of a layer's matmuls, scales too, by their elements;
    `operands` are x, weight and gradient."""
    torchaos, keys = COMPARED[scaling]
    row, elements, scales = SHARED[keys.name or torchaos], 0, 0
    blocks = row.values, row.weights, row.values
    for matrix, (high, wide) in zip(operands, blocks, strict=True):
        for rows, along in (matrix.shape, matrix.t().shape):
            elements += rows * along
            scales += math.ceil(rows / high) * math.ceil(along / wide)
    return 1 + row.scale_bytes * scales / elements


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


STRESSES = {"outliers": (plant, ""), "swiglu": (align, ".w2")}
"""Stresses by name: the change of a block, and how the layers whose signal to noise is told end."""


def stressed(model: nn.Module, inputs: Tensor, labels: Tensor) -> Iterator[dict]:
    """Make a record for each stress, factor and scaling: the loss, and the median signal to noise
    of each matmul."""
    for (stress, (change, ending)), factor in product(STRESSES.items(), FACTORS):
        changed = copy.deepcopy(model)
        for block in changed.layers.values():
            change(block, factor)
        exact, rows = loss_of(changed, inputs, labels).item(), []
        for name, operands in taken(changed, inputs, labels):
            if name.endswith(ending):
                rows += measured(*operands)
        found = pd.DataFrame(rows).groupby(["scaling", "matmul"])["snr_db"].median()
        for scaling in COMPARED:
            converted = copy.deepcopy(changed)
            emulate(converted, chosen(converted), scaling)
            yield {
                "stress": stress,
                "factor": factor,
                "scaling": scaling,
                "exact_loss": exact,
                "lost": loss_of(converted, inputs, labels).item() - exact,
                "snr_db": found[scaling].to_dict(),
            }


if __name__ == "__main__":
    leave(main)
