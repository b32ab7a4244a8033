"""Compare methods to add up the FP8 gradients of many ranks:

    python -m extensions.fp8_lm.gradient_sums [FILE]

An experiment on numbers, in one process. The small model of the overlay `cpu` trains for its 60
steps. Then it gets the gradients of 32 batches without a step between them, as 32 ranks would have
them. Of the first 2, 4, … 32 of them, sums are compared to the exact one (float64): signal to
noise, in dB, is 10 log10(sum of squares of the exact sum / sum of squares of the error), over all
parameters. 20 dB is an error of a tenth, 40 dB one of a hundredth. FILE gets the results as JSON.

The methods (`sum_by_method`):

* `block`: e4m3 with a scale for 256 values, added up in float32, as the key `fp8_lm.gradients`
  does.
* `tensor`: e4m3 with one scale a parameter, shared by all ranks, added up in float32.

The other methods have the scale of `tensor`, and add up in e4m3: rank after rank, each partial sum
rounded and cut at 448, as where a ring of ranks passes them on. Before the rounding they multiply
by a factor, as in FP8-LM (arXiv 2310.18313, section 2.1), and divide the result by it:

* `post`: 1, so that sums can exceed 448.
* `pre`: 1 / ranks, so that none can, but small gradients become 0.
* `auto`: mu, which is halved while more than 0.001 % of a parameter's sums lie at 448. Each
  parameter has its mu. (The paper lets mu grow again over 1,000 steps, at most to the double, as it
  is halved again there.)
* `best`: for each parameter the factor of 2^0, 2^-0.5, … 2^-8 with the least error. It takes the
  exact sum to find it: no rule for mu does better.
"""

import json
import logging
import math
import sys
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from models import device  # before torchtitan: see there  # isort: skip
import torch
from torch.nn.functional import cross_entropy

from experiments.config import recipes
from experiments.training.plan import Plan, plan
from extensions.fp8_lm.gradients import E4M3, E4M3_MAX, decode, encode
from tools.trained_model import train_model

RANKS = (2, 4, 8, 16, 32)
PROGRESS_RANKS = 8  # ranks between two lines of progress
SATURATED_SHARE = 1e-5  # of sums at 448: above it mu is halved


def main(*files: str) -> None:
    """Print the signal to noise by ranks and method, and write it into files as JSON."""
    log_training_steps()
    gradients = collect_gradients(plan(recipes.load("baseline", ["cpu"])))
    sums = []
    for ranks in RANKS:
        print_progress(f"adding up the gradients of {ranks} ranks by each method")
        for method, decibels in compare_methods(gradients, ranks).items():
            sums.append({"ranks": ranks, "how": method, "snr_db": decibels})
            print(f"{ranks:3} ranks, {method:7}{decibels:5.1f} dB", flush=True)
    for file in files:
        content = {"torch": torch.__version__, "sums": sums}
        Path(file).write_text(json.dumps(content, indent=1) + "\n")


def print_progress(text: str) -> None:
    """Print what the command does now, where its results are not."""
    print(f"… {text}", file=sys.stderr, flush=True)


def log_training_steps() -> None:
    """Print the log's lines about steps, and no other lines."""
    handler = logging.StreamHandler()
    handler.addFilter(lambda record: record.getMessage().startswith("step:"))
    logging.basicConfig(level="INFO", format="%(message)s", handlers=[handler], force=True)


def collect_gradients(plan: Plan) -> list[torch.Tensor]:
    """Train the model; return each parameter's gradients (ranks, n) in batches that ranks would
    get.

    They are in the dtype of the parameters, as FSDP2 gets them from the backward pass.
    """
    print_progress(f"training the model for {plan.config.training.steps} steps")
    model, batches = train_model(plan)
    by_rank = []
    for rank, (inputs, labels) in enumerate(islice(batches, RANKS[-1])):
        if rank % PROGRESS_RANKS == 0:
            print_progress(f"computing the gradients of ranks {rank} and following")
        logits = model(inputs.to(device.TYPE)).flatten(0, 1)
        loss = cross_entropy(logits.float(), labels.to(device.TYPE).flatten())
        by_rank.append(torch.autograd.grad(loss, [*model.parameters()]))
    by_parameter = zip(*by_rank, strict=True)
    return [torch.stack(gradients).flatten(1) for gradients in by_parameter]


def compare_methods(parameters: Iterable[torch.Tensor], ranks: int) -> dict[str, float]:
    """Compute the signal to noise in dB of each method; of each parameter the gradients of `ranks`
    ranks or more, (ranks, n)."""
    signal = 0.0
    noise = Counter()
    for gradients in parameters:
        gradients = gradients[:ranks].float()
        exact_sum = gradients.double().sum(0)
        signal += sum_squares(exact_sum)
        for method, fp8_sum in sum_by_method(gradients, exact_sum).items():
            noise[method] += sum_squares(fp8_sum - exact_sum)
    return {method: 10 * math.log10(signal / noise[method]) for method in noise}


def sum_squares(values: torch.Tensor) -> float:
    """Sum squares in float64."""
    return values.double().square().sum().item()


# ---- methods to add up ----


def sum_by_method(gradients: torch.Tensor, exact_sum: torch.Tensor) -> dict[str, torch.Tensor]:
    """Add up one parameter's gradients (ranks, n) by each method; `exact_sum` is for `best`."""
    ranks, n = gradients.shape
    scale = E4M3_MAX / gradients.abs().max().clamp(min=1e-30)

    def sum_in_fp8(factor: float) -> torch.Tensor:
        """Add scaled gradients up with partial sums in e4m3; `factor` multiplies the scale."""
        rounded = round_to_e4m3(gradients * (factor * scale))
        partial_sum = rounded[0]
        for gradient in rounded[1:]:
            partial_sum = round_to_e4m3(partial_sum + gradient)
        return partial_sum / (factor * scale)

    mu = 1.0
    largest_sum = E4M3_MAX / scale
    while (sum_in_fp8(mu).abs() == largest_sum / mu).double().mean() > SATURATED_SHARE:
        mu /= 2
    factors = [2 ** (-half / 2) for half in range(17)]
    return {
        "block": decode(encode(gradients))[:, :n].sum(0),
        "tensor": (round_to_e4m3(gradients * scale) / scale).sum(0),
        "post": sum_in_fp8(1.0),
        "pre": sum_in_fp8(1 / ranks),
        "auto": sum_in_fp8(mu),
        "best": min(map(sum_in_fp8, factors), key=lambda total: sum_squares(total - exact_sum)),
    }


def round_to_e4m3(values: torch.Tensor) -> torch.Tensor:
    """Round float32 values as e4m3 holds them; those beyond its range become its largest."""
    return values.clamp(-E4M3_MAX, E4M3_MAX).to(E4M3).float()


if __name__ == "__main__":
    main(*sys.argv[1:])
