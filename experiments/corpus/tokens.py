"""Documents -> tokenizer -> a token file on disk, prepared once and then only opened.

A token file is a folder `<data.cache_dir>/<dataset>-<content hash>/`:

    tokens.bin       each document's tokens and an end-of-text; uint16 where the vocabulary fits
                     into 16 bits, else uint32
    documents.npy    int64 [number of documents + 1]: where in tokens.bin each document starts,
                     and the end
    tokenizer.json   what encoded it
    meta.json        the corpus and its hash, the vocabulary's size, end-of-text, dtype
    checksum         blake2b of these four

The content hash covers the corpus, the tokenizer, `data.max_tokens` and the format's version. What
lives on Hugging Face's hub enters it by name, not by content, so that a node without internet finds
what was prepared elsewhere.
"""

import hashlib
import json
import logging
import os
import shutil
from array import array
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from experiments.config.keys import Config
from experiments.corpus.documents import Source, digest_of, open_source, readable
from experiments.corpus.tokenizer import encode, end_of_text, open_tokenizer
from experiments.records.files import lock_file
from models.errors import InputError

logger = logging.getLogger(__name__)

FORMAT_VERSION = 2
FILES = ("tokens.bin", "documents.npy", "tokenizer.json", "meta.json")


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
        """Read all of it once. Raises `InputError` where it differs from what was written."""
        try:
            if (path / "checksum").read_text() != digest_of([path / name for name in FILES]):
                raise ValueError("the checksum is another")
            meta = json.loads((path / "meta.json").read_text())
            tokens = np.memmap(path / "tokens.bin", dtype=meta["dtype"], mode="r")
            documents = np.load(path / "documents.npy")
        except (OSError, ValueError) as error:
            raise InputError(
                f"the token file {path} is damaged ({error}): delete that folder and run again"
            ) from error
        return cls(path, tokens, documents, meta["dataset"], meta["vocab_size"], meta["eos_id"])


def asked(config: Config) -> tuple:
    """Gather the keys that decide the token file: those of corpus and tokenizer."""
    training = config.training
    source = (training.dataset, training.dataset_path, config.model.hf_assets_path)
    return (*source, *astuple(config.data))


def prepare(config: Config) -> TokenFile:
    """Open the token file that `config` asks for, written first if it isn't there.

    Concurrent callers (the ranks of a job, the recipes of a study) wait for the first and open what
    it wrote. Raises `InputError` for whatever is wrong with the corpus, the tokenizer or the
    folder.
    """
    with readable("the corpus or its tokenizer could not be read", "give another path"):
        source = open_source(config)
        tokenizer_identity, load_tokenizer = open_tokenizer(config)
    content = [FORMAT_VERSION, source.digest, tokenizer_identity, config.data.max_tokens]
    content_hash = hashlib.blake2b(json.dumps(content).encode()).hexdigest()[:12]
    cache = Path(config.data.cache_dir)
    folder = cache / f"{source.name.replace('/', '--')}-{content_hash}"
    try:
        if not folder.exists():
            cache.mkdir(parents=True, exist_ok=True)
            with lock_file(cache / f".{folder.name}.lock", wait=True):
                if not folder.exists():
                    _write(folder, source, load_tokenizer(source), config.data.max_tokens)
    except OSError as error:
        raise InputError(
            f"data.cache_dir={cache}: {error.strerror or error}: "
            "name a data.cache_dir that can be written and has room"
        ) from error
    return TokenFile.open(folder)


def _write(folder: Path, source: Source, tokenizer: Tokenizer, max_tokens: int | None) -> None:
    """Write the token file beside `folder` and rename it, so that `folder` is whole whenever it is
    there."""
    logger.info(f"Preparing {folder}")
    # The tokenizer's threads are done before anything forks; unset, each later fork prints a
    # warning about them.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # by a process that was killed
    partial.mkdir()
    try:
        meta = {"dataset": source.name, "source_hash": source.digest}
        meta |= _write_tokens(partial, source, tokenizer, max_tokens)
        (partial / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
        (partial / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
        (partial / "checksum").write_text(digest_of([partial / name for name in FILES]))
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # unless it was renamed


def _write_tokens(
    folder: Path, source: Source, tokenizer: Tokenizer, max_tokens: int | None
) -> dict:
    """Write tokens.bin and documents.npy; returns what meta.json says of them."""
    eos_id = end_of_text(tokenizer)
    vocab_size = max(tokenizer.get_vocab().values()) + 1  # foreign vocabularies may have holes
    dtype = np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)
    documents, length = array("q", [0]), 0
    with open(folder / "tokens.bin", "wb") as tokens:
        for ids, document_ends in encode(tokenizer, source.documents()):
            length += len(ids)
            tokens.write(np.array(ids, dtype).tobytes())
            if document_ends and length:
                tokens.write(dtype.type(eos_id).tobytes())
                documents.append(documents[-1] + length + 1)
                length = 0
            if max_tokens is not None and documents[-1] >= max_tokens:
                break
    if len(documents) == 1:
        raise InputError(
            f"the corpus {source.name} holds no text: give another training.dataset or dataset_path"
        )
    np.save(folder / "documents.npy", np.array(documents, np.int64))
    return {"vocab_size": vocab_size, "eos_id": eos_id, "dtype": dtype.name}
