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
import sysconfig
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from experiments.config.keys import Config
from experiments.records.files import lock_file
from models.errors import InputError

logger = logging.getLogger(__name__)

FORMAT_VERSION = 2
FILES = ("tokens.bin", "documents.npy", "tokenizer.json", "meta.json")

INSTALLED = {"site-packages", "dist-packages"}
TESTS = {"test", "tests", "idle_test"}
STDLIB = {"python_stdlib": INSTALLED | TESTS, "python_stdlib_with_tests": INSTALLED}
"""Datasets of the standard library, and the folders that each leaves out."""

OF_THE_BUILD = ("_sysconfigdata", "python-config")  # these files name the machine
PANIC = "PanicException"  # the tokenizers library's, which is no Exception

Documents = Callable[[], Iterator[str]]
"""Gives the texts of a corpus, each time the same ones in the same order."""

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
        """Open a token file and verify its checksum, reading all of it once a process.

        Raises `InputError` if it is damaged.
        """
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
    """Open the token file of a recipe, writing it first if it is missing.

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
    """Write the token file beside `folder`, then rename it: `folder` is whole or missing."""
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
    """Write tokens.bin and documents.npy; return the contents of meta.json."""
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


# ---- the documents: of the standard library, of parquet files, of Hugging Face's hub ----


def open_corpus(config: Config) -> tuple[str, Documents]:
    """Find the corpus `training.dataset`; return a digest to identify it, and its documents.

    Of a corpus on the hub nothing is read yet: its digest is of its name. Raises `InputError` if it
    is not there, and `OSError` if its files cannot be read.
    """
    name, data = config.training.dataset, config.data
    if name in STDLIB:
        files = _stdlib_files(STDLIB[name])
        return digest_of(files), lambda: map(_text, files)
    if name == "parquet":
        files = _parquet_files(config.training.dataset_path)
        source = {"data_files": [*map(str, files)], "split": "train"}
        digest = [digest_of(files)]
    elif data.max_tokens is None:
        raise InputError(
            f"training.dataset={name!r} is none of {', '.join(STDLIB)}, parquet, so it is streamed "
            "from Hugging Face: say with data.max_tokens how much of it to read"
        )
    else:
        source = {"name": data.subset, "split": data.split}
        digest = ["hub", name, str(data.subset), data.split]
    return ":".join([*digest, data.text_column]), partial(_texts, name, data.text_column, source)


def digest_of(files: list[Path]) -> str:
    """Hash the files' contents, in their order, with blake2b; about a second per GB."""
    total = hashlib.blake2b(digest_size=16)
    for path in files:
        found = path.stat()
        total.update(_digest(path, found.st_size, found.st_mtime_ns))
    return total.hexdigest()


@cache  # until the file changes: recipes of a study share their data
def _digest(path: Path, size: int, changed_ns: int) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()


def _stdlib_files(left_out: set[str]) -> list[Path]:
    """List the interpreter's *.py files by path, without files generated by its build."""
    files = []
    for folder, folders, names in os.walk(sysconfig.get_path("stdlib")):
        folders[:] = {*folders} - left_out  # os.walk enters these
        ours = [name for name in names if not name.startswith(OF_THE_BUILD)]
        files += [Path(folder, name) for name in ours if name.endswith(".py")]
    return sorted(files)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")  # some tests are in other encodings


def _parquet_files(given: str | None) -> list[Path]:
    """List the parquet file, or the folder's files by name."""
    path = Path(given or "")
    files = sorted(path.glob("*.parquet")) or [path]
    if not given or not files[0].is_file():
        raise InputError(
            f"training.dataset_path={given}: no *.parquet file is there: give a .parquet file or a "
            "folder of them"
        )
    return files


def _texts(name: str, column: str, source: dict) -> Iterator[str]:
    """Stream the non-empty texts of a column; `source`: arguments of `datasets.load_dataset`."""
    mend = (
        "give parquet files with text in UTF-8, another data.text_column, or for a dataset of the "
        "hub run `.venv/bin/python -m experiments.data prepare ...` on a node with internet"
    )
    with readable(f"training.dataset={name} could not be read", mend):
        import datasets

        rows = datasets.load_dataset(name, streaming=True, **source)
        for row in rows.select_columns([column]):
            if not isinstance(row[column], str | None):
                raise InputError(f"data.text_column: {column} does not hold text: name another")
            if row[column]:
                yield row[column]


@contextmanager
def readable(what: str, mend: str) -> Iterator[None]:
    """Turn any error of reading a corpus or a tokenizer into an `InputError`.

    It may be: no network, no such name, no access, a broken file.
    """
    try:
        yield
    except InputError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        reason = " ".join(str(error).split())
        raise InputError(f"{what} ({type(error).__name__}: {reason}): {mend}") from error


# ---- text to tokens: a tokenizer.json, one of the hub, or a BPE trained on the corpus ----


def tokenizer_identity(config: Config) -> str:
    """Identify the tokenizer by its content, or its name on the hub, for the token file's hash."""
    given = config.model.hf_assets_path
    if not given:
        return f"bpe:{config.data.bpe_vocab_size}"
    file = _tokenizer_file(given)
    return digest_of([file]) if file else f"hub:{given}"


def _tokenizer_file(given: str) -> Path | None:
    """Return the tokenizer.json at or in a path; None for a name on the hub."""
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
    """Find the tokenizer's end-of-text token. Raises `InputError` if there is none."""
    for name in END_OF_TEXT_NAMES:
        token = tokenizer.token_to_id(name)
        if token is not None:
            return token
    raise InputError(
        f"the tokenizer has no end-of-text token: add one of {', '.join(END_OF_TEXT_NAMES)} to it"
    )


def encode(tokenizer: Tokenizer, documents: Iterator[str]) -> Iterator[list[int]]:
    """Encode documents to token ids, without special tokens; skip documents without tokens."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # "</s>" in a document is text, not the document's end
    mend = "give another model.hf_assets_path, with a token for unknown words"
    for batch in _batches(documents):
        with readable("the tokenizer cannot encode the corpus", mend):
            encodings = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        yield from filter(None, (encoding.ids for encoding in encodings))


def _batches(documents: Iterator[str]) -> Iterator[list[str]]:
    """Batch documents: encoding a text takes 100 times its size in memory."""
    batch, characters = [], 0
    for document in documents:
        batch.append(document)
        characters += len(document)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    yield batch
