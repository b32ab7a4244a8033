"""Fixtures of all tests. A process that hands out tests to others imports no torch, which takes
seconds; hence the imports within functions."""

import importlib
import logging
import os
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers and what they start share the cores
os.environ.setdefault(
    "TORCHINDUCTOR_COMPILE_THREADS", "1"
)  # ... which another pool of processes would not
import pytest

from experiments.jobs.command import StopRequest, run_command
from experiments.records.run import METRICS, read_log
from experiments.run import main
from tests.make_corpus import words, write_parquet, write_tokenizer


def pytest_collectstart():
    """Make a CPU a device of torchtitan before anything of torchtitan is imported."""
    importlib.import_module("models.device")


def pytest_collection_modifyitems(items):
    """Files with most slow tests begin, so that no worker is left alone with one; GPU tests skip
    themselves."""
    slow = Counter(
        item.path for item in items if "slow" in item.keywords and "gpu" not in item.keywords
    )
    items.sort(key=lambda item: -slow[item.path])
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


@pytest.fixture(autouse=True)
def process_as_before():
    """A command under test leaves logging to streams that are gone after it, environment variables,
    handlers of signals and a process group."""
    root, environment = logging.getLogger(), dict(os.environ)
    handlers, mask = root.handlers[:], signal.pthread_sigmask(signal.SIG_BLOCK, [])
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGQUIT)
    answers = {number: signal.getsignal(number) for number in numbers}
    yield
    root.handlers = handlers
    os.environ.clear()
    os.environ.update(environment)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for number, answer in answers.items():
        signal.signal(number, answer)
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def flavors(monkeypatch):
    """Copies: torchtitan writes a config's keys there."""
    from models.architectures import list_architectures

    for architecture in list_architectures():
        for flavor, args in architecture.flavors.items():
            monkeypatch.setitem(architecture.flavors, flavor, replace(args))


@pytest.fixture
def train(tmp_path, flavors):
    """Trains the first steps of a config in this process; gives the trainer and its log."""
    from experiments.config.recipes import Recipe
    from experiments.training.attempt import RunDirectory, init_single_process
    from experiments.training.plan import open_data, plan
    from experiments.training.trainer import Trainer

    def steps(config, count=1, recipe=None) -> tuple:
        folder = Path(mkdtemp(dir=tmp_path))
        config.job.dump_folder = str(folder)
        init_single_process()
        planned, _ = open_data(plan(recipe or Recipe("test", "", config)))
        trainer = Trainer(planned, StopRequest(), RunDirectory(folder, planned))
        trainer.begin()
        batches = trainer.batch_generator(trainer.dataloader)
        for trainer.step in range(1, count + 1):
            trainer.train_step(batches)
        trainer.close()
        return trainer, read_log(folder / METRICS)

    return steps


@pytest.fixture
def run_here(flavors):
    """`python -m experiments.run`, in this process, to its exit code: quicker, where one of its own
    shows no more."""

    def run(*arguments) -> int:
        return run_command(lambda: main([*map(str, arguments)]))

    return run


@pytest.fixture
def fails(capsys):
    """Call a command's main in this process; returns what it wrote to stderr, after an exit with
    code 2."""

    def call(main, *arguments) -> str:
        assert run_command(lambda: main([*map(str, arguments)])) == 2
        errors = capsys.readouterr().err
        assert errors.startswith("error: ") and "Traceback" not in errors
        return errors

    return call


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Put a program on the PATH; it does what a line of a shell says."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def write(name: str, line: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)

    return write


@pytest.fixture
def config(tmp_path):
    """Rows of 4 tokens from a corpus of 30 documents of 8, end-of-text included."""
    from experiments.config.keys import Config

    config = Config()
    config.model.hf_assets_path = str(tmp_path / "tokenizer.json")
    config.data.cache_dir = str(tmp_path / "cache")
    config.debug.seed = 42
    training = config.training
    training.dataset, training.dataset_path = "parquet", str(tmp_path / "corpus.parquet")
    training.seq_len, training.local_batch_size, training.steps = 4, 1, 1
    write_tokenizer(config.model.hf_assets_path)
    write_parquet(training.dataset_path, words(30))
    return config


@pytest.fixture
def corpus_keys(config):
    """The keys of that corpus, as a user writes them."""
    return [
        "training.dataset=parquet",
        f"training.dataset_path={config.training.dataset_path}",
        f"model.hf_assets_path={config.model.hf_assets_path}",
        f"data.cache_dir={config.data.cache_dir}",
    ]
