"""Prepare a token file once, from documents and a tokenizer, and open it.

A token file is a folder `<data.cache_dir>/<dataset>-<content hash>/`:

    tokens.bin       each document's tokens and an end-of-text; uint16 where the vocabulary fits
                     into 16 bits, else uint32
    documents.npy    int64 [number of documents + 1]: the offset in tokens.bin of each document,
                     and the end
    tokenizer.json   the tokenizer that encoded the documents
    meta.json        the corpus, the vocabulary's size, end-of-text, dtype
    checksum         blake2b of these four

The content hash covers the corpus, the tokenizer, `data.max_tokens` and the format's version. A
corpus or tokenizer of Hugging Face's hub enters the hash by name, not by content, so that a node
without internet finds what was prepared elsewhere. The end-of-text token enters the hash only where
older versions chose another one, and, with a tokenizer of the hub, where `data.end_of_text` names
one: see tokenizer.py.
"""

import hashlib
import io
import json
import logging
import os
import shutil
from array import array
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
from tokenizers import Tokenizer

from experiments.config.keys import Config
from experiments.corpus.documents import Documents, open_corpus
from experiments.corpus.paths import hash_files
from experiments.corpus.tokenizer import (
    choose_end_of_text,
    encode_documents,
    identify_tokenizer,
    is_on_hub,
    list_special_tokens,
    load_tokenizer,
)
from experiments.records.files import DiskFull, describe_full_disk, lock_file
from models.errors import InputError

logger = logging.getLogger(__name__)

FORMAT_VERSION = 2
TOKEN_FILE_NAMES = ("tokens.bin", "documents.npy", "tokenizer.json", "meta.json")
CHECKSUM_FILE = "checksum"


@dataclass(frozen=True, eq=False)
class TokenFile:
    """A prepared token file, opened read-only."""

    path: Path
    tokens: np.memmap  # uint16 or uint32 [number of tokens]
    documents: np.ndarray  # int64 [number of documents + 1], offsets into tokens
    dataset: str
    vocab_size: int  # every token is below it
    eos_id: int

    @classmethod
    def open(cls, path: Path) -> "TokenFile":
        """Open a token file and verify its checksum, reading all of it once a process.

        Raises `InputError` if it is damaged.
        """
        try:
            if (path / CHECKSUM_FILE).read_text() != _compute_checksum(path):
                raise ValueError("the checksum is another")
            meta = json.loads((path / "meta.json").read_text())
            tokens = np.memmap(path / "tokens.bin", dtype=meta["dtype"], mode="r")
            documents = np.load(path / "documents.npy")
        except (OSError, ValueError) as error:
            raise InputError(
                f"the token file {path} is damaged ({error}): delete that folder and run again"
            ) from error
        return cls(path, tokens, documents, meta["dataset"], meta["vocab_size"], meta["eos_id"])


def prepare_token_file(config: Config) -> TokenFile:
    """Open the token file of a recipe, writing it first if it is missing or damaged.

    Concurrent callers (the ranks of a job, the recipes of a study) wait for the first one and open
    the file that it wrote. Raises `InputError` for faults of the corpus or the tokenizer, and
    OSError.
    """
    corpus_digest, documents = open_corpus(config)
    content = [FORMAT_VERSION, corpus_digest, identify_tokenizer(config), config.data.max_tokens]
    content_hash = hashlib.blake2b(json.dumps(content).encode()).hexdigest()[:12]
    cache_folder = Path(config.data.cache_dir)
    folder = cache_folder / f"{config.training.dataset.replace('/', '--')}-{content_hash}"
    has_hub_tokenizer = is_on_hub(config.model.hf_assets_path)
    # A whole token file is not locked: its cache may be read-only
    if find_token_file_fault(folder, has_hub_tokenizer):
        with _lock_cache(cache_folder, folder.name):
            fault = find_token_file_fault(folder, has_hub_tokenizer)
            if fault and folder.exists():
                logger.warning(f"{folder}: {fault}: preparing it again")
            if fault:
                _write_token_file(folder, config, documents, load_tokenizer(config, documents))
    with suppress(InputError):
        return TokenFile.open(folder)
    with _lock_cache(cache_folder, folder.name):
        try:
            return TokenFile.open(folder)  # another process may have prepared it again
        except InputError as error:
            logger.warning(f"{error.__cause__}: {folder} is damaged: preparing it again")
        _write_token_file(folder, config, documents, load_tokenizer(config, documents))
    return TokenFile.open(folder)


def find_token_file_fault(folder: Path, has_hub_tokenizer: bool = False) -> str:
    """Say why a token file should be prepared again; an empty text if all of it exists.

    A cleaned scratch file system has folders without their files. Wrong content is found later: see
    `TokenFile.open`. Older versions ended documents with ordinary tokens too. A tokenizer of the
    hub enters the folder's hash only by its name, so such a file must not be used.
    """
    names = (*TOKEN_FILE_NAMES, CHECKSUM_FILE)
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        return f"{', '.join(missing)} {verb} missing"
    if has_hub_tokenizer:
        with suppress(OSError, ValueError, LookupError, TypeError):  # damaged: see above
            tokenizer = json.loads((folder / "tokenizer.json").read_bytes())
            meta = json.loads((folder / "meta.json").read_bytes())
            special_ids = [token["id"] for token in tokenizer["added_tokens"] if token["special"]]
            if meta["eos_id"] not in special_ids:
                return "its documents end with an ordinary token"
    return ""


def _lock_cache(cache_folder: Path, name: str) -> TextIO:
    """Lock one token file for writing, once no other process has it locked. Raises
    `InputError`."""
    if str(cache_folder).startswith("~") and not Path(cache_folder.parts[0]).exists():
        raise InputError(
            f"data.cache_dir={cache_folder}: only a shell replaces ~: write the whole path"
        )
    try:
        cache_folder.mkdir(parents=True, exist_ok=True)
        return lock_file(cache_folder / f".{name}.lock", wait=True)
    except OSError as error:
        raise InputError(
            f"data.cache_dir={cache_folder}: the token file is not there and cannot be written "
            f"({error.filename}: {error.strerror}): choose another folder"
        ) from error


def _compute_checksum(folder: Path) -> str:
    return hash_files([folder / name for name in TOKEN_FILE_NAMES])


def _write_token_file(
    folder: Path, config: Config, documents: Documents, tokenizer: Tokenizer
) -> None:
    """Write the token file into another folder, then rename it: `folder` is whole or missing."""
    end_of_text = choose_end_of_text(tokenizer, config)
    eos_id = tokenizer.get_vocab()[end_of_text]
    # printed: a command's log does not exist yet, and a large corpus takes minutes
    print(
        f"Preparing {folder}, seconds to minutes by the size of the text; its documents end with "
        f"{end_of_text}"
    )
    # The tokenizer's threads end before this process forks. Without this variable, each later fork
    # prints a warning about them.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    partial_folder = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial_folder, ignore_errors=True)  # by a process that was killed
    partial_folder.mkdir()
    try:
        meta = _write_tokens(partial_folder, config, documents, tokenizer, eos_id)
        if end_of_text not in list_special_tokens(tokenizer):
            tokenizer.add_special_tokens([end_of_text])  # its id stays the same
        tokenizer.save(str(partial_folder / "tokenizer.json"))
        (partial_folder / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
        (partial_folder / CHECKSUM_FILE).write_text(_compute_checksum(partial_folder))
        _replace_folder(folder, partial_folder)
    except Exception as error:  # the tokenizer's save raises no OSError
        sentence = describe_full_disk(error, [partial_folder])
        if sentence:
            raise DiskFull(sentence) from error
        raise
    finally:
        shutil.rmtree(partial_folder, ignore_errors=True)  # unless it was renamed


def _replace_folder(folder: Path, new_folder: Path) -> None:
    """Rename `new_folder` to `folder`, in place of an old one. Raises OSError."""
    old_folder = folder.with_name(f".{folder.name}.left")
    shutil.rmtree(old_folder, ignore_errors=True)
    # The old folder is renamed before it is deleted: some file systems hold back files that a
    # process has open
    with suppress(FileNotFoundError):
        folder.rename(old_folder)
    new_folder.rename(folder)
    shutil.rmtree(old_folder, ignore_errors=True)


def _write_tokens(
    folder: Path, config: Config, documents: Documents, tokenizer: Tokenizer, eos_id: int
) -> dict:
    """Write tokens.bin and documents.npy; return the contents of meta.json."""
    max_tokens = config.data.max_tokens
    vocab_size = max(tokenizer.get_vocab().values()) + 1  # some vocabularies have holes
    dtype = np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)
    offsets = array("q", [0])
    with open(folder / "tokens.bin", "wb") as tokens_file:
        for token_ids in encode_documents(tokenizer, documents()):
            tokens_file.write(np.array([*token_ids, eos_id], dtype).tobytes())
            offsets.append(offsets[-1] + len(token_ids) + 1)
            if max_tokens is not None and offsets[-1] >= max_tokens:
                break
    if len(offsets) == 1:
        raise InputError(
            "the corpus holds no text: give another training.dataset or training.dataset_path"
        )
    content = io.BytesIO()  # numpy's own writing hides what the system says of a full disk
    np.save(content, np.array(offsets, np.int64))
    (folder / "documents.npy").write_bytes(content.getbuffer())
    return {
        "dataset": config.training.dataset,
        "vocab_size": vocab_size,
        "eos_id": eos_id,
        "dtype": dtype.name,
    }
