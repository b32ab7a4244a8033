"""Save and load torchtitan's checkpoints of one run, and guard what torchtitan does not.

A damaged checkpoint is found, and a foreign one refused, before a run begins. A checkpoint from
elsewhere can hold wrong weights, but it cannot run code: all that is read of it is numbers, text,
tensors and the classes of PyTorch's own lists.

On disk a checkpoint is a folder `step-<int>` of torch.distributed.checkpoint: files `*.distcp` of
items, each as torch.save writes it, and `.metadata`, a pickle that lists the items. PyTorch writes
.metadata last and by renaming it: a folder without one was never finished.
"""

import io
import os
import pickle
import shutil
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import time

import models.device  # noqa: F401  # before torchtitan: see there  # isort: skip
import torch
import torch.distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torchtitan.components.checkpoint import MODEL, CheckpointManager

from models.errors import InputError

ASIDE = "damaged_checkpoints"  # beside the checkpoints' folder

os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"  # PyTorch's own calls of torch.load run no code


# ---- before a run ----


def newest(folder: Path, identity: str, last: int) -> tuple[int, list[str]]:
    """Find the newest whole checkpoint in a folder.

    Deletes what was not written to its end, and moves what is damaged away. Returns the step, 0 if
    there is none, and sentences about what was deleted and moved. Raises `InputError` if the
    checkpoint is of another run than `identity`, or beyond the step `last`.
    """
    said = delete_unfinished(folder)
    mend = f"move {folder} away, or choose another --out"
    for step, path in sorted(_found(folder).items(), reverse=True):
        damage = _find_damage(path)
        if damage:
            said.append(_set_aside(path, damage))
            continue
        if step > last:
            raise InputError(f"{path} is beyond training.steps={last}: raise it, {mend}")
        found = _identity(path)
        if found != identity:
            raise InputError(
                f"{path} is of another run ({found} there, {identity} here): give the data and "
                f"keys that it was made with, {mend}"
            )
        return step, said
    with suppress(OSError):
        folder.rmdir()  # an empty one would keep torchtitan from initial_load_path
    return 0, said


def delete_unfinished(folder: Path) -> list[str]:
    """Delete incomplete checkpoints; return a sentence about each."""
    said = []
    for path in _found(folder).values():
        if not (path / ".metadata").exists():
            shutil.rmtree(path, ignore_errors=True)
            said.append(f"{path} was not written to its end: deleted")
    return said


def _found(folder: Path) -> dict[int, Path]:
    """List the checkpoints of a folder by step. Without `.distcp` files a folder is none."""
    paths = {file.parent for file in folder.glob("step-*/*.distcp")}
    steps = {path: path.name.removeprefix("step-") for path in paths}
    return {int(step): path for path, step in steps.items() if step.isdecimal()}


def _set_aside(path: Path, damage: str) -> str:
    aside = path.parent.with_name(ASIDE)
    aside.mkdir(exist_ok=True)
    place = aside / f"{path.name}-{time():.0f}"
    path.rename(place)
    return f"{path} is damaged ({damage}): moved to {place}, and not loaded"


def _identity(checkpoint: Path) -> str:
    """Read the identity of a whole checkpoint's run, from the trainer's `state_dict`."""
    state = {"train_state": {"identity": ""}}
    try:
        load(state, checkpoint)
    except CheckpointException:  # it has none
        return "none of a run"
    return state["train_state"]["identity"]


# ---- in a run ----


class Checkpoints(CheckpointManager):
    """Checkpoints of one run."""

    def save(self, curr_step: int, last_step: bool = False) -> None:
        """Save where it is due. Raises `CheckpointException`."""
        super().save(curr_step, last_step)
        if last_step and self.enable:  # torchtitan leaves one too many
            self._purge_stale_checkpoints()

    def _purge_stale_checkpoints(self) -> None:
        """Delete all but the last `keep_latest_k` (0 keeps all); torchtitan deletes whatever has
        `step-<int>` in its name."""
        if dist.get_rank() == 0:
            for step in sorted(_found(Path(self.folder)))[: -self.keep_latest_k]:
                self.purge_queue.put(self._create_checkpoint_id(step))

    def close(self) -> None:
        """Wait for a save under way, unlike torchtitan; delete the files of a failed save.

        The run's last records may need their room.
        """
        begun = self.enable and dist.is_initialized()
        if begun:
            with suppress(CheckpointException):
                self._async_wait()
        super().close()  # waits for what is being deleted
        if begun and dist.get_rank() == 0:
            delete_unfinished(Path(self.folder))

    def dcp_load(self, state_dict: dict, checkpoint_id: str, **_) -> None:
        """Load plain data only. Raises `CheckpointException`."""
        there = _Reader(checkpoint_id).read_metadata().state_dict_metadata
        [model] = self.states[MODEL].model
        buffers = {name.rpartition(".")[2] for name, _ in model.named_buffers()}
        for name in state_dict.keys() - there.keys():
            if name.rpartition(".")[2] in buffers:
                del state_dict[name]  # a buffer that the checkpoint lacks begins anew
        load(state_dict, checkpoint_id)
        self.states[MODEL].load_state_dict(state_dict)


# ---- reading checkpoints ----


def load(state_dict: dict, checkpoint: str | Path) -> None:
    """Load plain data as `torch.distributed.checkpoint.load` does. Raises `CheckpointException`."""
    dcp.load(state_dict, storage_reader=_Reader(checkpoint))


def _find_damage(checkpoint: Path) -> str:
    """Read every item and compare its CRC-32; say what is wrong, nothing if the checkpoint is
    whole.

    torch.save writes each item as a zip archive with checksums, which torch.load does not look at.
    """

    def check(item) -> None:
        with open(checkpoint / item.relative_path, "rb") as file:
            file.seek(item.offset)
            content = io.BytesIO(file.read(item.length))
        if zipfile.ZipFile(content).testzip():
            raise zipfile.BadZipFile(f"{item.relative_path}: wrong checksum")

    try:
        items = _Reader(checkpoint).read_metadata().storage_data.values()
        with ThreadPoolExecutor(4) as readers:  # each holds an item, up to 1 GiB for 8 B parameters
            list(readers.map(check, items))
    except Exception as error:  # whatever reading damaged files raises
        return f"{type(error).__name__}: {error}"
    return ""


class _Reader(dcp.FileSystemReader):
    def read_metadata(self, *_, **__) -> dcp.Metadata:
        with open(self.path / ".metadata", "rb") as file:
            return _PlainUnpickler(file).load()


class _PlainUnpickler(pickle.Unpickler):
    """Refuses what no checkpoint needs, before it can run code."""

    def find_class(self, module: str, name: str):
        if (module, name) == ("pathlib", "PosixPath"):
            return os.path.join  # text: a pickle can set attributes of the classes that it gets
        if f"{module}.{name}" not in _PLAIN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is no plain data")
        return super().find_class(module, name)


_PLAIN = {
    "torch.distributed.checkpoint.metadata.BytesStorageMetadata",
    "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
    "torch.distributed.checkpoint.metadata.Metadata",
    "torch.distributed.checkpoint.metadata.MetadataIndex",
    "torch.distributed.checkpoint.metadata.StorageMeta",
    "torch.distributed.checkpoint.metadata.TensorProperties",
    "torch.distributed.checkpoint.metadata.TensorStorageMetadata",
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.serialization._get_layout",
    "torch.Size",
    "collections.OrderedDict",
    *(str(value) for value in vars(torch).values() if isinstance(value, torch.dtype)),
}
