"""Save and load torchtitan's checkpoints of one run, and guard what torchtitan does not.

A damaged checkpoint is found, and a foreign one refused, before a run begins. A checkpoint from
elsewhere can hold wrong weights, but it cannot run code: all that is read of it is numbers, text,
tensors and the classes of PyTorch's own lists.

On disk a checkpoint is a folder `step-<int>` of torch.distributed.checkpoint: files `*.distcp` of
items, each as torch.save writes it, and `.metadata`, a pickle that lists the items. PyTorch writes
.metadata last and by renaming it: a folder without one was never finished. Beside it stands its
digest, in the format of sha256sum; checkpoints of other programs have none.

`Checkpoints` knows private names of torchtitan's `CheckpointManager`: each has a comment.
"""

import hashlib
import io
import os
import pickle
import shutil
import warnings
import zipfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from math import prod
from pathlib import Path
from time import time
from typing import Any

import models.device  # noqa: F401  # before torchtitan: see there  # isort: skip
import torch
import torch.distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import (
    FileSystem,
    _FileSystemWriter,
    _StorageInfo,
)
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
from torch.distributed.checkpoint.storage import WriteResult
from torchtitan.components.checkpoint import MODEL, AsyncMode, CheckpointManager
from torchtitan.tools.utils import GarbageCollection

from experiments.records.files import disk_full, write_whole
from models.errors import InputError

DAMAGED_FOLDER = "damaged_checkpoints"  # beside the checkpoints' folder
METADATA = ".metadata"
DIGEST = ".metadata.sha256"
ITEM_BYTES = 1500  # of an item's zip archive, besides its tensor
READING_THREADS = 4  # each holds an item twice, of up to 1 GiB for 8 B parameters

os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"  # PyTorch's own calls of torch.load run no code


# ---- before a run ----


def find_newest(folder: Path, identity: str, last_step: int) -> tuple[int, list[str]]:
    """Find the newest whole checkpoint in a folder.

    Deletes what was not written to its end, and moves what is damaged away. Raises `InputError` if
    the checkpoint is of another run than `identity`, or beyond `last_step`.

    Returns:
        The step, 0 without a checkpoint, and sentences about what was deleted and moved.
    """
    sentences = delete_unfinished(folder)
    choices = f"move {folder} away, or choose another --out"
    for step, path in sorted(list_checkpoints(folder).items(), reverse=True):
        damage = find_damage(path)
        if damage:
            sentences.append(_move_damaged(path, damage))
            continue
        if step > last_step:
            raise InputError(f"{path} is beyond training.steps={last_step}: raise it, {choices}")
        checkpoint_identity = _read_identity(path)
        if checkpoint_identity != identity:
            raise InputError(
                f"{path} is of another run ({checkpoint_identity} there, {identity} here): give "
                f"the data and keys that it was made with, {choices}"
            )
        return step, sentences
    return 0, sentences


def delete_unfinished(folder: Path) -> list[str]:
    """Delete incomplete checkpoints; return a sentence about each."""
    sentences = []
    for path in list_checkpoints(folder).values():
        if not (path / METADATA).exists():
            shutil.rmtree(path, ignore_errors=True)
            sentences.append(f"{path} was not written to its end: deleted")
    return sentences


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

    A folder with neither items nor .metadata is not a checkpoint.
    """
    path_by_step = {}
    for file in [*folder.glob("step-*/*.distcp"), *folder.glob(f"step-*/{METADATA}")]:
        step = file.parent.name.removeprefix("step-")
        if step.isdecimal():
            path_by_step[int(step)] = file.parent
    return path_by_step


def _move_damaged(path: Path, damage: str) -> str:
    """Move a damaged checkpoint away; return a sentence."""
    folder = path.parent.with_name(DAMAGED_FOLDER)
    folder.mkdir(exist_ok=True)
    new_path = folder / f"{path.name}-{time():.0f}"
    path.rename(new_path)
    return f"{path} is damaged ({damage}): moved to {new_path}, and not loaded"


def _read_identity(checkpoint: Path) -> str:
    """Read the identity of a whole checkpoint's run, from the trainer's `state_dict`."""
    state = {"train_state": {"identity": ""}}
    try:
        with warnings.catch_warnings():  # one that there is a single process, as is so here
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            load_plain(state, checkpoint)
    except CheckpointException:  # it has no identity
        return "none of a run"
    return state["train_state"]["identity"]


# ---- in a run ----


class Checkpoints(CheckpointManager):
    """Checkpoints of one run."""

    def load(self, step: int = 0) -> bool:
        """Load the checkpoint of a step; 0: of initial_load_path, or nothing without that key.

        Raises `CheckpointException`.
        """
        if step or not self.enable:
            return super().load(step)
        if self.initial_load_path:
            # torchtitan's `load` would search for a step by itself, and leave initial_load_path
            # unread where the run's folder of checkpoints exists
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
            return f"the last checkpoint was not written: {find_first_cause(error)}"
        return ""

    def request_save(self, step: int) -> None:
        """Have the next call of `save` at this step save a checkpoint, where the recipe has any."""
        self.interval = step  # torchtitan saves at multiples of it

    def is_save_due(self, step: int) -> bool:
        """Tell if `save` will save a checkpoint at this step."""
        return self._should_save(step)  # torchtitan's own answer in `save`

    def wait_for_save(self) -> None:
        """Wait for a save under way. Raises `CheckpointException` if it fails."""
        self._async_wait()  # torchtitan calls it before the next save only

    def close(self) -> None:
        """Wait for a save under way, unlike torchtitan; delete the files of a failed save.

        The run's last records may need their room.
        """
        may_have_saved = self.enable and dist.is_initialized()
        if may_have_saved:
            with suppress(CheckpointException):
                self.wait_for_save()
        super().close()  # waits for what is being deleted
        if may_have_saved and dist.get_rank() == 0:
            delete_unfinished(Path(self.folder))

    def _purge_stale_checkpoints(self) -> None:
        """Delete all but the last `keep_latest_k` (0 keeps all), in torchtitan's place: its own
        deletes whatever has `step-<int>` in its name."""
        if dist.get_rank() == 0:
            for step in sorted(list_checkpoints(Path(self.folder)))[: -self.keep_latest_k]:
                self.purge_queue.put(self._create_checkpoint_id(step))

    @torch.no_grad()
    def dcp_save(
        self,
        state_dict: dict[str, Any],
        checkpoint_id: str,
        async_mode: AsyncMode,
        enable_garbage_collection: bool = False,
        to_hf: bool = False,
    ) -> Future | AsyncSaveResponse | None:
        """Save with a digest, and word a full disk. Raises `CheckpointException`."""
        writer = DigestWriter(checkpoint_id)
        if async_mode == AsyncMode.DISABLED:
            dcp.save(state_dict, storage_writer=writer)
            if enable_garbage_collection:
                GarbageCollection.collect("GC collection invoked by checkpointer.")
            return None
        checkpointer_type = AsyncCheckpointerType.THREAD
        stager = None
        if async_mode == AsyncMode.ASYNC_WITH_PINNED_MEM:
            checkpointer_type = AsyncCheckpointerType.PROCESS
            stager = self.stager
        return dcp.async_save(
            state_dict,
            storage_writer=writer,
            process_group=self.pg,
            async_checkpointer_type=checkpointer_type,
            async_stager=stager,
        )

    def dcp_load(
        self,
        state_dict: dict[str, Any],
        checkpoint_id: str,
        from_hf: bool = False,
        from_quantized: bool = False,
    ) -> None:
        """Load plain data only. Raises `CheckpointException`."""
        stored_names = PlainReader(checkpoint_id).read_metadata().state_dict_metadata.keys()
        [model] = self.states[MODEL].model
        buffers = {_last_part(name) for name, _ in model.named_buffers()}
        for name in state_dict.keys() - stored_names:
            if _last_part(name) in buffers:
                del state_dict[name]  # a buffer that the checkpoint lacks begins anew
        load_plain(state_dict, checkpoint_id)
        self.states[MODEL].load_state_dict(state_dict)


def _last_part(name: str) -> str:
    """Return the last part of a name with dots."""
    return name.rpartition(".")[2]


# ---- writing checkpoints ----


def find_first_cause(error: CheckpointException) -> BaseException:
    """Return the first failed rank's error."""
    first_error, _traceback = list(error.failures.values())[0]
    return first_error


class DigestWriter(_FileSystemWriter):
    """Writes a checkpoint, and the digest of its .metadata last."""

    def __init__(self, path: str):
        super().__init__(path)
        self.fs = _CheckpointFiles()

    def write_data(
        self, plan: dcp.SavePlan, planner: dcp.SavePlanner
    ) -> torch.futures.Future[list[WriteResult]]:
        """Write the items of this rank. Raises `DiskFull`."""
        needed_bytes = ITEM_BYTES * len(plan.items)
        for item in plan.items:
            if item.tensor_data:
                itemsize = item.tensor_data.properties.dtype.itemsize
                needed_bytes += prod(item.tensor_data.chunk.sizes) * itemsize
        file = Path(self.path, f"{plan.storage_data.prefix}0.distcp")
        with disk_full(file, needed_bytes, file):
            return super().write_data(plan, planner)

    def finish(self, metadata: dcp.Metadata, results: list) -> None:
        """Write .metadata and its digest, on rank 0. Raises `DiskFull`."""
        folder = Path(self.path)
        with disk_full(folder / METADATA, len(pickle.dumps((metadata, results)))):
            super().finish(metadata, results)
        write_whole(folder / DIGEST, f"{hash_metadata(folder)}  {METADATA}\n")


class _CheckpointFiles(FileSystem):
    @contextmanager
    def create_stream(self, path: str | os.PathLike, mode: str) -> Iterator[io.IOBase]:
        """Open a file. Raises the system's error: torch.save raises another one after it, about
        positions."""
        stream = _ErrorKeepingStream(io.FileIO(path, mode))
        try:
            with stream:
                yield stream
        except Exception as error:
            raise (stream.error or error) from None
        if stream.error:
            raise stream.error


class _ErrorKeepingStream(io.BufferedWriter):
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


def load_plain(state_dict: dict[str, Any], checkpoint: str | Path) -> None:
    """Load plain data as `torch.distributed.checkpoint.load` does. Raises `CheckpointException`."""
    dcp.load(state_dict, storage_reader=PlainReader(checkpoint))


def find_damage(checkpoint: Path) -> str:
    """Read all of a checkpoint; return what is damaged, or nothing.

    Raises `InputError` for a whole checkpoint that only another version of PyTorch can read.
    """
    is_sealed = False
    metadata = None
    try:
        is_sealed = _check_digest(checkpoint)
        metadata = PlainReader(checkpoint).read_metadata()
        _check_items(checkpoint, metadata)
    except Exception as error:  # whatever reading damaged files raises
        damage = f"{type(error).__name__}: {error}"
        if is_sealed and metadata is None:
            raise InputError(
                f"{checkpoint} is whole, and PyTorch {torch.__version__} cannot read it "
                f"({damage}): resume with the PyTorch that wrote it, which run.json names, or "
                "choose another --out"
            ) from error
        return damage
    return ""


def hash_metadata(checkpoint: Path) -> str:
    """Return the SHA-256 of .metadata."""
    return hashlib.sha256((checkpoint / METADATA).read_bytes()).hexdigest()


def _check_digest(checkpoint: Path) -> bool:
    """Compare .metadata with its digest; False without one, or if the machine died before the
    digest was on the disk. Raises ValueError and OSError."""
    file = checkpoint / DIGEST
    text = file.read_text("ascii") if file.exists() else ""
    if text and not text.startswith(hash_metadata(checkpoint)):
        raise ValueError(f"{METADATA}: wrong checksum")
    return bool(text)


def _check_items(checkpoint: Path, metadata: dcp.Metadata) -> None:
    """Check all items of a checkpoint against .metadata. Raises whatever reading damaged files
    raises."""
    indices = set()
    for name, stored in metadata.state_dict_metadata.items():
        if isinstance(stored, TensorStorageMetadata):
            indices |= {MetadataIndex(name, chunk.offsets) for chunk in stored.chunks}
        else:
            indices.add(MetadataIndex(name))
    if indices != metadata.storage_data.keys():
        raise ValueError(f"{METADATA}: lists other items than it describes")

    def check_item(item: tuple) -> None:
        index, place = item
        _check_item(checkpoint, metadata, index, place)

    with ThreadPoolExecutor(READING_THREADS) as threads:
        list(threads.map(check_item, metadata.storage_data.items()))


def _check_item(
    checkpoint: Path, metadata: dcp.Metadata, index: MetadataIndex, place: _StorageInfo
) -> None:
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
        size_by_offset: dict[torch.Size | None, torch.Size] = {}
        for chunk in stored.chunks:
            size_by_offset[chunk.offsets] = chunk.sizes
        expected = (stored.properties.dtype, size_by_offset[index.offset])
        if (value.dtype, value.shape) != expected:
            raise ValueError(f"{place.relative_path}: {index.fqn} is not what {METADATA} describes")


class PlainReader(dcp.FileSystemReader):
    """Reads a checkpoint without running code of its .metadata."""

    def read_metadata(self, *_, **__) -> dcp.Metadata:
        with open(Path(self.path, METADATA), "rb") as file:
            return _PlainUnpickler(file).load()


class _PlainUnpickler(pickle.Unpickler):
    """Refuses what no checkpoint needs, before it can run code."""

    def find_class(self, module: str, name: str):
        full_name = f"{module}.{name}"
        if name == "PosixPath" and module.startswith("pathlib"):
            return os.path.join  # text: a pickle can set attributes of the classes that it gets
        if full_name in ("builtins.getattr", "__builtin__.getattr"):
            return _find_memory_format  # Python 3.11.0 to 3.11.3 pickle members of an Enum so
        if full_name == "torch.distributed.checkpoint.metadata.TensorProperties":
            return _PropertiesWithoutStrides
        if full_name not in PLAIN_NAMES:
            raise pickle.UnpicklingError(f"it asks for {full_name}, which is not plain data")
        return super().find_class(module, name)


def _find_memory_format(kind: type, name: str) -> _MEM_FORMAT_ENCODING:
    """Look up a member of the one Enum in a checkpoint."""
    if kind is not _MEM_FORMAT_ENCODING:
        raise pickle.UnpicklingError(f"it asks for an attribute of {kind}")
    return kind[name]


class _PropertiesWithoutStrides(TensorProperties):
    """The properties of a tensor, without the strides of torch 2.15."""

    def __setstate__(self, state: tuple) -> None:
        super().__setstate__(state[:5])


PLAIN_NAMES = {
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
}
"""The classes and functions that a pickle may ask for."""
