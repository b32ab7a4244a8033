"""Prepare a token file once, from documents and a tokenizer, and open it.

A token file is a folder `<data.cache_dir>/<dataset>-<content hash>/`:

    tokens.bin       each document's tokens and an end-of-text; uint16 where the vocabulary fits
                     into 16 bits, else uint32
    documents.npy    int64 [number of documents + 1]: where in tokens.bin each document starts,
                     and the end
    tokenizer.json   what encoded it
    meta.json        the corpus, the vocabulary's size, end-of-text, dtype
    checksum         blake2b of these four

The content hash covers the corpus, the tokenizer, `data.max_tokens` and the format's version. What
lives on Hugging Face's hub enters it by name, not by content, so that a node without internet finds
what was prepared elsewhere. The end-of-text token enters it only where earlier versions chose
another one, and with a tokenizer of the hub where `data.end_of_text` names one: see tokenizer.py.
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
from experiments.corpus.paths import digest_of
from experiments.corpus.tokenizer import (
    choose_end_of_text,
    encode,
    is_on_hub,
    load_tokenizer,
    special_tokens,
    tokenizer_identity,
)
from experiments.records.files import DiskFull, full_disk, lock_file
from models.errors import InputError

logger = logging.getLogger(__name__)

FORMAT_VERSION = 2
FILES = ("tokens.bin", "documents.npy", "tokenizer.json", "meta.json")
CHECKSUM = "checksum"


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
            if (path / CHECKSUM).read_text() != _checksum(path):
                raise ValueError("the checksum is another")
            meta = json.loads((path / "meta.json").read_text())
            tokens = np.memmap(path / "tokens.bin", dtype=meta["dtype"], mode="r")
            documents = np.load(path / "documents.npy")
        except (OSError, ValueError) as error:
            raise InputError(
                f"the token file {path} is damaged ({error}): delete that folder and run again"
            ) from error
        return cls(path, tokens, documents, meta["dataset"], meta["vocab_size"], meta["eos_id"])


def prepare(config: Config) -> TokenFile:
    """Open the token file of a recipe, writing it first if it is missing.

    Concurrent callers (the ranks of a job, the recipes of a study) wait for the first and open what
    it wrote. Raises `InputError` for what is wrong with the corpus or the tokenizer, and OSError.
    """
    digest, documents = open_corpus(config)
    content = [FORMAT_VERSION, digest, tokenizer_identity(config), config.data.max_tokens]
    content_hash = hashlib.blake2b(json.dumps(content).encode()).hexdigest()[:12]
    cache = Path(config.data.cache_dir)
    folder = cache / f"{config.training.dataset.replace('/', '--')}-{content_hash}"
    has_hub_tokenizer = is_on_hub(config.model.hf_assets_path)
    if find_lack(folder, has_hub_tokenizer):  # else its cache may be read-only
        with _lock_cache(cache, folder.name):
            lack = find_lack(folder, has_hub_tokenizer)
            if lack and folder.exists():
                logger.warning(f"{folder}: {lack}: preparing it again")
            if lack:
                _write(folder, config, documents, load_tokenizer(config, documents))
    return TokenFile.open(folder)


def find_lack(folder: Path, has_hub_tokenizer: bool = False) -> str:
    """Say why a token file should be prepared again; nothing if all of it is there.

    A cleaned scratch file system keeps folders without their files. Wrong content is no lack: see
    `TokenFile.open`. Earlier versions ended documents with ordinary tokens too; for a tokenizer of
    the hub, which enters the folder's hash by its name alone, such a file must not be used.
    """
    lost = [name for name in (*FILES, CHECKSUM) if not (folder / name).exists()]
    if lost:
        return f"{', '.join(lost)} {'is' if len(lost) == 1 else 'are'} missing"
    if has_hub_tokenizer:
        with suppress(OSError, ValueError, LookupError, TypeError):  # damaged: see above
            added = json.loads((folder / "tokenizer.json").read_bytes())["added_tokens"]
            special = [token["id"] for token in added if token["special"]]
            if json.loads((folder / "meta.json").read_bytes())["eos_id"] not in special:
                return "its documents end with an ordinary token"
    return ""


def _lock_cache(cache: Path, name: str) -> TextIO:
    """Lock what is written for one token file, waiting for others who do. Raises `InputError`."""
    if str(cache).startswith("~") and not Path(cache.parts[0]).exists():
        raise InputError(f"data.cache_dir={cache}: only a shell replaces ~: write the whole path")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        return lock_file(cache / f".{name}.lock", wait=True)
    except OSError as error:
        raise InputError(
            f"data.cache_dir={cache}: the token file is not there and cannot be written "
            f"({error.filename}: {error.strerror}): choose another folder"
        ) from error


def _checksum(folder: Path) -> str:
    return digest_of([folder / name for name in FILES])


def _write(folder: Path, config: Config, documents: Documents, tokenizer: Tokenizer) -> None:
    """Write the token file beside `folder`, then rename it: `folder` is whole or missing."""
    token = choose_end_of_text(tokenizer, config)
    logger.info(f"Preparing {folder}, whose documents end with {token}")
    # The tokenizer's threads are done before anything forks; unset, each later fork prints a
    # warning about them.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    begun = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(begun, ignore_errors=True)  # by a process that was killed
    begun.mkdir()
    try:
        meta = _write_tokens(begun, config, documents, tokenizer, tokenizer.token_to_id(token))
        if token not in special_tokens(tokenizer):
            tokenizer.add_special_tokens([token])  # it keeps its number
        tokenizer.save(str(begun / "tokenizer.json"))
        (begun / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
        (begun / CHECKSUM).write_text(_checksum(begun))
        _replace(folder, begun)
    except Exception as error:  # the tokenizer's save raises no OSError
        full = full_disk(error, [begun])
        if full:
            raise DiskFull(full) from error
        raise
    finally:
        shutil.rmtree(begun, ignore_errors=True)  # unless it was renamed


def _replace(folder: Path, begun: Path) -> None:
    """Rename `begun` to `folder`, in place of what is left there. Raises OSError."""
    left = folder.with_name(f".{folder.name}.left")
    shutil.rmtree(left, ignore_errors=True)
    with suppress(FileNotFoundError):
        folder.rename(left)  # and not deleted: some file systems keep files that others have open
    begun.rename(folder)
    shutil.rmtree(left, ignore_errors=True)


def _write_tokens(
    folder: Path, config: Config, documents: Documents, tokenizer: Tokenizer, eos_id: int
) -> dict:
    """Write tokens.bin and documents.npy; return the contents of meta.json."""
    max_tokens = config.data.max_tokens
    vocab_size = max(tokenizer.get_vocab().values()) + 1  # foreign vocabularies may have holes
    dtype = np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)
    starts = array("q", [0])
    with open(folder / "tokens.bin", "wb") as tokens:
        for ids in encode(tokenizer, documents()):
            tokens.write(np.array([*ids, eos_id], dtype).tobytes())
            starts.append(starts[-1] + len(ids) + 1)
            if max_tokens is not None and starts[-1] >= max_tokens:
                break
    if len(starts) == 1:
        raise InputError(
            "the corpus holds no text: give another training.dataset or training.dataset_path"
        )
    content = io.BytesIO()  # numpy's own writing hides what the system says of a full disk
    np.save(content, np.array(starts, np.int64))
    (folder / "documents.npy").write_bytes(content.getbuffer())
    dataset = config.training.dataset
    return {"dataset": dataset, "vocab_size": vocab_size, "eos_id": eos_id, "dtype": dtype.name}
