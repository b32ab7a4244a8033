"""How exactly gradients of many ranks are added up in FP8: `python -m
experiments.benchmark_gradient_sums [FILE]`.

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
"""

import argparse
import json
import math
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from models import device  # before torchtitan: see there  # isort: skip
import torch

from experiments.config import recipes
from experiments.corpus.rows import build_dataloader
from experiments.jobs.exit_codes import leave
from experiments.jobs.files import write_whole
from experiments.jobs.ranks import set_rank_environment
from experiments.jobs.signals import Stop
from experiments.training.plan import Plan, open_data, plan
from experiments.training.trainer import Trainer
from models.errors import InputError
from models.fp8_gradients import decode, encode

RANKS = (2, 4, 8, 16, 32)
HOW = ("block", "tensor", "post", "pre", "auto", "best")
AT_THE_LIMIT = 1e-5  # the share of sums at 448 that halves mu
_E4M3 = torch.float8_e4m3fn
_LARGEST = torch.finfo(_E4M3).max


def rounded(values: torch.Tensor) -> torch.Tensor:
    """float32 values as e4m3 holds them; those beyond its range become its largest."""
    return values.clamp(-_LARGEST, _LARGEST).to(_E4M3).float()


class Sum(NamedTuple):
    """One parameter's."""

    total: torch.Tensor  # float32 (n)
    factor: float  # before the rounding
    lost: float  # share of gradients other than 0 that were rounded to 0
    at_limit: float  # share of sums at e4m3's largest value; nan of sums in float32


def sum_in_float32(gradients: torch.Tensor, received: torch.Tensor) -> Sum:
    """Of gradients (ranks, n) as they arrive, rounded to e4m3."""
    return Sum(received.sum(0), 1.0, _lost(gradients, received), math.nan)


def sum_in_fp8(gradients: torch.Tensor, factor: float) -> Sum:
    """Of gradients (ranks, n), with partial sums in e4m3."""
    scale = factor * _scale(gradients)
    received = rounded(gradients * scale)
    total = received[0]
    for gradient in received[1:]:
        total = rounded(total + gradient)
    at_limit = (total.abs() == _LARGEST).double().mean().item()
    return Sum(total / scale, factor, _lost(gradients, received), at_limit)


def _scale(gradients: torch.Tensor) -> torch.Tensor:
    return _LARGEST / gradients.abs().max().clamp(min=1e-30)


def _lost(gradients: torch.Tensor, received: torch.Tensor) -> float:
    return ((received == 0) & (gradients != 0)).sum().item() / max(
        1, gradients.count_nonzero().item()
    )


def automatic(gradients: torch.Tensor) -> Sum:
    """With the mu at which the paper's rule stops to halve it."""
    found = sum_in_fp8(gradients, 1.0)
    while found.at_limit > AT_THE_LIMIT:
        found = sum_in_fp8(gradients, found.factor / 2)
    return found


def added_up(gradients: torch.Tensor, exact: torch.Tensor) -> Iterator[Sum]:
    """Of one parameter, in the order of `HOW`; `exact` is for `best`."""
    ranks, n = gradients.shape
    scale = _scale(gradients)
    yield sum_in_float32(gradients, decode(encode(gradients))[:, :n])
    yield sum_in_float32(gradients, rounded(gradients * scale) / scale)
    yield sum_in_fp8(gradients, 1.0)
    yield sum_in_fp8(gradients, 1 / ranks)
    yield automatic(gradients)
    tried = (sum_in_fp8(gradients, 2 ** (-half / 2)) for half in range(17))
    yield min(tried, key=lambda found: _squares(found.total - exact))


def _squares(values: torch.Tensor) -> float:
    return values.double().square().sum().item()


def decibels(signal: float, noise: float) -> float:
    """Signal to noise by their sums of squares."""
    return 10 * math.log10(signal / noise) if noise else math.inf


def compare(parameters: Iterable[torch.Tensor], ranks: int) -> list[dict]:
    """One record a way to add up; of each parameter the gradients of `ranks` ranks or more, (ranks,
    n)."""
    found = []
    for gradients in parameters:
        gradients = gradients[:ranks].float()
        exact = gradients.double().sum(0)
        for how, one in zip(HOW, added_up(gradients, exact), strict=True):
            found.append((how, exact.numel(), _squares(exact), _squares(one.total - exact), one))
    records = []
    for how in HOW:
        _, sizes, signals, noises, sums = zip(*(row for row in found if row[0] == how), strict=True)
        shares = {
            name: sum(size * getattr(one, name) for size, one in zip(sizes, sums, strict=True))
            / sum(sizes)
            for name in ("lost", "at_limit")
        }
        records.append({
            "ranks": ranks, "how": how, "snr_db": decibels(sum(signals), sum(noises)),
            "worst_snr_db": min(map(decibels, signals, noises)),
            "factors": [min(one.factor for one in sums), max(one.factor for one in sums)],
            **{name: None if math.isnan(share) else share for name, share in shares.items()},
        })  # fmt: skip
    return records


def real_gradients(planned: Plan) -> tuple[list[torch.Tensor], list[float]]:
    """Of each parameter the gradients (ranks, n) of the trained model in batches that ranks would
    get, and the losses.

    They are in the dtype of the parameters, as FSDP2 gets them from the backward pass.
    """
    config, token_file = planned.config, open_data(planned)
    config.job.dump_folder = tempfile.mkdtemp(prefix="benchmark_gradient_sums_")
    set_rank_environment()
    trainer = Trainer(planned, token_file, Stop())
    trainer.train()
    trainer.close()
    model, collected, losses = trainer.model_parts[0], [], []
    config.debug.seed += 1  # other rows than it was trained on
    for rank in range(max(RANKS)):
        loader = build_dataloader(token_file, max(RANKS), rank, None, config)
        inputs, labels = next(iter(loader))
        model.zero_grad()
        logits = model(inputs["input"].to(device.TYPE)).flatten(0, 1).float()
        loss = torch.nn.functional.cross_entropy(logits, labels.flatten().to(device.TYPE))
        loss.backward()
        losses.append(loss.item())
        collected.append([parameter.grad.flatten().clone() for parameter in model.parameters()])
    return [torch.stack(of_ranks) for of_ranks in zip(*collected, strict=True)], losses


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmark_gradient_sums")
    parser.add_argument("file", nargs="?", type=Path, help="write the results here, as JSON")
    file = parser.parse_args(argv).file
    if file and file.is_dir():  # said before the minutes that the sums take
        raise InputError(f"{file} is a folder: name a file in it, as {file / 'sums.json'}")
    planned = plan(recipes.load("baseline", ["cpu"]))
    config = planned.config
    gradients, losses = real_gradients(planned)
    record = {
        "torch": torch.__version__, "device": device.name(), "trained_steps": config.training.steps,
        "parameters": sum(of_ranks.shape[1] for of_ranks in gradients), "dtype": config.training.dtype,
        "tokens_a_rank": config.training.local_batch_size * config.training.seq_len,
        "loss": sum(losses) / len(losses), "sums": [],
    }  # fmt: skip
    for ranks in RANKS:
        for row in compare(gradients, ranks):
            record["sums"].append(row)
            snr = f"{row['snr_db']:5.1f} dB, worst parameter {row['worst_snr_db']:5.1f} dB"
            at_limit = "" if row["at_limit"] is None else f", at 448 {row['at_limit']:.3%}"
            print(
                f"{ranks:3} ranks, {row['how']:7}{snr}, rounded to 0 {row['lost']:.2%}{at_limit}",
                flush=True,
            )
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    leave(main)
