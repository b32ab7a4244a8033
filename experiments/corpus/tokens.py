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
what was prepared elsewhere.
"""

import hashlib
import itertools
import json
import logging
import os
import shutil
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from experiments.config.keys import Config
from experiments.corpus.documents import Documents, digest_of, open_corpus, readable
from experiments.records.files import lock_file
from models.errors import InputError

logger = logging.getLogger(__name__)

FORMAT_VERSION = 2
FILES = ("tokens.bin", "documents.npy", "tokenizer.json", "meta.json")

END_OF_TEXT_NAMES = ("<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>", "<|eot_id|>")
BATCH_CHARACTERS = 4_000_000  # encoded at once: enough for every core, and takes about 0.5 GB
BPE_BATCHES = 25  # the BPE learns from the corpus' beginning: more takes minutes, changes little


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
        """Read all of it, once a process. Raises `InputError` where it is not what was written."""
        try:
            if (path / "checksum").read_text() != _checksum(path):
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
    """Open the token file that `config` asks for, written first if it isn't there.

    Concurrent callers (the ranks of a job, the recipes of a study) wait for the first and open what
    it wrote. Raises `InputError` for what is wrong with the corpus or the tokenizer, and OSError.
    """
    digest, documents = open_corpus(config)
    content = [FORMAT_VERSION, digest, tokenizer_identity(config), config.data.max_tokens]
    content_hash = hashlib.blake2b(json.dumps(content).encode()).hexdigest()[:12]
    cache = Path(config.data.cache_dir)
    folder = cache / f"{config.training.dataset.replace('/', '--')}-{content_hash}"
    if not folder.exists():  # else its cache may be read-only
        cache.mkdir(parents=True, exist_ok=True)
        with lock_file(cache / f".{folder.name}.lock", wait=True):
            if not folder.exists():
                _write(folder, config, documents, load_tokenizer(config, documents))
    return TokenFile.open(folder)


def _checksum(folder: Path) -> str:
    return digest_of([folder / name for name in FILES])


def _write(folder: Path, config: Config, documents: Documents, tokenizer: Tokenizer) -> None:
    """Write the token file beside `folder` and rename it, so that `folder` is whole whenever it is
    there."""
    logger.info(f"Preparing {folder}")
    # The tokenizer's threads are done before anything forks; unset, each later fork prints a
    # warning about them.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    begun = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(begun, ignore_errors=True)  # by a process that was killed
    begun.mkdir()
    try:
        meta = _write_tokens(begun, config, documents, tokenizer)
        tokenizer.save(str(begun / "tokenizer.json"))
        (begun / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
        (begun / "checksum").write_text(_checksum(begun))
        begun.rename(folder)
    finally:
        shutil.rmtree(begun, ignore_errors=True)  # unless it was renamed


def _write_tokens(folder: Path, config: Config, documents: Documents, tokenizer: Tokenizer) -> dict:
    """Write tokens.bin and documents.npy; returns what meta.json says of them."""
    eos_id, max_tokens = end_of_text(tokenizer), config.data.max_tokens
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
    np.save(folder / "documents.npy", np.array(starts, np.int64))
    dataset = config.training.dataset
    return {"dataset": dataset, "vocab_size": vocab_size, "eos_id": eos_id, "dtype": dtype.name}


# ---- text to tokens: a tokenizer.json, one of the hub, or a BPE trained on the corpus ----


def tokenizer_identity(config: Config) -> str:
    """Name the tokenizer, for the token file's hash; one of the hub by its name."""
    given = config.model.hf_assets_path
    if not given:
        return f"bpe:{config.data.bpe_vocab_size}"
    file = _tokenizer_file(given)
    return digest_of([file]) if file else f"hub:{given}"


def _tokenizer_file(given: str) -> Path | None:
    """Return the tokenizer.json that a path leads to; None for a name of the hub."""
    path = Path(given)
    if not path.exists():
        return None
    return path / "tokenizer.json" if path.is_dir() else path


def load_tokenizer(config: Config, documents: Documents) -> Tokenizer:
    """Load the tokenizer, or train one on the documents. Raises `InputError`."""
    given = config.model.hf_assets_path
    if not given:
        return _train_bpe(documents(), config.data.bpe_vocab_size)
    mend = (
        "give a tokenizer.json of the `tokenizers` library, a folder with one, or a name on "
        'Hugging Face, which needs internet; "" trains a BPE on the corpus'
    )
    with readable(f"model.hf_assets_path={given} could not be read", mend):
        file = _tokenizer_file(given)
        return Tokenizer.from_file(str(file)) if file else Tokenizer.from_pretrained(given)


def _train_bpe(documents: Iterator[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE; the same documents give the same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT_NAMES[0]],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(itertools.islice(_batches(documents), BPE_BATCHES), trainer)
    return tokenizer


def end_of_text(tokenizer: Tokenizer) -> int:
    """Find the token that ends a document. Raises `InputError` if there is none."""
    for name in END_OF_TEXT_NAMES:
        token = tokenizer.token_to_id(name)
        if token is not None:
            return token
    raise InputError(
        f"the tokenizer has no end-of-text token: add one of {', '.join(END_OF_TEXT_NAMES)} to it"
    )


def encode(tokenizer: Tokenizer, documents: Iterator[str]) -> Iterator[list[int]]:
    """Give the token ids of each document that has any, without specials such as end-of-text."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # "</s>" in a document is text, not the document's end
    mend = "give another model.hf_assets_path, with a token for unknown words"
    for batch in _batches(documents):
        with readable("the tokenizer cannot encode the corpus", mend):
            encodings = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        yield from filter(None, (encoding.ids for encoding in encodings))


def _batches(documents: Iterator[str]) -> Iterator[list[str]]:
    """Gather documents: the tokenizer takes 100 times a text's size in memory."""
    batch, characters = [], 0
    for document in documents:
        batch.append(document)
        characters += len(document)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    yield batch
