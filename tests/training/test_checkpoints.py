"""Checkpoints: which are loaded and deleted, whose they are, and what reading one can do."""

import os
import pickle
from pathlib import Path

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from experiments.config.keys import Config
from experiments.run import main
from experiments.training import checkpoint
from experiments.training.checkpoint import Checkpoints
from tests.make_corpus import words, write_parquet
from tests.runs import SMALLEST, TINY, kill, manifest_of

IDENTITY = "recipe 1, data corpus-1"


class Evil:
    """Unpickled, it makes the folder of this name."""

    def __init__(self, trace):
        self.trace = str(trace)

    def __reduce__(self):
        return os.mkdir, (self.trace,)


@pytest.fixture
def run(tmp_path):
    """Checkpoints of a run of one process, of a weight and its step."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    config = Config().checkpoint
    config.enable, config.interval, config.keep_latest_k = True, 2, 4
    manager = Checkpoints(
        None, [nn.Linear(30, 40, bias=False)], None, None, {}, config, None, str(tmp_path)
    )
    manager.states = {"model": manager.states["model"]}
    manager.states["train_state"] = {"step": 0, "identity": IDENTITY}
    yield manager
    manager.close()
    dist.destroy_process_group()


def newest(run: Checkpoints) -> tuple[int, list[str]]:
    return checkpoint.newest(Path(run.folder), IDENTITY, last=99)


def test_only_checkpoints_are_deleted_and_the_newest_whole_one_is_loaded(run):
    """As many are kept as the recipe says, the last one too."""
    folder, run.keep_latest_k = Path(run.folder), 2
    mine = [folder / "notes/f", folder / "step-8/thesis.tex", folder / "step-1_copy/x.distcp"]
    for file in mine:
        file.parent.mkdir(parents=True)
        file.touch()
    for step in (2, 4, 6, 7):
        run.states["train_state"]["step"] = step
        run.save(step, last_step=step == 7)
    run.close()  # waits for what is to be deleted
    checkpoints = {folder / "step-6", folder / "step-7"}
    assert set(folder.iterdir()) == checkpoints | {file.parent for file in mine}
    (folder / "step-7/.metadata").unlink()  # it was never finished
    assert newest(run)[0] == 6 and run.load(6)
    assert run.states["train_state"]["step"] == 6
    assert all(file.exists() for file in mine) and not (folder / "step-7").exists()


def test_a_whole_checkpoint_that_lacks_a_state_is_an_error(run):
    run.save(4)
    run.states["more"] = {"value": 1}
    with pytest.raises(CheckpointException, match="Missing key"):
        run.load(4)


def cut(content: bytes) -> bytes:
    return content[:-200]


SETS_ATTRIBUTE = b"cpathlib\nPosixPath\nN}X\x04\0\0\0mineK\x01s\x86b."


@pytest.mark.parametrize(
    ("name", "harm", "key"),
    [
        ("__0_0.distcp", cut, "damaged"),
        (".metadata", cut, "damaged"),
        (".metadata", lambda _: pickle.dumps(Evil("trace")), "posix.mkdir, which is no plain data"),
        (".metadata", lambda _: SETS_ATTRIBUTE, "damaged"),
    ],
)
def test_damaged_checkpoints_are_set_aside(run, name, harm, key, monkeypatch, tmp_path):
    """Metadata that would run code, or change what code does, is damage. A wrong byte of a weight
    is in test_run_ends.py."""
    monkeypatch.chdir(tmp_path)
    run.save(2)
    run.save(4)
    file = Path(run.folder, "step-4", name)
    file.write_bytes(harm(file.read_bytes()))
    step, [said] = newest(run)
    assert step == 2 and key in said
    [aside] = os.listdir(checkpoint.ASIDE)
    assert aside.startswith("step-4-")
    assert not os.path.exists("trace") and not hasattr(Path, "mine")


def test_items_that_would_run_code_are_not_loaded(tmp_path):
    """As of a foreign `checkpoint.initial_load_path`."""
    path, evil = tmp_path / "step-2", Evil(tmp_path / "trace")
    dcp.save({"nested": {"lr": [1.0, evil]}}, checkpoint_id=path, no_dist=True)
    with pytest.raises(CheckpointException):
        checkpoint.load({"nested": {"lr": [1.0, 0.0]}}, path)
    assert not (tmp_path / "trace").exists()


def test_a_run_goes_on_with_its_own_data_only(tmp_path, run_here, fails, config, corpus_keys):
    """The content of a parquet file is replaced between two attempts."""
    out, keys = tmp_path / "run", ["model.sizes.vocab_size=512", "checkpoint.enable=true"]
    command = ["baseline", "--overlay", "cpu", "--out", out, *TINY, *keys, SMALLEST, *corpus_keys]
    assert run_here(*command) == 0
    kill(out)
    manifest, files = manifest_of(out), set(out.iterdir())
    assert "step-4 is beyond training.steps=3" in fails(main, *command, "training.steps=3")
    write_parquet(config.training.dataset_path, words(60))
    assert f"data {manifest['data']} there, " in fails(main, *command)
    assert set(out.iterdir()) == files and manifest_of(out) == manifest
