"""What each scaling keeps of a layer's three matmuls, on tensors of a run and under planted
outliers.

An experiment on numbers, in one process, emulated. The small model of the overlay `cpu` trains in
bf16. After an early step and after the last one, each linear layer's input, weight and gradient are
taken from one more batch. Each scaling's three matmuls are compared to those in float64: signal to
noise in dB, where 20 dB is an error of a tenth. Bytes an element are those of FP8 values and scales
of the six operands, counted.

Then the trained model gets outliers: four features of each norm's output and of each SwiGLU are
multiplied by a power of two, and the weights that read them divided by it. In exact arithmetic
nothing changes, so what the loss gains is lost by the scaling. The factor at which a scaling
breaks, in powers of two, is its distance from the run's own tensors.

Example: python -m experiments.benchmarks.scalings out.json training.steps=20. Takes minutes on a
CPU. Exit codes: 0 done, 2 wrong argument.
"""

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path

from models import device  # before torchtitan: see there  # isort: skip
import pandas as pd
import torch
from torch import Tensor, nn

from experiments.benchmarks.small_run import batches, begin, loss_of
from experiments.config import recipes
from experiments.config.keys import Float8Linear
from experiments.jobs.command import CommandLine, leave
from experiments.records.files import write_whole
from experiments.training.plan import Plan, plan
from models import float8
from models.errors import InputError
from models.scalings import SCALINGS

EARLY = 5
MATMULS = ("output", "input's gradient", "weight's gradient")
COMPARED = {
    "tensorwise": None,
    "tensorwise, e4m3 gradients": "e4m3",
    "rowwise": None,
    "rowwise, e5m2 gradients": "e5m2",
    "blockwise": None,
    "mxfp8": None,
    "mxfp8_ocp": None,
}
"""Scalings by name, whose first word is `recipe_name`, with their `gradient_format`. `delayed`
rounds as `tensorwise` does while values do not jump."""
FACTORS = [2**power for power in (0, 4, 8, *range(10, 23))]
BROKEN = 0.01  # of loss, above that without outliers
OUTLIERS = 4  # features of each matrix


def main(argv: list[str] | None = None) -> int:
    parser = CommandLine("experiments.benchmarks.scalings", __doc__)
    parser.add_argument("file", type=Path, help="write the results here, as JSON")
    parser.add_argument("keys", nargs="*", metavar="key=value", help="of the recipe `baseline`")
    args = parser.parse_args(argv)
    if args.file.is_dir():
        raise InputError(f"{args.file} is a folder: name a file in it")
    planned = plan(recipes.load("baseline", ["cpu"], args.keys))
    trained, rows = train(planned)
    stress = list(under_outliers(*trained))
    record = {
        "torch": torch.__version__,
        "device": device.name(),
        "keys": args.keys,
        "trained_steps": planned.config.training.steps,
        "parameters": planned.parameters,
        "outliers": OUTLIERS,
        "matmuls": rows,
        "stress": stress,
        "breaks_at_power_of_2": breaks(stress),
    }
    args.file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(args.file, json.dumps(record, indent=1) + "\n")
    print(table(record))
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
            for name, operands in taken(model, *batch).items():
                rows.extend({"step": step, "layer": name} | row for row in measured(*operands))

    trainer.on_step = measure
    trainer.train()
    trainer.close()
    return (model.float(), *batch), rows


def taken(model: nn.Module, inputs: Tensor, labels: Tensor) -> dict[str, tuple[Tensor, ...]]:
    """Take input (tokens, in), weight (out, in) and gradient (tokens, out) of each layer that
    recipes convert, in float32."""
    model, seen, operands = copy.deepcopy(model), {}, {}

    def keep(layer: nn.Module, given: tuple[Tensor], out: Tensor) -> None:
        out.retain_grad()
        seen[layer] = given[0], out

    layers = {name: model.get_submodule(name) for name in chosen(model)}
    for layer in layers.values():
        layer.register_forward_hook(keep)
    loss_of(model, inputs, labels).backward()
    for name, layer in layers.items():
        x, out = seen[layer]
        three = x.flatten(0, -2), layer.weight, out.grad.flatten(0, -2)
        operands[name] = tuple(tensor.detach().float() for tensor in three)
    return operands


def chosen(model: nn.Module) -> list[str]:
    """Name the layers that recipes convert."""
    return sorted(float8.choose_modules(model, "rowwise", ["output"]))


# ---- signal to noise ----


def measured(x: Tensor, weight: Tensor, gradient: Tensor) -> Iterator[dict]:
    """Make a record for each scaling and matmul of a layer."""
    exact = three_matmuls(x.double(), weight.double(), gradient.double())
    for scaling in COMPARED:
        found = emulated(scaling, x, weight, gradient)
        for matmul, right, rounded in zip(MATMULS, exact, found, strict=True):
            yield {
                "scaling": scaling,
                "matmul": matmul,
                "snr_db": decibels(right, rounded - right),
                "bytes_an_element": bytes_an_element(scaling, x, weight, gradient),
            }


def three_matmuls(x: Tensor, weight: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
    """Output, input's gradient and weight's gradient."""
    return x @ weight.t(), gradient @ weight, gradient.t() @ x


def emulated(scaling: str, x: Tensor, weight: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
    """The same, by an FP8 layer."""
    model = nn.Sequential(nn.Linear(*weight.t().shape, bias=False, device=x.device))
    model[0].weight.data = weight
    convert(model, ["0"], scaling)
    x = x.clone().requires_grad_()
    output = model(x)
    output.backward(gradient)
    return output.detach(), x.grad, model[0].weight.grad


def convert(model: nn.Module, names: list[str], scaling: str) -> None:
    """Convert layers to a scaling of `COMPARED`, emulated."""
    recipe_name, gradient_format = scaling.partition(",")[0], COMPARED[scaling]
    keys = Float8Linear(recipe_name=recipe_name, gradient_format=gradient_format)
    float8.convert(model, names, keys, emulate=True)


def decibels(right: Tensor, error: Tensor) -> float:
    """Signal to noise of a matrix in float64."""
    return 10 * torch.log10(right.square().sum() / error.square().sum()).item()


def bytes_an_element(scaling: str, x: Tensor, weight: Tensor, gradient: Tensor) -> float:
    """Count the bytes of the six operands of a layer's matmuls, scales too, by their elements."""
    name = scaling.partition(",")[0]
    blocks, elements, scale_bytes = SCALINGS.get(name), 0, 0
    for matrix in (x, weight, gradient):
        for rows, along in (matrix.shape, matrix.t().shape):
            scales, each = 1, 4
            if name == "rowwise":
                scales = rows
            elif blocks:
                high, wide = blocks.weights if matrix is weight else blocks.values
                scales, each = math.ceil(rows / high) * math.ceil(along / wide), blocks.scale_bytes
            elements += rows * along
            scale_bytes += each * scales
    return 1 + scale_bytes / elements


# ---- planted outliers ----


@torch.no_grad()
def plant(model: nn.Module, factor: float) -> nn.Module:
    """A copy of a model with outliers, exactly compensated if `factor` is a power of two."""
    model = copy.deepcopy(model)
    for block in model.layers.values():
        attention, mlp = block.attention, block.feed_forward
        readers = {
            block.attention_norm: (attention.wq, attention.wk, attention.wv),
            block.ffn_norm: (mlp.w1, mlp.w3),
            mlp.w3: (mlp.w2,),
        }
        for layer, reading in readers.items():
            features = slice(0, None, len(layer.weight) // OUTLIERS)
            layer.weight[features] *= factor
            for reader in reading:
                reader.weight[:, features] /= factor
    return model


def under_outliers(model: nn.Module, inputs: Tensor, labels: Tensor) -> Iterator[dict]:
    """Make a record for each factor and scaling: the loss, and the median signal to noise of each
    matmul."""
    for factor in FACTORS:
        planted = plant(model, factor)
        exact = loss_of(planted, inputs, labels).item()
        rows = []
        for operands in taken(planted, inputs, labels).values():
            rows += measured(*operands)
        found = pd.DataFrame(rows).groupby(["scaling", "matmul"])["snr_db"].median()
        for scaling in COMPARED:
            converted = copy.deepcopy(planted)
            convert(converted, chosen(converted), scaling)
            with torch.no_grad():
                loss = loss_of(converted, inputs, labels).item()
            yield {
                "factor": factor,
                "scaling": scaling,
                "loss": loss,
                "exact_loss": exact,
                "snr_db": found[scaling].to_dict(),
            }


def breaks(stress: list[dict]) -> dict[str, int | None]:
    """Find, as a power of two, the least factor at which a scaling's loss is `BROKEN` or more above
    its own without outliers; None if none is."""
    found = dict.fromkeys(COMPARED)
    for scaling, rows in pd.DataFrame(stress).groupby("scaling", sort=False):
        rises = rows["loss"] - rows["loss"].iloc[0]
        broken = rows["factor"][~(rises < BROKEN)]  # NaN is broken too
        if len(broken):
            found[scaling] = int(math.log2(broken.iloc[0]))
    return found


def table(record: dict) -> str:
    """A row a scaling: median signal to noise of each matmul early and late, bytes, and where it
    breaks."""
    rows = pd.DataFrame(record["matmuls"])
    shown = rows.pivot_table("snr_db", "scaling", ["step", "matmul"], "median", sort=False)
    shown.columns = [f"step {step}, {matmul}" for step, matmul in shown.columns]
    shown["bytes an element"] = rows.groupby("scaling")["bytes_an_element"].mean()
    shown["breaks at 2^"] = pd.Series(record["breaks_at_power_of_2"])
    return shown.T.round(3).to_string()


if __name__ == "__main__":
    leave(main)
