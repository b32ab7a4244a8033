"""Checkpoints: which are loaded and deleted, whose they are, and what reading one can do."""

import os
import pickle

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from experiments.config.keys import Config
from experiments.run import main
from experiments.training import checkpoint
from experiments.training.checkpoint import Checkpoints
from experiments.training.run_directory import check_resume
from models.errors import InputError
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
    config.enable, config.interval, config.keep_latest_k = True, 1000, 2
    manager = Checkpoints(
        None, [nn.Linear(30, 40, bias=False)], None, None, {}, config, None, str(tmp_path / "run")
    )
    manager.states = {"model": manager.states["model"], "train_state": {"step": 0}}
    yield manager
    manager.close()
    dist.destroy_process_group()


def save(run: Checkpoints, *steps: int) -> None:
    """Save at step boundaries where the interval asks for none."""
    run.asked, run.keep_latest_k = True, 0
    for step in steps:
        run.states["train_state"] = {"step": step, "identity": IDENTITY}
        run.save(step)
    run.states["train_state"] = {"step": 0}


def loaded(run: Checkpoints) -> int:
    """The step of the checkpoint that a run goes on from; 0 for none."""
    assert run.load() == bool(run.states["train_state"]["step"])
    return run.states["train_state"]["step"]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run/checkpoint"


def test_only_checkpoints_are_deleted(run, folder, tmp_path):
    """Neither other files with such names, nor what links lead to; checkpoints that were never
    finished are."""
    save(run, 2, 4, 6, 12)
    (folder / "step-12/.metadata").unlink()
    elsewhere = tmp_path / "elsewhere/step-8/__0_0.distcp"
    others = ["step-notes/f", "step-7/thesis.tex", "my-step-3/f", "step-notes.txt"]
    files = [elsewhere, *(folder / name for name in others)]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine")
    (folder / "step-8").symlink_to(elsewhere.parent)
    names = {path.name for path in folder.iterdir()}
    assert loaded(run) == 6
    run.keep_latest_k = 2
    run.save(14, last_step=True)
    run.close()  # waits for what is to be deleted
    gone = names - {path.name for path in folder.iterdir()}
    assert gone == {f"step-{step}" for step in (2, 4, 12)}
    assert all(file.read_text() == "mine" for file in files)


def test_a_whole_checkpoint_that_lacks_a_state_is_an_error(run):
    save(run, 4)
    run.states["more"] = {"value": 1}
    with pytest.raises(CheckpointException, match="Missing key"):
        run.load()


def flip(content: bytes) -> bytes:
    """One bit of a weight, the largest item."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 16]) + content[middle + 1 :]


def cut(content: bytes) -> bytes:
    return content[:-200]


SETS_ATTRIBUTES = b"ctorch.distributed.checkpoint.metadata\nMetadata\n}X\x01\0\0\0aK\x01sb."


@pytest.mark.parametrize(
    ("name", "harm", "key"),
    [
        ("__0_0.distcp", flip, "wrong checksum"),
        ("__0_0.distcp", cut, "damaged"),
        (".metadata", cut, "damaged"),
        (".metadata", lambda _: b"", "damaged"),
        (".metadata", lambda _: pickle.dumps(Evil("trace")), "posix.mkdir, which is no plain data"),
        (".metadata", lambda _: SETS_ATTRIBUTES, "it sets attributes of"),
    ],
)
def test_damaged_checkpoints_are_set_aside(run, folder, name, harm, key, caplog, monkeypatch):
    """Metadata that would run code is damage."""
    monkeypatch.chdir(folder.parents[1])
    save(run, 2, 4)
    file = folder / "step-4" / name
    file.write_bytes(harm(file.read_bytes()))
    assert loaded(run) == 2 and key in caplog.text
    assert [path.name for path in (folder.parent / checkpoint.ASIDE).iterdir()] == ["step-4-0"]
    assert not os.path.exists("trace") and not hasattr(dcp.metadata.Metadata, "a")


def test_items_that_would_run_code_are_not_loaded(tmp_path):
    """As of a foreign `checkpoint.initial_load_path`."""
    path, evil = tmp_path / "step-2", Evil(tmp_path / "trace")
    dcp.save({"nested": {"lr": [1.0, evil]}}, checkpoint_id=path, no_dist=True)
    with pytest.raises(CheckpointException):
        checkpoint.load({"nested": {"lr": [1.0, 0.0]}}, path)
    assert not (tmp_path / "trace").exists()


def test_a_folder_outside_the_run_is_left_alone(run, folder, tmp_path):
    folder.parent.mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="is a link"):
        check_resume(folder, IDENTITY, last=8)


def test_first_weights_that_are_damaged(run, folder, tmp_path):
    save(run, 2)
    first = folder.rename(tmp_path / "first") / "step-2"
    file = first / "__0_0.distcp"
    file.write_bytes(flip(file.read_bytes()))
    run.initial_load_path = str(first)
    with pytest.raises(InputError, match="initial_load_path=.*step-2 is damaged .*wrong checksum"):
        run.load()


def test_a_run_goes_on_with_its_own_data_only(tmp_path, run_here, fails, config):
    """The content of a parquet file is replaced between two attempts."""
    out, training = tmp_path / "run", config.training
    keys = [SMALLEST, "model.sizes.vocab_size=512", "training.seq_len=16", "checkpoint.enable=true"]
    keys += ["training.dataset=parquet", f"training.dataset_path={training.dataset_path}"]
    keys += [f"model.hf_assets_path={config.model.hf_assets_path}"]
    keys += [f"data.cache_dir={config.data.cache_dir}"]
    command = ["baseline", "--overlay", "cpu", "--out", out, *TINY, *keys]
    assert run_here(*command) == 0
    kill(out)
    manifest, files = manifest_of(out), set(out.iterdir())
    fewer = fails(main, *command, "training.steps=3")
    assert "step-4 is beyond training.steps=3" in fewer
    write_parquet(training.dataset_path, words(60))
    assert f"data {manifest['data']} there, " in fails(main, *command)
    assert set(out.iterdir()) == files and manifest_of(out) == manifest
