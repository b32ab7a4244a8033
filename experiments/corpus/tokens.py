"""Where the tokens come from: documents -> tokenizer -> a token file on disk, prepared once and then only opened.

A token file is a folder `<data.cache_dir>/<dataset>-<content hash>/`:

    tokens.bin      each document's tokens and an end-of-text; uint16 where the vocabulary fits, else uint32
    documents.npy   int64 [n_documents + 1]: where in tokens.bin each document starts, and the end
    tokenizer.json  what encoded it
    meta.json       counts, dtype, the corpus' hash, seconds taken

The content hash covers the corpus, the tokenizer, `data.max_tokens` and the format's version. What lives on Hugging
Face's hub enters it by name, not by content, so that a node without internet finds what was prepared elsewhere.
"""

import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from experiments.config.keys import Config
from experiments.corpus.documents import Source, digest_of, open_source
from models.errors import InputError

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
END_OF_TEXT_NAMES = ("<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>", "<|eot_id|>")
BATCH_CHARACTERS = 4_000_000  # encoded at once: bounds memory, and is enough for every core
BPE_CHARACTERS = 100_000_000  # the BPE learns from the corpus' beginning: more takes minutes and changes little
LOCAL_PATH = re.compile(r"[./~].*|.*\.json|.*/.*/.*")  # what cannot be a hub name: `name` or `owner/name`


@dataclass(frozen=True, eq=False)
class TokenFile:
    """A prepared token file, opened read-only."""

    path: Path
    tokens: np.memmap  # uint16 or uint32 [n_tokens]
    documents: np.ndarray  # int64 [n_documents + 1], offsets into tokens
    dataset: str
    vocab_size: int  # every token is below it
    eos_id: int

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)

    @property
    def n_documents(self) -> int:
        return len(self.documents) - 1

    @classmethod
    def open(cls, path: Path) -> "TokenFile":
        """Raises InputError where files are missing or their sizes differ from meta.json's."""
        try:
            meta = json.loads((path / "meta.json").read_text())
            tokens = np.memmap(path / "tokens.bin", dtype=meta["dtype"], mode="r")
            documents = np.load(path / "documents.npy")
            for name, found in ("n_tokens", len(tokens)), ("n_documents", len(documents) - 1):
                if found != meta[name]:
                    raise ValueError(f"{name} should be {meta[name]:,} and is {found:,}")
            return cls(path, tokens, documents, meta["dataset"], meta["vocab_size"], meta["eos_id"])
        except (OSError, EOFError, ValueError, KeyError) as error:
            raise InputError(f"the token file {path} is damaged ({error}): delete that folder and run again") from error


def prepare(config: Config) -> TokenFile:
    """The token file that `config` asks for, written if it isn't there.

    Concurrent callers (the ranks of a job, the recipes of a study) wait for the first and open what it wrote.
    Raises InputError for whatever is wrong with the corpus or the tokenizer.
    """
    source = open_source(config)
    identity = [FORMAT_VERSION, source.digest, _tokenizer_identity(config), config.data.max_tokens]
    content = hashlib.blake2b(json.dumps(identity).encode()).hexdigest()[:12]
    cache = Path(config.data.cache_dir)
    folder = cache / f"{source.name.replace('/', '--')}-{content}"
    if not folder.exists():
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"data.cache_dir={cache}: {error.strerror}: name a folder that can be written") from error
        with open(cache / f".{folder.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                _write(folder, source, config)
    return TokenFile.open(folder)


def _write(folder: Path, source: Source, config: Config) -> None:
    start = time.perf_counter()
    logger.info(f"Preparing {folder}")
    # The tokenizer's threads are done before anything forks; unset, each later fork prints a warning about them.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    tokenizer = _load_tokenizer(config, source)
    eos_id = _end_of_text(tokenizer)
    vocab_size = max(tokenizer.get_vocab().values()) + 1  # foreign vocabularies may have holes
    dtype = np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)

    partial_folder = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial_folder, ignore_errors=True)  # of a process that was killed: the lock is ours
    partial_folder.mkdir()
    offsets = array("q", [0])
    with open(partial_folder / "tokens.bin", "wb") as tokens:
        for ids in _encode(tokenizer, source.documents()):
            tokens.write(np.array([*ids, eos_id], dtype).tobytes())
            offsets.append(offsets[-1] + len(ids) + 1)
            if config.data.max_tokens is not None and offsets[-1] >= config.data.max_tokens:
                break
    if len(offsets) == 1:
        shutil.rmtree(partial_folder)
        raise InputError(f"the corpus {source.name} holds no text: give another training.dataset or dataset_path")
    np.save(partial_folder / "documents.npy", np.array(offsets, np.int64))
    tokenizer.save(str(partial_folder / "tokenizer.json"))
    meta = {
        "format_version": FORMAT_VERSION,
        "dataset": source.name,
        "n_tokens": offsets[-1],
        "n_documents": len(offsets) - 1,
        "vocab_size": vocab_size,
        "eos_id": eos_id,
        "dtype": dtype.name,
        "source_hash": source.digest,
        "seconds": round(time.perf_counter() - start, 3),
    }
    (partial_folder / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
    partial_folder.rename(folder)


# ---- tokenizer ----


def _tokenizer_file(config: Config) -> Path | None:
    """The local tokenizer.json; None where `model.hf_assets_path` is empty or names a tokenizer on the hub."""
    given = config.model.hf_assets_path
    path = Path(given)
    if not given or (not path.exists() and not LOCAL_PATH.fullmatch(given)):
        return None
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.exists():
        raise InputError(
            f"model.hf_assets_path={given}: {file} does not exist; give a tokenizer.json, a folder with one, a name on "
            'Hugging Face, or "" to train a BPE on the corpus'
        )
    return file


def _tokenizer_identity(config: Config) -> str:
    file = _tokenizer_file(config)
    if file:
        return digest_of([file])
    return f"hub:{config.model.hf_assets_path}" if config.model.hf_assets_path else f"bpe:{config.data.bpe_vocab_size}"


def _load_tokenizer(config: Config, source: Source) -> Tokenizer:
    """The tokenizer, set to give a document's tokens and nothing else: no specials, no truncation, no padding."""
    given = config.model.hf_assets_path
    if not given:
        tokenizer = _train_bpe(source.documents(), config.data.bpe_vocab_size)
    else:
        file = _tokenizer_file(config)
        try:
            tokenizer = Tokenizer.from_file(str(file)) if file else Tokenizer.from_pretrained(given)
        except Exception as error:  # the library raises plain Exception
            mend = "give a tokenizer.json of the `tokenizers` library, or fetch the name on a node with internet"
            raise InputError(f"model.hf_assets_path={given} could not be read ({error}): {mend}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # "</s>" in a document is text, not the document's end
    return tokenizer


def _train_bpe(documents: Iterator[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE; the same documents give the same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT_NAMES[0]],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_beginning(documents, BPE_CHARACTERS), trainer)
    return tokenizer


def _beginning(documents: Iterator[str], characters: int) -> Iterator[str]:
    for document in documents:
        yield document
        characters -= len(document)
        if characters <= 0:
            return


def _end_of_text(tokenizer: Tokenizer) -> int:
    for name in END_OF_TEXT_NAMES:
        if (token := tokenizer.token_to_id(name)) is not None:
            return token
    raise InputError(f"the tokenizer has no end-of-text token: add one of {', '.join(END_OF_TEXT_NAMES)} to it")


def _encode(tokenizer: Tokenizer, documents: Iterator[str]) -> Iterator[list[int]]:
    """Token ids of each document that has any, without end-of-text."""
    for batch in _batches(documents):
        for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
            if encoding.ids:
                yield encoding.ids


def _batches(documents: Iterator[str]) -> Iterator[list[str]]:
    batch, characters = [], 0
    for document in documents:
        batch.append(document)
        characters += len(document)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
