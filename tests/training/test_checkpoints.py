"""Checkpoints: which are loaded and deleted, whose they are, and what reading one can do."""

import io
import os
import pickle
import random
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, TensorProperties

from experiments.config import recipes
from experiments.config.keys import Config
from experiments.run import main
from experiments.training import checkpoint
from experiments.training.checkpoint import DIGEST, METADATA, Checkpoints
from models.errors import InputError
from tests.make_corpus import words, write_parquet
from tests.runs import SMALLEST, TINY, attempt_of, kill, record_of

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


def find_newest(run: Checkpoints) -> tuple[int, list[str]]:
    return checkpoint.find_newest(Path(run.folder), IDENTITY, last_step=99)


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
    assert find_newest(run)[0] == 6 and run.load(6)
    assert run.states["train_state"]["step"] == 6
    assert all(file.exists() for file in mine) and not (folder / "step-7").exists()


def test_a_checkpoint_that_lost_its_items_is_set_aside_and_not_searched_for(run):
    """Nor is a folder of another name loaded, as torchtitan would."""
    run.save(4)
    folder = Path(run.folder)
    [items] = folder.glob("step-4/*.distcp")
    items.rename(folder.parent / "x.distcp")
    (folder / "my-step-9").mkdir()
    (folder / "my-step-9" / METADATA).write_bytes(b"x")
    step, [sentence] = find_newest(run)
    assert step == 0 and "damaged" in sentence
    assert not run.load(step)


def test_first_weights_are_loaded_beside_other_files(run, tmp_path):
    """torchtitan would begin with random weights, because the run's folder is there."""
    first = {"model": run.states["model"].state_dict()["weight"].clone()}
    run.save(2)
    Path(run.folder, "step-2").rename(tmp_path / "first")
    Path(run.folder, "notes.txt").touch()
    with torch.no_grad():
        run.states["model"].model[0].weight.zero_()
    run.initial_load_path = str(tmp_path / "first")
    assert find_newest(run)[0] == 0 and run.load(0)
    assert run.states["model"].state_dict()["weight"].equal(first["model"])


def test_a_whole_checkpoint_that_lacks_a_state_is_an_error(run):
    run.save(4)
    run.states["more"] = {"value": 1}
    with pytest.raises(CheckpointException, match="Missing key"):
        run.load(4)


def cut(content: bytes) -> bytes:
    return content[:-200]


def flip(content: bytes) -> bytes:
    """Flip a bit in the middle."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 16]) + content[middle + 1 :]


SETS_ATTRIBUTE = b"cpathlib\nPosixPath\nN}X\x04\0\0\0mineK\x01s\x86b."
READS_ATTRIBUTE = b"cbuiltins\ngetattr\n(ctorch\nSize\nX\x07\0\0\0__mro__tR."


@pytest.mark.parametrize(
    ("name", "harm", "key", "has_digest"),
    [
        ("__0_0.distcp", cut, "damaged", True),
        (METADATA, cut, "damaged", True),
        (METADATA, flip, "damaged", True),
        (DIGEST, flip, "damaged", True),
        (METADATA, cut, "damaged", False),
        (METADATA, lambda _: pickle.dumps(Evil("trace")), "posix.mkdir", False),
        (METADATA, lambda _: SETS_ATTRIBUTE, "damaged", False),
        (METADATA, lambda _: READS_ATTRIBUTE, "damaged", False),
    ],
)
def test_damaged_checkpoints_are_set_aside(run, name, harm, key, has_digest, monkeypatch, tmp_path):
    """Metadata that would run code, or change what code does, is damage. A wrong byte of a weight
    is in test_run_ends.py."""
    monkeypatch.chdir(tmp_path)
    run.save(2)
    run.save(4)
    file = Path(run.folder, "step-4", name)
    file.write_bytes(harm(file.read_bytes()))
    if not has_digest:
        (file.parent / DIGEST).unlink()
    step, [said] = find_newest(run)
    assert step == 2 and key in said
    [aside] = os.listdir(checkpoint.DAMAGED_FOLDER)
    assert aside.startswith("step-4-")
    assert not os.path.exists("trace") and not hasattr(Path, "mine")


def test_no_flipped_bit_loads_other_values(run):
    """Each is found, or changes nothing that is read, as a date in a zip archive."""
    run.save(2)
    folder, draw = Path(run.folder, "step-2"), random.Random(0)
    for name in (METADATA, "__0_0.distcp"):
        file, content = folder / name, (folder / name).read_bytes()
        for place in draw.sample(range(len(content)), 30):
            harmed = bytearray(content)
            harmed[place] ^= 1 << draw.randrange(8)
            file.write_bytes(harmed)
            loaded = {"weight": torch.zeros(40, 30)}
            if not checkpoint.find_damage(folder):
                checkpoint.load_plain(loaded, folder)
                assert loaded["weight"].equal(run.states["model"].state_dict()["weight"]), place
        file.write_bytes(content)


class OtherPickler(pickle.Pickler):
    """Pickles a member of an Enum as Python 3.11.2 does, and strides as torch 2.15."""

    def reducer_override(self, value):
        if isinstance(value, _MEM_FORMAT_ENCODING):
            return getattr, (type(value), value.name)
        if isinstance(value, TensorProperties):
            return TensorProperties, (), (*value.__getstate__()[:5], (1, 2))
        return NotImplemented


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_checkpoints_of_other_versions_are_whole(run, protocol):
    run.save(2)
    folder, content = Path(run.folder, "step-2"), io.BytesIO()
    OtherPickler(content, protocol).dump(checkpoint.PlainReader(folder).read_metadata())
    (folder / METADATA).write_bytes(content.getvalue())
    (folder / DIGEST).unlink()
    assert find_newest(run) == (2, []) and run.load(2)


def test_a_whole_checkpoint_of_an_unknown_torch_is_kept(run):
    """Its resume is refused, because one from the step before would lose the work."""
    run.save(2)
    run.save(4)
    folder = Path(run.folder, "step-4")
    (folder / METADATA).write_bytes(pickle.dumps(random.Random()))
    (folder / DIGEST).write_text(f"{checkpoint.hash_metadata(folder)}  {METADATA}\n")
    with pytest.raises(InputError, match="is whole, and PyTorch"):
        find_newest(run)
    assert folder.is_dir()


@pytest.mark.parametrize(
    ("overlays", "keys", "is_kept"),
    [
        (["alps"], [], False),
        (["cpu", "alps"], ["checkpoint.interval=2"], False),
        (["alps"], ["checkpoint.enable=true"], True),
        ([], ["checkpoint={enable: true}"], True),
    ],
)
def test_a_completed_run_keeps_a_checkpoint_that_was_asked_for(overlays, keys, is_kept, tmp_path):
    """Not one of an overlay alone; a resolved recipe still knows."""
    recipe = recipes.load("baseline", overlays, keys)
    assert recipe.provenance.overlay_checkpoints != is_kept
    (tmp_path / "recipe.yaml").write_text(recipes.to_yaml(recipe))
    again = recipes.load(str(tmp_path / "recipe.yaml"))
    assert again.provenance.overlay_checkpoints != is_kept
    asked = recipes.load(str(tmp_path / "recipe.yaml"), [], ["checkpoint.enable=true"])
    assert not asked.provenance.overlay_checkpoints


def test_a_run_deletes_checkpoints_of_an_overlay_at_its_end(tmp_path, run_here):
    command = ["baseline", "--overlay", "cpu", "--overlay", "alps", "--out", tmp_path, *TINY]
    assert run_here(*command, SMALLEST, "checkpoint.interval=2") == 0
    assert "Finished saving the checkpoint" in (tmp_path / "log.txt").read_text()
    assert attempt_of(tmp_path)["status"] == "completed"
    assert not (tmp_path / "checkpoint").exists()


def test_first_weights_of_a_damaged_checkpoint_are_refused(run, tmp_path, fails):
    run.save(2)
    file = Path(run.folder, "step-2", "__0_0.distcp")
    file.write_bytes(flip(file.read_bytes()))
    dist.destroy_process_group()
    keys = ["checkpoint.enable=true", f"checkpoint.initial_load_path={file.parent}"]
    command = ["baseline", "--overlay", "cpu", "--out", tmp_path / "run", *TINY, SMALLEST, *keys]
    assert "holds no whole checkpoint" in fails(main, *command)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def test_items_that_would_run_code_are_not_loaded(tmp_path):
    """As of a foreign `checkpoint.initial_load_path`."""
    path, evil = tmp_path / "step-2", Evil(tmp_path / "trace")
    dcp.save({"nested": {"lr": [1.0, evil]}}, checkpoint_id=path, no_dist=True)
    with pytest.raises(CheckpointException):
        checkpoint.load_plain({"nested": {"lr": [1.0, 0.0]}}, path)
    assert not (tmp_path / "trace").exists()


def test_a_run_goes_on_with_its_own_data_only(tmp_path, run_here, fails, config, corpus_keys):
    """The content of a parquet file is replaced between two attempts."""
    out, keys = tmp_path / "run", ["model.sizes.vocab_size=512", "checkpoint.enable=true"]
    command = ["baseline", "--overlay", "cpu", "--out", out, *TINY, *keys, SMALLEST, *corpus_keys]
    assert run_here(*command) == 0
    kill(out)
    record, files = record_of(out), set(out.iterdir())
    assert "step-4 is beyond training.steps=3" in fails(main, *command, "training.steps=3")
    write_parquet(config.training.dataset_path, words(60))
    assert f"data {record['data']} there, " in fails(main, *command)
    assert set(out.iterdir()) == files and record_of(out) == record
