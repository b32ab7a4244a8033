"""Compare ways to add up the FP8 gradients of many ranks:

    python -m extensions.fp8_lm.gradient_sums [FILE]

An experiment on numbers, in one process. The small model of the overlay `cpu` trains for its 60
steps. Then it gets the gradients of 32 batches without a step between them, as 32 ranks would
have them. Of the first 2, 4, … 32 of them, sums are compared to the exact one (float64): signal to
noise, in dB, is 10 log10(sum of squares of the exact sum / sum of squares of the error), over all
parameters. 20 dB is an error of a tenth, 40 dB one of a hundredth. FILE gets the results as JSON.

Ways to add up (`added_up`). `block`: e4m3 with a scale for 256 values, added up in float32, as the
key `fp8_lm.gradients` does. `tensor`: e4m3 with one scale a parameter, shared by all ranks, added
up in float32. The others have that scale too, and add up in e4m3: rank after rank, each partial sum
rounded and cut at 448, as where a ring of ranks passes them on. They differ in a factor before the
rounding, as in FP8-LM (arXiv 2310.18313, section 2.1), and the result is divided by it. `post`: 1,
so that sums can exceed 448. `pre`: 1 / ranks, so that none can, but small gradients become 0.
`auto`: mu, which is halved while more than 0.001 % of a parameter's sums lie at 448; each parameter
has its own. (The paper lets mu grow again over 1,000 steps, at most to the double, as it is halved
again there.) `best`: for each parameter the factor of 2^0, 2^-0.5, … 2^-8 with the least error. It
takes the exact sum to find it: no rule for mu does better.
"""

import json
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
from extensions.fp8_lm.gradients import decode, encode
from tools.trained_model import train_model

RANKS = (2, 4, 8, 16, 32)
AT_THE_LIMIT = 1e-5  # the share of sums at 448 that halves mu
_E4M3 = torch.float8_e4m3fn
_LARGEST = torch.finfo(_E4M3).max


def main(*files: str) -> None:
    """Print the signal to noise by ranks and way, and write it into files as JSON."""
    gradients, sums = real_gradients(plan(recipes.load("baseline", ["cpu"]))), []
    for ranks in RANKS:
        for how, decibels in compare(gradients, ranks).items():
            sums.append({"ranks": ranks, "how": how, "snr_db": decibels})
            print(f"{ranks:3} ranks, {how:7}{decibels:5.1f} dB", flush=True)
    for file in files:
        found = {"torch": torch.__version__, "sums": sums}
        Path(file).write_text(json.dumps(found, indent=1) + "\n")


def real_gradients(planned: Plan) -> list[torch.Tensor]:
    """Train the model; return each parameter's gradients (ranks, n) in batches that ranks would
    get.

    They are in the dtype of the parameters, as FSDP2 gets them from the backward pass.
    """
    (model, batches), of_ranks = train_model(planned), []
    for inputs, labels in islice(batches, RANKS[-1]):
        logits = model(inputs.to(device.TYPE)).flatten(0, 1)
        loss = cross_entropy(logits.float(), labels.to(device.TYPE).flatten())
        of_ranks.append(torch.autograd.grad(loss, [*model.parameters()]))
    return [torch.stack(of_one).flatten(1) for of_one in zip(*of_ranks, strict=True)]


def compare(parameters: Iterable[torch.Tensor], ranks: int) -> dict[str, float]:
    """Give the signal to noise in dB of each way to add up; of each parameter the gradients of
    `ranks` ranks or more, (ranks, n)."""
    signal, noise = 0.0, Counter()
    for gradients in parameters:
        gradients = gradients[:ranks].float()
        exact = gradients.double().sum(0)
        signal += squares(exact)
        for how, total in added_up(gradients, exact).items():
            noise[how] += squares(total - exact)
    return {how: 10 * math.log10(signal / of_how) for how, of_how in noise.items()}


def squares(values: torch.Tensor) -> float:
    """Sum squares in float64."""
    return values.double().square().sum().item()


# ---- ways to add up ----


def added_up(gradients: torch.Tensor, exact: torch.Tensor) -> dict[str, torch.Tensor]:
    """Add up one parameter's gradients (ranks, n) in each way; `exact` is for `best`."""
    ranks, n = gradients.shape
    scale = _LARGEST / gradients.abs().max().clamp(min=1e-30)

    def in_fp8(factor: float) -> torch.Tensor:
        """Add scaled gradients up with partial sums in e4m3; `factor` comes on top of the scale."""
        total, *others = rounded(gradients * (factor * scale))
        for gradient in others:
            total = rounded(total + gradient)
        return total / (factor * scale)

    mu, most = 1.0, _LARGEST / scale
    while (in_fp8(mu).abs() == most / mu).double().mean() > AT_THE_LIMIT:
        mu /= 2
    tried = [in_fp8(2 ** (-half / 2)) for half in range(17)]
    return {
        "block": decode(encode(gradients))[:, :n].sum(0),
        "tensor": (rounded(gradients * scale) / scale).sum(0),
        "post": in_fp8(1.0),
        "pre": in_fp8(1 / ranks),
        "auto": in_fp8(mu),
        "best": min(tried, key=lambda total: squares(total - exact)),
    }


def rounded(values: torch.Tensor) -> torch.Tensor:
    """Round float32 values as e4m3 holds them; those beyond its range become its largest."""
    return values.clamp(-_LARGEST, _LARGEST).to(_E4M3).float()


if __name__ == "__main__":
    main(*sys.argv[1:])
