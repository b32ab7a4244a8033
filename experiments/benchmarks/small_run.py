"""What benchmarks share: a run in this process, its batches, the loss of a batch, and the file of
results."""

import json
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from models import device  # before torchtitan: see there  # isort: skip
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.corpus.rows import Loader
from experiments.corpus.tokens import TokenFile
from experiments.jobs.command import Stop
from experiments.records.files import write_whole
from experiments.training.plan import Plan, open_data
from experiments.training.trainer import Trainer, be_alone
from models.errors import InputError


def begin(planned: Plan) -> tuple[Trainer, TokenFile]:
    """Build the trainer of a run that leaves no results."""
    planned.config.job.dump_folder = tempfile.mkdtemp(prefix="benchmark_")
    be_alone()
    planned, _ = open_data(planned)
    return Trainer(planned, Stop()), planned.token_file


def batches(
    config, token_file: TokenFile, ranks: int = 1, rank: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Give inputs and labels as a rank reads them."""
    for inputs, labels in Loader(token_file, config, lambda rows: islice(rows, rank, None, ranks)):
        yield inputs["input"].to(device.TYPE), labels.to(device.TYPE)


def loss_of(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Compute the mean cross entropy of a batch."""
    return cross_entropy(model(inputs).flatten(0, 1).float(), labels.flatten())


def check_file(file: Path, example: str) -> None:
    """Refuse a folder before the minutes that a benchmark takes."""
    if file.is_dir():
        raise InputError(f"{file} is a folder: name a file in it, as {file / example}")


def write_results(file: Path, **results: object) -> None:
    """Write results as JSON, with the device and the version of torch that they are of."""
    record = {"torch": torch.__version__, "device": device.name(), **results}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(record, indent=1) + "\n")
