"""How exactly gradients of many ranks are added up in FP8: `python -m
experiments.benchmarks.gradient_sums [FILE]`.

An experiment on numbers, in one process. The small model of the overlay `cpu` trains for its 60
steps. Then it gets the gradients of 32 batches without a step between them: those of 32 simulated
ranks. Of the first 2, 4, … 32 of them, sums are compared to the exact one (float64). FILE gets the
results as JSON.

Signal to noise, in dB: 10 log10(sum of squares of the exact sum / sum of squares of the error),
over all parameters; `worst_snr_db` is that of the parameter with the lowest. 20 dB is an error of a
tenth, 40 dB one of a hundredth.

Ways to add up (`HOW`). `block`: e4m3 with a scale for 256 values, added up in float32, as the key
`quantize.gradients` does. `tensor`: e4m3 with one scale a parameter, shared by all ranks, added up
in float32. The others have that scale too, and add up in e4m3: rank after rank, each partial sum
rounded and cut at 448, as where a ring of ranks passes them on. They differ in a factor before the
rounding, as in FP8-LM (arXiv 2310.18313, section 2.1), and the result is divided by it. `post`: 1,
so that sums can exceed 448. `pre`: 1 / ranks, so that none can, but small gradients become 0.
`auto`: mu, which is halved while more than 0.001 % of a parameter's sums lie at 448; each parameter
has its own. (The paper lets mu grow again over 1,000 steps, at most to the double, as it is halved
again there.) `best`: for each parameter the factor of 2^0, 2^-0.5, … 2^-8 with the least error. It
takes the exact sum to find it: no rule for mu does better.

Exit codes: 0, or 2 for bad input.
"""

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from models import device  # before torchtitan: see there  # isort: skip
import pandas as pd
import torch
from torchao.float8.float8_utils import to_fp8_saturated

from experiments.benchmarks.small_run import batches, begin, loss_of
from experiments.config import recipes
from experiments.jobs.command import CommandLine, leave
from experiments.records.files import write_whole
from experiments.training.plan import Plan, plan
from models.errors import InputError
from models.fp8_gradients import decode, encode

RANKS = (2, 4, 8, 16, 32)
HOW = ("block", "tensor", "post", "pre", "auto", "best")
AT_THE_LIMIT = 1e-5  # the share of sums at 448 that halves mu
_E4M3 = torch.float8_e4m3fn
_LARGEST = torch.finfo(_E4M3).max


def main(argv: list[str] | None = None) -> int:
    parser = CommandLine("experiments.benchmarks.gradient_sums", __doc__)
    parser.add_argument("file", nargs="?", type=Path, help="write the results here, as JSON")
    file = parser.parse_args(argv).file
    if file and file.is_dir():  # said before the minutes that the sums take
        raise InputError(f"{file} is a folder: name a file in it, as {file / 'sums.json'}")
    planned = plan(recipes.load("baseline", ["cpu"]))
    training = planned.config.training
    gradients, losses = real_gradients(planned)
    sums = []
    for ranks in RANKS:
        for row in compare(gradients, ranks):
            sums.append(row)
            line = LINE.format(**row)
            if row["at_limit"] is not None:
                line += f", at 448 {row['at_limit']:.3%}"
            print(line, flush=True)
    record = {
        "torch": torch.__version__,
        "device": device.name(),
        "trained_steps": training.steps,
        "parameters": planned.parameters,
        "dtype": training.dtype,
        "tokens_a_rank": training.local_batch_size * training.seq_len,
        "loss": sum(losses) / len(losses),
        "sums": sums,
    }
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(record, indent=1) + "\n")
    return 0


LINE = (
    "{ranks:3} ranks, {how:7}{snr_db:5.1f} dB, worst parameter {worst_snr_db:5.1f} dB, "
    "rounded to 0 {lost:.2%}"
)


def real_gradients(planned: Plan) -> tuple[list[torch.Tensor], list[float]]:
    """Train the model; return each parameter's gradients (ranks, n) in batches that ranks would
    get, and the losses.

    They are in the dtype of the parameters, as FSDP2 gets them from the backward pass.
    """
    config, (trainer, token_file) = planned.config, begin(planned)
    trainer.train()
    trainer.close()
    model, collected, losses = trainer.model_parts[0], [], []
    config.debug.seed += 1  # other rows than it was trained on
    for rank in range(max(RANKS)):
        model.zero_grad()
        loss = loss_of(model, *next(batches(config, token_file, max(RANKS), rank)))
        loss.backward()
        losses.append(loss.item())
        collected.append([parameter.grad.flatten().clone() for parameter in model.parameters()])
    return [torch.stack(of_ranks) for of_ranks in zip(*collected, strict=True)], losses


def compare(parameters: Iterable[torch.Tensor], ranks: int) -> list[dict]:
    """Make a record for each way to add up; of each parameter the gradients of `ranks` ranks or
    more, (ranks, n)."""
    found = []
    for gradients in parameters:
        gradients = gradients[:ranks].float()
        exact = gradients.double().sum(0)
        for how, one in zip(HOW, added_up(gradients, exact), strict=True):
            row = {"how": how, "size": exact.numel()} | one._asdict()
            row |= {"signal": squares(exact), "noise": squares(one.total - exact)}
            found.append(row)
    records = []
    for how, sums in pd.DataFrame(found).groupby("how", sort=False):
        share = sums["size"] / sums["size"].sum()
        at_limit = float((share * sums["at_limit"]).sum(skipna=False))
        records.append(
            {
                "ranks": ranks,
                "how": how,
                "snr_db": decibels(sums["signal"].sum(), sums["noise"].sum()),
                "worst_snr_db": min(map(decibels, sums["signal"], sums["noise"])),
                "factors": [sums["factor"].min(), sums["factor"].max()],
                "lost": float((share * sums["lost"]).sum()),
                "at_limit": None if math.isnan(at_limit) else at_limit,
            }
        )
    return records


def squares(values: torch.Tensor) -> float:
    """Sum squares in float64."""
    return values.double().square().sum().item()


def decibels(signal: float, noise: float) -> float:
    """Turn sums of squares into signal to noise."""
    return 10 * math.log10(signal / noise) if noise else math.inf


# ---- ways to add up ----


class Sum(NamedTuple):
    """One parameter's."""

    total: torch.Tensor  # float32 (n)
    factor: float  # before the rounding
    lost: float  # share of gradients other than 0 that were rounded to 0
    at_limit: float  # share of sums at e4m3's largest value; nan of sums in float32


def added_up(gradients: torch.Tensor, exact: torch.Tensor) -> Iterator[Sum]:
    """Add up one parameter's gradients (ranks, n), in the order of `HOW`; `exact` is for `best`."""
    ranks, n = gradients.shape
    scale = _scale(gradients)
    yield sum_in_float32(gradients, decode(encode(gradients))[:, :n])
    yield sum_in_float32(gradients, rounded(gradients * scale) / scale)
    yield sum_in_fp8(gradients, 1.0)
    yield sum_in_fp8(gradients, 1 / ranks)
    yield automatic(gradients)
    tried = (sum_in_fp8(gradients, 2 ** (-half / 2)) for half in range(17))
    yield min(tried, key=lambda found: squares(found.total - exact))


def sum_in_float32(gradients: torch.Tensor, received: torch.Tensor) -> Sum:
    """Add gradients up as they arrive, rounded to e4m3."""
    return Sum(received.sum(0), 1.0, _lost(gradients, received), math.nan)


def sum_in_fp8(gradients: torch.Tensor, factor: float) -> Sum:
    """Add gradients up with partial sums in e4m3."""
    scale = factor * _scale(gradients)
    received = rounded(gradients * scale)
    total = received[0]
    for gradient in received[1:]:
        total = rounded(total + gradient)
    at_limit = (total.abs() == _LARGEST).double().mean().item()
    return Sum(total / scale, factor, _lost(gradients, received), at_limit)


def automatic(gradients: torch.Tensor) -> Sum:
    """Add up with the mu at which the paper's rule stops to halve it."""
    found = sum_in_fp8(gradients, 1.0)
    while found.at_limit > AT_THE_LIMIT:
        found = sum_in_fp8(gradients, found.factor / 2)
    return found


def rounded(values: torch.Tensor) -> torch.Tensor:
    """Round float32 values as e4m3 holds them; those beyond its range become its largest."""
    return to_fp8_saturated(values, _E4M3).float()


def _scale(gradients: torch.Tensor) -> torch.Tensor:
    return _LARGEST / gradients.abs().max().clamp(min=1e-30)


def _lost(gradients: torch.Tensor, received: torch.Tensor) -> float:
    lost = ((received == 0) & (gradients != 0)).sum().item()
    return lost / max(1, gradients.count_nonzero().item())


if __name__ == "__main__":
    leave(main)
