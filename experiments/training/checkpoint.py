"""Save and load torchtitan's checkpoints of one run, and guard what torchtitan does not.

A damaged checkpoint is found before it is loaded; run_directory.py refuses a foreign one before the
run writes anything. One can be asked for at any step. Nothing but checkpoints is deleted. And a
checkpoint from elsewhere can hold wrong weights, but it cannot run code: all that is read of it is
numbers, text, tensors and the classes of PyTorch's own lists.

On disk a checkpoint is a folder `step-<int>` of torch.distributed.checkpoint: files `*.distcp` of
items, each as torch.save writes it, and `.metadata`, a pickle that lists the items. PyTorch writes
.metadata last and by renaming it: a folder without one was never finished.
"""

import io
import pickle
import shutil
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path

import models.device  # noqa: F401  # before torchtitan: see there  # isort: skip
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torchtitan.components.checkpoint import MODEL, CheckpointManager
from torchtitan.tools.logging import logger

from models.errors import InputError

ASIDE = "damaged_checkpoints"  # beside the checkpoints' folder


# ---- in a run ----


class Checkpoints(CheckpointManager):
    """Checkpoints of one run.

    `asked` makes the next step boundary save, whatever the interval.
    """

    asked = False

    # ---- saving ----

    def _should_save(self, curr_step: int, last_step: bool = False) -> bool:
        return super()._should_save(curr_step, last_step) or (self.asked and self.enable)

    def save(self, curr_step: int, last_step: bool = False) -> None:
        """Save where it is due. Raises `CheckpointException`."""
        with self._saving():
            super().save(curr_step, last_step)
        if last_step and self.enable:  # torchtitan leaves one too many
            self._purge_stale_checkpoints()

    def close(self) -> None:
        """Wait for a save that is under way, which torchtitan does not, and end its threads."""
        if self.enable:
            with self._saving():
                self._async_wait()
        super().close()

    @contextmanager
    def _saving(self) -> Iterator[None]:
        """Delete what was written of a checkpoint that fails: the run's last records may need its
        room."""
        try:
            yield
        except CheckpointException:
            self.save_future = None  # reported once
            self._delete_unfinished()
            raise

    def _purge_stale_checkpoints(self) -> None:
        """Delete all but the last `keep_latest_k` (0: none); torchtitan deletes whatever has
        `step-<int>` in its name."""
        for step in steps(Path(self.folder))[: -self.keep_latest_k]:
            self.purge_queue.put(self._create_checkpoint_id(step))

    # ---- loading ----

    def load(self, step: int = -1) -> bool:
        """Load the newest whole checkpoint, or the one at initial_load_path; return False if there
        is none.

        Raises `InputError` for damaged first weights, and `CheckpointException`.
        """
        return super().load(self._newest_whole() if self.enable else step)

    def _newest_whole(self) -> int:
        """Find the step of the newest whole checkpoint, -1 if there is none; clear others away."""
        folder = Path(self.folder)
        self._delete_unfinished()
        for step in reversed(steps(folder)):
            checkpoint = folder / f"step-{step}"
            try:
                check(checkpoint)
                return step
            except Exception as error:  # whatever reading damaged files raises
                self._set_aside(checkpoint, error)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()  # or torchtitan would not look at initial_load_path
        if self.initial_load_path:
            try:
                check(Path(self.initial_load_path))
            except Exception as error:
                raise InputError(
                    f"checkpoint.initial_load_path={self.initial_load_path} is damaged ({error}): "
                    "give another checkpoint"
                ) from error
        return -1

    def _delete_unfinished(self) -> None:
        for step in steps(Path(self.folder), whole=False):
            checkpoint = self._create_checkpoint_id(step)
            logger.warning(f"{checkpoint} was not written to its end: deleted")
            shutil.rmtree(checkpoint)

    def _set_aside(self, checkpoint: Path, error: Exception) -> None:
        aside = Path(self.folder).parent / ASIDE
        aside.mkdir(exist_ok=True)
        place = aside / f"{checkpoint.name}-{len(list(aside.iterdir()))}"
        checkpoint.rename(place)
        logger.warning(f"{checkpoint} is damaged ({error}): moved to {place}, and not loaded")

    def _find_load_step(self, folder: str = "") -> int:
        """Find the newest finished checkpoint; torchtitan takes any name with a number."""
        return max(steps(Path(self.folder)), default=-1)

    def dcp_load(self, state_dict: dict, checkpoint_id: str, **_) -> None:
        """Load plain data only. Raises `CheckpointException`."""
        there = _Reader(checkpoint_id).read_metadata().state_dict_metadata
        [model] = self.states[MODEL].model
        buffers = {name.rpartition(".")[2] for name, _ in model.named_buffers()}
        for name in [*state_dict]:
            if name not in there and name.rpartition(".")[2] in buffers:
                del state_dict[name]  # a buffer that the checkpoint lacks begins anew
        load(state_dict, checkpoint_id)
        self.states[MODEL].load_state_dict(state_dict)


# ---- reading checkpoints ----


def steps(folder: Path, whole: bool = True) -> list[int]:
    """List the steps of a folder's checkpoints, ascending: the whole ones, or the unfinished ones.

    Links, and folders without `.distcp` files, are no checkpoints, whatever their names.
    """
    found = set()
    for file in folder.glob("step-*/*.distcp"):
        path, step = file.parent, file.parent.name.removeprefix("step-")
        ours = step.isdecimal() and not path.is_symlink()
        if ours and (path / ".metadata").is_file() == whole:
            found.add(int(step))
    return sorted(found)


def identity(checkpoint: Path) -> str:
    """Read whose a checkpoint is, from the trainer's `state_dict`. Raises whatever reading a
    damaged file raises."""
    reader = _Reader(checkpoint)
    item = reader.read_metadata().storage_data[MetadataIndex("train_state.identity")]
    return torch.load(reader.content(item), weights_only=True)


def check(checkpoint: Path) -> None:
    """Read every item and compare its CRC-32. Raises whatever reading a damaged file raises.

    torch.save writes each item as a zip archive with checksums, which torch.load does not look at.
    """
    reader = _Reader(checkpoint)

    def check_item(item) -> None:
        if zipfile.ZipFile(reader.content(item)).testzip():
            raise zipfile.BadZipFile(f"{item.relative_path}: wrong checksum")

    items = reader.read_metadata().storage_data.values()
    with ThreadPoolExecutor(4) as readers:  # each holds an item, up to 1 GiB for 8 B parameters
        list(readers.map(check_item, items))


def load(state_dict: dict, checkpoint: str | Path) -> None:
    """Load plain data as `torch.distributed.checkpoint.load` does. Raises `CheckpointException`."""
    dcp.load(state_dict, storage_reader=_Reader(checkpoint), planner=_Planner())


class _Reader(dcp.FileSystemReader):
    def read_metadata(self, *_, **__) -> dcp.Metadata:
        with open(self.path / ".metadata", "rb") as file:
            return _PlainUnpickler(file).load()

    def content(self, item) -> io.BytesIO:
        with open(self.path / item.relative_path, "rb") as file:
            file.seek(item.offset)
            return io.BytesIO(file.read(item.length))


class _Planner(DefaultLoadPlanner):
    def load_bytes(self, read_item, value: io.BytesIO) -> None:
        """Load an item that is no tensor. Raises if it is more than plain data."""
        torch.load(value, weights_only=True)
        value.seek(0)
        super().load_bytes(read_item, value)


class _PlainUnpickler(pickle._Unpickler):
    """Refuses the classes that no checkpoint needs, before they can run code.

    Python's own implementation, because it lets one operation be replaced: BUILD, which sets
    attributes, is for instances of the dataclasses among them, not for the classes themselves.
    """

    dispatch = dict(pickle._Unpickler.dispatch)  # noqa: RUF012  # never changed

    def find_class(self, module: str, name: str):
        if f"{module}.{name}" not in _PLAIN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is no plain data")
        return super().find_class(module, name)

    def load_build(self):
        built = self.stack[-2]
        if isinstance(built, type) or not is_dataclass(built):
            raise pickle.UnpicklingError(f"it sets attributes of {built!r}, which is no plain data")
        super().load_build()

    dispatch[pickle.BUILD[0]] = load_build


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
    "pathlib.PosixPath",
    "collections.OrderedDict",
    *(str(value) for value in vars(torch).values() if isinstance(value, torch.dtype)),
}
