"""Save and load torchtitan's checkpoints of one run, and guard what torchtitan does not.

A damaged checkpoint is found, and a foreign one refused, before a run begins. A checkpoint from
elsewhere can hold wrong weights, but it cannot run code: all that is read of it is numbers, text,
tensors and the classes of PyTorch's own lists.

On disk a checkpoint is a folder `step-<int>` of torch.distributed.checkpoint: files `*.distcp` of
items, each as torch.save writes it, and `.metadata`, a pickle that lists the items. PyTorch writes
.metadata last and by renaming it: a folder without one was never finished. Beside it stands its
digest, in the format of sha256sum; checkpoints of other programs have none.
"""

import hashlib
import io
import os
import pickle
import shutil
import zipfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from math import prod
from pathlib import Path
from time import time

import models.device  # noqa: F401  # before torchtitan: see there  # isort: skip
import torch
import torch.distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem, _FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_saver import (
    AsyncCheckpointerType,
    AsyncSaveResponse,
)
from torchtitan.components.checkpoint import MODEL, AsyncMode, CheckpointManager
from torchtitan.tools.utils import GarbageCollection

from experiments.records.files import disk_full, write_whole
from models.errors import InputError

ASIDE = "damaged_checkpoints"  # beside the checkpoints' folder
METADATA = ".metadata"
DIGEST = ".metadata.sha256"
ITEM_BYTES = 1500  # of a zip archive, besides its tensor

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
    for step, path in sorted(list_checkpoints(folder).items(), reverse=True):
        damage = find_damage(path)
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
    for path in list_checkpoints(folder).values():
        if not (path / METADATA).exists():
            shutil.rmtree(path, ignore_errors=True)
            said.append(f"{path} was not written to its end: deleted")
    return said


def delete_all(folder: Path) -> list[str]:
    """Delete the checkpoints of a run, and their folder if it is empty then; return a sentence."""
    paths = list_checkpoints(folder).values()
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        folder.rmdir()
    if not paths:
        return []
    return [
        f"{folder}: the run is completed, and only an overlay turned checkpoints on: deleted. "
        "checkpoint.enable=true on the command line keeps the last one"
    ]


def list_checkpoints(folder: Path) -> dict[int, Path]:
    """List the checkpoints of a folder by step, whole or not.

    A folder with neither items nor .metadata is none.
    """
    files = [*folder.glob("step-*/*.distcp"), *folder.glob(f"step-*/{METADATA}")]
    paths = {file.parent for file in files}
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

    def load(self, step: int = 0) -> bool:
        """Load the checkpoint of a step; 0: of initial_load_path, or nothing without that key.

        torchtitan would look for a step by itself, and leave initial_load_path unread where the
        run's folder of checkpoints is there. Raises `CheckpointException`.
        """
        if step or not self.enable:
            return super().load(step)
        if self.initial_load_path:
            states = self._states_to_load(self.initial_load_model_only)
            self.dcp_load(states, self.initial_load_path)
        return bool(self.initial_load_path)

    def save(self, curr_step: int, last_step: bool = False) -> None:
        """Save where it is due. Raises `CheckpointException`."""
        super().save(curr_step, last_step)
        if last_step and self.enable:  # torchtitan leaves one too many
            self._purge_stale_checkpoints()

    def save_last(self, step: int) -> str:
        """Save after the last step; return the reason if it fails, or nothing.

        All steps are done and on record: without this checkpoint the run is whole.
        """
        try:
            self.save(step, last_step=True)
        except CheckpointException as error:
            return f"the last checkpoint was not written: {cause_of(error)}"
        return ""

    def _purge_stale_checkpoints(self) -> None:
        """Delete all but the last `keep_latest_k` (0 keeps all); torchtitan deletes whatever has
        `step-<int>` in its name."""
        if dist.get_rank() == 0:
            for step in sorted(list_checkpoints(Path(self.folder)))[: -self.keep_latest_k]:
                self.purge_queue.put(self._create_checkpoint_id(step))

    @torch.no_grad()
    def dcp_save(
        self,
        state_dict: dict,
        checkpoint_id: str,
        async_mode: AsyncMode,
        enable_garbage_collection: bool = False,
        **_,
    ) -> Future | AsyncSaveResponse | None:
        """Save with a digest, and word a full disk. Raises `CheckpointException`."""
        writer = _Writer(checkpoint_id)
        if async_mode == AsyncMode.ASYNC:
            return dcp.async_save(state_dict, storage_writer=writer, process_group=self.pg)
        if async_mode == AsyncMode.ASYNC_WITH_PINNED_MEM:
            return dcp.async_save(
                state_dict,
                storage_writer=writer,
                process_group=self.pg,
                async_checkpointer_type=AsyncCheckpointerType.PROCESS,
                async_stager=self.stager,
            )
        dcp.save(state_dict, storage_writer=writer)
        if enable_garbage_collection:
            GarbageCollection.collect("GC collection invoked by checkpointer.")
        return None

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


# ---- writing checkpoints ----


def cause_of(error: CheckpointException) -> BaseException:
    """Return the first failed rank's error."""
    return next(iter(error.failures.values()))[0]


class _Writer(_FileSystemWriter):
    """Writes a checkpoint, and the digest of its .metadata last."""

    def __init__(self, path: str):
        super().__init__(path)
        self.fs = _Files()

    def write_data(self, plan: dcp.SavePlan, planner: dcp.SavePlanner) -> Future:
        """Write the items of this rank. Raises `DiskFull`."""
        tensors = [item.tensor_data for item in plan.items if item.tensor_data]
        needed = sum(prod(each.chunk.sizes) * each.properties.dtype.itemsize for each in tensors)
        needed += ITEM_BYTES * len(plan.items)
        file = self.path / f"{plan.storage_data.prefix}0.distcp"
        with disk_full(file, needed, file):
            return super().write_data(plan, planner)

    def finish(self, metadata: dcp.Metadata, results: list) -> None:
        """Write .metadata and its digest, on rank 0. Raises `DiskFull`."""
        with disk_full(self.path / METADATA, len(pickle.dumps((metadata, results)))):
            super().finish(metadata, results)
        write_whole(self.path / DIGEST, f"{_digest(self.path)}  {METADATA}\n")


class _Files(FileSystem):
    @contextmanager
    def create_stream(self, path: str | os.PathLike, mode: str) -> Iterator[io.IOBase]:
        """Open a file. Raises the system's error: torch.save raises another one after it, about
        positions."""
        stream = _Stream(io.FileIO(path, mode))
        try:
            with stream:
                yield stream
        except Exception as error:
            raise (stream.error or error) from None
        if stream.error:
            raise stream.error


class _Stream(io.BufferedWriter):
    """A file that remembers the first error of a write, and raises none.

    torch.save reports an error of positions in its place, and that of torch 2.15 ends the process.
    """

    error: OSError | None = None

    def write(self, content) -> int:
        try:
            return super().write(content)
        except OSError as error:
            self.error = self.error or error
            return memoryview(content).nbytes


# ---- reading checkpoints ----


def load(state_dict: dict, checkpoint: str | Path) -> None:
    """Load plain data as `torch.distributed.checkpoint.load` does. Raises `CheckpointException`."""
    dcp.load(state_dict, storage_reader=_Reader(checkpoint))


def find_damage(checkpoint: Path) -> str:
    """Read all of a checkpoint; return what is damaged, or nothing.

    Raises `InputError` for a whole checkpoint that only another version of PyTorch can read.
    """
    try:
        is_sealed = _check_digest(checkpoint)
    except (OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    try:
        metadata = _Reader(checkpoint).read_metadata()
    except Exception as error:  # whatever unpickling a damaged file raises
        if is_sealed:
            raise InputError(
                f"{checkpoint} is whole, and PyTorch {torch.__version__} cannot read it "
                f"({type(error).__name__}: {error}): resume with the PyTorch that wrote it, which "
                "run.json names, or choose another --out"
            ) from error
        return f"{type(error).__name__}: {error}"
    try:
        _check_items(checkpoint, metadata)
    except Exception as error:  # whatever reading damaged files raises
        return f"{type(error).__name__}: {error}"
    return ""


def _digest(checkpoint: Path) -> str:
    return hashlib.sha256((checkpoint / METADATA).read_bytes()).hexdigest()


def _check_digest(checkpoint: Path) -> bool:
    """Compare .metadata with its digest; False if there is none, or the machine died before it was
    on the disk. Raises ValueError and OSError."""
    file = checkpoint / DIGEST
    text = file.read_text("ascii") if file.exists() else ""
    if text and not text.startswith(_digest(checkpoint)):
        raise ValueError(f"{METADATA}: wrong checksum")
    return bool(text)


def _check_items(checkpoint: Path, metadata: dcp.Metadata) -> None:
    """Check all items of a checkpoint against .metadata. Raises whatever reading damaged files
    raises."""
    indices = set()
    for name, stored in metadata.state_dict_metadata.items():
        chunks = getattr(stored, "chunks", None)
        offsets = [chunk.offsets for chunk in chunks] if chunks else [None]
        indices |= {MetadataIndex(name, offset) for offset in offsets}
    if indices != metadata.storage_data.keys():
        raise ValueError(f"{METADATA}: lists other items than it describes")

    def check(item: tuple) -> None:
        _check_item(checkpoint, metadata, *item)

    with ThreadPoolExecutor(
        4
    ) as readers:  # each holds an item twice, of up to 1 GiB for 8 B parameters
        list(readers.map(check, metadata.storage_data.items()))


def _check_item(checkpoint: Path, metadata: dcp.Metadata, index: MetadataIndex, place) -> None:
    """Compare an item with its CRC-32, its type and its shape.

    torch.save writes each item as a zip archive with checksums, which torch.load does not look at.
    """
    with open(checkpoint / place.relative_path, "rb") as file:
        file.seek(place.offset)
        content = io.BytesIO(file.read(place.length))
    if zipfile.ZipFile(content).testzip():
        raise zipfile.BadZipFile(f"{place.relative_path}: wrong checksum")
    content.seek(0)
    value = torch.load(content, map_location="cpu", weights_only=True)
    stored = metadata.state_dict_metadata[index.fqn]
    if isinstance(stored, TensorStorageMetadata):
        sizes = {chunk.offsets: chunk.sizes for chunk in stored.chunks}
        if (value.dtype, value.shape) != (stored.properties.dtype, sizes[index.offset]):
            raise ValueError(f"{place.relative_path}: {index.fqn} is not what {METADATA} describes")


class _Reader(dcp.FileSystemReader):
    def read_metadata(self, *_, **__) -> dcp.Metadata:
        with open(self.path / METADATA, "rb") as file:
            return _PlainUnpickler(file).load()


class _PlainUnpickler(pickle.Unpickler):
    """Refuses what no checkpoint needs, before it can run code."""

    def find_class(self, module: str, name: str):
        place = f"{module}.{name}"
        if name == "PosixPath" and module.startswith("pathlib"):
            return os.path.join  # text: a pickle can set attributes of the classes that it gets
        if place in ("builtins.getattr", "__builtin__.getattr"):
            return _memory_format  # Python 3.11.0 to 3.11.3 pickle members of an Enum so
        if place not in _PLAIN:
            raise pickle.UnpicklingError(f"it asks for {place}, which is no plain data")
        return _PLAIN[place] or super().find_class(module, name)


def _memory_format(kind: type, name: str) -> _MEM_FORMAT_ENCODING:
    """Look up a member of the one Enum in a checkpoint."""
    if kind is not _MEM_FORMAT_ENCODING:
        raise pickle.UnpicklingError(f"it asks for an attribute of {kind}")
    return kind[name]


class _Properties(TensorProperties):
    """The properties of a tensor, without the strides of torch 2.15."""

    def __setstate__(self, state: tuple) -> None:
        super().__setstate__(state[:5])


_PLAIN = dict.fromkeys(
    [
        "torch.distributed.checkpoint.metadata.BytesStorageMetadata",
        "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
        "torch.distributed.checkpoint.metadata.Metadata",
        "torch.distributed.checkpoint.metadata.MetadataIndex",
        "torch.distributed.checkpoint.metadata.StorageMeta",
        "torch.distributed.checkpoint.metadata.TensorStorageMetadata",
        "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
        "torch.distributed.checkpoint.filesystem._StorageInfo",
        "torch.serialization._get_layout",
        "torch.Size",
        "collections.OrderedDict",
        *(str(value) for value in vars(torch).values() if isinstance(value, torch.dtype)),
    ]
)
"""What a pickle may ask for, by name; a value takes its place."""
_PLAIN["torch.distributed.checkpoint.metadata.TensorProperties"] = _Properties
