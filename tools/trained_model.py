"""Train a small model in this process, for experiments on its numbers."""

from collections.abc import Iterator
from tempfile import TemporaryDirectory

from torch import Tensor, nn

from experiments.corpus.rows import BatchLoader
from experiments.jobs.command import StopRequest
from experiments.training.attempt import init_single_process
from experiments.training.plan import Plan, open_data
from experiments.training.trainer import Trainer


def train_model(plan: Plan) -> tuple[nn.Module, Iterator[tuple[Tensor, Tensor]]]:
    """Train the run of a plan, without a run directory.

    Returns:
        The model, and batches that it was not trained on: inputs and labels, (rows, seq_len) each.
    """
    opened_plan, _ = open_data(plan)
    config = opened_plan.config
    init_single_process()
    with TemporaryDirectory() as folder:
        config.job.dump_folder = folder
        trainer = Trainer(opened_plan, StopRequest())
        trainer.train()
        trainer.close()
    config.debug.seed += 1  # another seed draws other rows
    loader = BatchLoader(opened_plan.token_file, config)
    batches = ((inputs["input"], labels) for inputs, labels in loader)
    return trainer.model_parts[0], batches
