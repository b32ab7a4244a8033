"""torch's distributed checkpoints on disk: which there are, which are whole, and reading them as
plain data.

A checkpoint is a folder `step-<int>`: files `*.distcp` of items, each as torch.save writes it, and
`.metadata`, a pickle that lists them. PyTorch writes .metadata last and by renaming it: a folder
without one was never finished.

A pickle can run code when it is read. Here only numbers, text, tensors and the classes of PyTorch's
own lists are read, so a checkpoint from elsewhere can hold wrong weights, but it cannot run code.
"""

import io
import pickle
import re
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import MetadataIndex, StorageMeta

_READERS = 4  # threads; each holds one item, 1 GiB for the largest of 8 B parameters
_METADATA_CLASSES = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
        "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", *(name for name, value in vars(torch).items() if isinstance(value, torch.dtype))},
    "pathlib": {"Path", "PosixPath"},
    "collections": {"OrderedDict"},
}  # fmt: skip


class NotPlainDataError(ValueError):
    """A pickle asks for a class that no checkpoint needs."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str):
        if name not in _METADATA_CLASSES.get(module, ()):
            raise NotPlainDataError(f"it asks for {module}.{name}, which is no plain data")
        return super().find_class(module, name)


def steps(folder: Path, whole: bool = True) -> list[int]:
    """Steps of a folder's checkpoints, ascending: of those with .metadata, or of those that were
    never finished.

    Folders without `.distcp` files and links are no checkpoints, whatever their names.
    """
    checkpoints = []
    for path in folder.glob("step-*"):
        is_checkpoint = (
            re.fullmatch(r"step-(0|[1-9]\d*)", path.name)
            and path.is_dir()
            and not path.is_symlink()
        )
        if is_checkpoint and any(path.glob("*.distcp")) and (path / ".metadata").is_file() == whole:
            checkpoints.append(int(path.name.removeprefix("step-")))
    return sorted(checkpoints)


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint's files, None if nothing: every item is read and its CRC-32
    compared.

    torch.save writes each item as a zip archive with checksums, which torch.load does not look at.
    """
    try:
        items = _Reader(checkpoint).read_metadata().storage_data.values()
        with ThreadPoolExecutor(_READERS) as readers:
            return next(
                filter(None, readers.map(lambda item: _damaged_item(checkpoint, item), items)), None
            )
    except Exception as error:  # whatever unpickling a damaged .metadata raises
        return f".metadata: {type(error).__name__}: {error}"


def _damaged_item(checkpoint: Path, item) -> str | None:
    try:
        with zipfile.ZipFile(io.BytesIO(_content(checkpoint, item))) as archive:
            broken = archive.testzip()
    except Exception as error:  # whatever reading a damaged archive raises
        return f"{item.relative_path}: {error}"
    return broken and f"{item.relative_path}: wrong checksum"


def _content(checkpoint: Path, item) -> bytes:
    with open(checkpoint / item.relative_path, "rb") as file:
        file.seek(item.offset)
        return file.read(item.length)


def read_item(checkpoint: Path, name: str) -> object:
    """One item of a whole checkpoint that is no tensor; None if it is not there."""
    item = _Reader(checkpoint).read_metadata().storage_data.get(MetadataIndex(name))
    return item and torch.load(io.BytesIO(_content(checkpoint, item)), weights_only=True)


def tensors(checkpoint: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Size and dtype of a checkpoint's tensors, by name. Raises whatever unpickling a damaged
    .metadata raises."""
    items = _Reader(checkpoint).read_metadata().state_dict_metadata
    return {
        name: (item.size, item.properties.dtype)
        for name, item in items.items()
        if hasattr(item, "size")
    }


def load(state_dict: dict, checkpoint: Path) -> None:
    """`torch.distributed.checkpoint.load` of plain data only. All ranks call it."""
    from torchtitan.components import dataloader  # which keeps its state as a pickle of numbers

    plain_pickle = SimpleNamespace(
        dumps=pickle.dumps, loads=lambda data: _PlainUnpickler(io.BytesIO(data)).load()
    )
    with patch.object(dataloader, "pickle", plain_pickle):
        dcp.load(state_dict, storage_reader=_Reader(checkpoint), planner=_Planner())


class _Reader(dcp.FileSystemReader):
    def read_metadata(self, *_, **__):
        with open(Path(self.path) / ".metadata", "rb") as file:
            metadata = _PlainUnpickler(file).load()
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _Planner(DefaultLoadPlanner):
    def load_bytes(self, read_item, value: io.BytesIO) -> None:
        torch.load(value, weights_only=True)  # raises where there is more than plain data
        value.seek(0)
        super().load_bytes(read_item, value)
