"""Checkpoints: which are loaded and deleted, whose they are, and what reading one can do."""

import json
import os
import pickle
import resource

import pytest
import torch
from torch.distributed import checkpoint as dcp

from experiments.config import recipes
from experiments.training import checkpoint, checkpoint_files
from experiments.training.checkpoint import Checkpoints
from experiments.training.plan import plan
from models.errors import InputError
from tests.make_corpus import words, write_parquet
from tests.runs import TINY, manifest_of

IDENTITY = {"model.flavor": "cpu", "data": "corpus-1", "debug.seed": 0}


class Evil:
    """Unpickled, it makes the folder of this name."""

    def __init__(self, trace):
        self.trace = str(trace)

    def __reduce__(self):
        return os.mkdir, (self.trace,)


def save(folder, step: int, **items):
    """A whole checkpoint; its path."""
    own = {
        "train_state": {"step": step, "identity": json.dumps(IDENTITY)},
        "weight": torch.arange(1000.0),
    }
    dcp.save(own | items, checkpoint_id=folder / f"step-{step}", no_dist=True)
    return folder / f"step-{step}"


@pytest.fixture
def checkpoints(tmp_path):
    """Those of a run whose folder is empty, without a trainer."""
    manager = object.__new__(Checkpoints)
    manager.enable, manager.folder, manager.identity = (
        False,
        str(tmp_path / "run/checkpoint"),
        dict(IDENTITY),
    )
    (tmp_path / "run/checkpoint").mkdir(parents=True)
    return manager


def test_only_checkpoints_are_deleted(checkpoints, tmp_path, monkeypatch):
    """Neither other files with such names, nor what links lead to; checkpoints that were never
    finished are."""
    folder, elsewhere = tmp_path / "run/checkpoint", tmp_path / "elsewhere/step-8"
    others = [
        folder / "step-notes/f",
        folder / "step-7/thesis.tex",
        folder / "my-step-3/f",
        elsewhere / "__0_0.distcp",
    ]
    for file in others:
        file.parent.mkdir(parents=True)
        file.write_text("mine")
    (folder / "step-notes.txt").write_text("mine")
    (folder / "step-15").symlink_to(tmp_path / "nowhere")
    (folder / "step-8").symlink_to(elsewhere)
    for step in 2, 4, 6, 12:
        save(folder, step)
    (folder / "step-12/.metadata").unlink()
    names = {path.name for path in folder.iterdir()}
    assert checkpoints._newest_whole() == 6
    assert names - {path.name for path in folder.iterdir()} == {"step-12"}
    assert all(file.read_text() == "mine" for file in others)
    stale = []
    checkpoints.keep_latest_k, checkpoints.purge_queue = 2, type("Queue", (), {"put": stale.append})
    monkeypatch.setattr(checkpoint.dist, "get_rank", lambda: 0)
    checkpoints._purge_stale_checkpoints()
    assert stale == [str(folder / "step-2")]


@pytest.mark.parametrize(
    ("key", "value"), [("debug.seed", 1), ("model.flavor", "8B"), ("data", "corpus-2")]
)
def test_a_checkpoint_of_another_run_is_refused(checkpoints, tmp_path, key, value):
    path = save(tmp_path / "run/checkpoint", 6)
    checkpoints.identity[key] = value
    with pytest.raises(
        InputError,
        match=f"is of another run, which differs in {key} .{IDENTITY[key]} there, {value} he",
    ):
        checkpoints._newest_whole()
    assert (path / ".metadata").exists()


def flip(content: bytes) -> bytes:
    """One bit of a weight, the largest item."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 16]) + content[middle + 1 :]


@pytest.mark.parametrize("harm", [flip, lambda content: content[:-200], lambda content: b""])
def test_damaged_checkpoints_are_set_aside(checkpoints, tmp_path, harm):
    folder = tmp_path / "run/checkpoint"
    save(folder, 2)
    file = next(save(folder, 4).glob("*.distcp"))
    file.write_bytes(harm(file.read_bytes()))
    assert checkpoints._newest_whole() == 2
    assert [path.name for path in (tmp_path / "run" / checkpoint.ASIDE).iterdir()] == ["step-4-0"]


def test_metadata_that_would_run_code_is_damage(tmp_path):
    path, trace = save(tmp_path, 2), tmp_path / "trace"
    (path / ".metadata").write_bytes(pickle.dumps(Evil(trace)))
    assert "posix.mkdir, which is no plain data" in checkpoint_files.damage(path)
    assert not trace.exists()


@pytest.mark.parametrize(
    "hidden", [lambda evil: {"item": evil}, lambda evil: {"nested": {"lr": [1.0, evil]}}]
)
def test_items_that_would_run_code_are_not_loaded(tmp_path, hidden):
    """As of a foreign `checkpoint.initial_load_path`."""
    trace = tmp_path / "trace"
    path = save(tmp_path, 2, **hidden(Evil(trace)))
    with pytest.raises(dcp.api.CheckpointException):
        checkpoint_files.load(hidden(0.0) | {"weight": torch.zeros(1000)}, path)
    assert not trace.exists()


def test_a_folder_outside_the_run_is_left_alone(checkpoints, tmp_path):
    unfinished = save(tmp_path / "elsewhere", 8)
    (unfinished / ".metadata").unlink()
    (tmp_path / "run/checkpoint").rmdir()
    (tmp_path / "run/checkpoint").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(
        InputError, match="checkpoint is a link, and a run deletes nothing outside its directory"
    ):
        checkpoints._newest_whole()
    assert unfinished.is_dir()


def test_first_weights_that_are_damaged_or_of_another_model(checkpoints, tmp_path, monkeypatch):
    path, trace = save(tmp_path, 2), tmp_path / "trace"
    keys = ["checkpoint.enable=true", f"checkpoint.initial_load_path={path}"]
    recipe = recipes.load("baseline", ["cpu"], keys)
    with pytest.raises(
        InputError, match="is of another model, without this one's layers[.][*].attention.wk.weight"
    ):
        plan(recipe, world_size=1)
    file = next(path.glob("*.distcp"))
    file.write_bytes(flip(file.read_bytes()))
    monkeypatch.setattr(checkpoint.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(checkpoint.dist, "broadcast_object_list", lambda _: None)
    monkeypatch.setattr(checkpoints, "enable", True)
    checkpoints.initial_load_path = str(path)
    with pytest.raises(InputError, match="initial_load_path=.*step-2 is damaged .*wrong checksum"):
        checkpoints.load()
    (path / ".metadata").write_bytes(pickle.dumps(Evil(trace)))
    with pytest.raises(InputError, match="mkdir, which is no plain data"):
        plan(recipe, world_size=1)
    assert not trace.exists()


@pytest.mark.slow
def test_a_run_goes_on_with_its_own_data_only(tmp_path, run_here, config, capsys):
    """The content of a parquet file is replaced between two attempts; then put back."""
    out, corpus = tmp_path / "run", config.training.dataset_path
    keys = ["training.dataset=parquet", f"training.dataset_path={corpus}", f"data.cache_dir={config.data.cache_dir}",
            f"model.hf_assets_path={config.model.hf_assets_path}", "checkpoint.enable=true"]  # fmt: skip
    command = ["baseline", "--overlay", "cpu", "--out", out, *TINY, "training.seq_len=16", *keys]
    assert run_here(*command) == 0
    data = manifest_of(out)["data"]
    assert (
        data.startswith("parquet-")
        and json.loads((out / "summary.json").read_text())["data"] == data
    )
    (out / "manifest.json").write_text(json.dumps(manifest_of(out) | {"status": "running"}))
    write_parquet(corpus, words(60))
    assert run_here(*command, "training.steps=6") == 2
    assert (
        f"differs in data ({data} there, {manifest_of(out)['data']} here)"
        in manifest_of(out)["error"]
    )
    write_parquet(corpus, words(30))
    assert run_here(*command, "training.steps=3") == 2
    assert "is of step 4, and training.steps=3 asks for fewer" in manifest_of(out)["error"]
    assert run_here(*command, "training.steps=6") == 0
    assert "Training starts at step 5" in (out / "log.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["disabled", "async"])
def test_a_checkpoint_that_cannot_be_written_ends_the_run(tmp_path, run_here, mode):
    """A limit on file sizes stands in for a full disk. torch's exception is none that `except
    Exception` catches."""
    out, keys = (
        tmp_path / "run",
        ["checkpoint.enable=true", "checkpoint.interval=2", f"checkpoint.async_mode={mode}"],
    )
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limit[1]))
    try:
        assert run_here("baseline", "--overlay", "cpu", "--out", out, *TINY, *keys) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    manifest = manifest_of(out)
    assert (
        manifest["status"] == "failed"
        and "CheckpointError: a checkpoint could not be saved" in manifest["error"]
    )
    assert not list((out / "checkpoint").iterdir()) and (out / "summary.json").exists()
