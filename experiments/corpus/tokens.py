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
import itertools
import json
import logging
import os
import re
import shutil
import sysconfig
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from experiments.config.keys import Config
from experiments.config.recipes import unknown
from experiments.records.files import lock_file
from models.errors import InputError

logger = logging.getLogger(__name__)

FORMAT_VERSION = 2
FILES = ("tokens.bin", "documents.npy", "tokenizer.json", "meta.json")

STDLIB = {"python_stdlib": False, "python_stdlib_with_tests": True}
TEST_FOLDERS = {"test", "tests", "idle_test"}

END_OF_TEXT_NAMES = ("<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>", "<|eot_id|>")
PANIC = "PanicException"  # the tokenizers library's, which is no Exception
BATCH_CHARACTERS = 4_000_000  # encoded at once: enough for every core, and takes about 0.5 GB
BPE_BATCHES = 25  # the BPE learns from the corpus' beginning: more takes minutes, changes little
# A path cannot be a hub name, which is `name` or `owner/name`.
LOCAL_PATH = re.compile(r"[./~].*|.*\.json|.*/.*/.*")


Documents = Callable[[], Iterator[str]]
"""Gives the texts of a corpus, each time the same ones in the same order."""


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
        digest, documents = open_corpus(config)
        tokenizer_identity, load_tokenizer = open_tokenizer(config)
    content = [FORMAT_VERSION, digest, tokenizer_identity, config.data.max_tokens]
    content_hash = hashlib.blake2b(json.dumps(content).encode()).hexdigest()[:12]
    dataset, cache = config.training.dataset, Path(config.data.cache_dir)
    folder = cache / f"{dataset.replace('/', '--')}-{content_hash}"
    try:
        if not folder.exists():
            cache.mkdir(parents=True, exist_ok=True)
            with lock_file(cache / f".{folder.name}.lock", wait=True):
                if not folder.exists():
                    meta = {"dataset": dataset, "source_hash": digest}
                    max_tokens = config.data.max_tokens
                    _write(folder, meta, documents, load_tokenizer(documents), max_tokens)
    except OSError as error:
        raise InputError(
            f"data.cache_dir={cache}: {error.strerror or error}: "
            "name a data.cache_dir that can be written and has room"
        ) from error
    return TokenFile.open(folder)


def _write(
    folder: Path, meta: dict, documents: Documents, tokenizer: Tokenizer, max_tokens: int | None
) -> None:
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
        meta |= _write_tokens(partial, documents, tokenizer, max_tokens)
        (partial / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
        (partial / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
        (partial / "checksum").write_text(digest_of([partial / name for name in FILES]))
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # unless it was renamed


def _write_tokens(
    folder: Path, documents: Documents, tokenizer: Tokenizer, max_tokens: int | None
) -> dict:
    """Write tokens.bin and documents.npy; returns what meta.json says of them."""
    eos_id = end_of_text(tokenizer)
    vocab_size = max(tokenizer.get_vocab().values()) + 1  # foreign vocabularies may have holes
    dtype = np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)
    starts, length = array("q", [0]), 0
    with open(folder / "tokens.bin", "wb") as tokens:
        for ids, document_ends in encode(tokenizer, documents()):
            length += len(ids)
            tokens.write(np.array(ids, dtype).tobytes())
            if document_ends and length:
                tokens.write(dtype.type(eos_id).tobytes())
                starts.append(starts[-1] + length + 1)
                length = 0
            if max_tokens is not None and starts[-1] >= max_tokens:
                break
    if len(starts) == 1:
        raise InputError(
            "the corpus holds no text: give another training.dataset or training.dataset_path"
        )
    np.save(folder / "documents.npy", np.array(starts, np.int64))
    return {"vocab_size": vocab_size, "eos_id": eos_id, "dtype": dtype.name}


# ---- documents: of the standard library, parquet files, or a dataset on Hugging Face's hub ----


def open_corpus(config: Config) -> tuple[str, Documents]:
    """Find the corpus that `training.dataset` names, and a digest that identifies it; of the hub
    nothing is read yet.

    Raises `InputError` if it is not there, and `OSError` if its files cannot be read.
    """
    name, column = config.training.dataset, config.data.text_column
    if name in STDLIB:
        files = _stdlib_files(with_tests=STDLIB[name])
        return digest_of(files), partial(_stdlib_documents, files)
    if name == "parquet":
        files = _parquet_files(config.training.dataset_path)
        return f"{digest_of(files)}:{column}", partial(_parquet_documents, files, column)
    if config.data.max_tokens is None:
        raise InputError(
            f"training.dataset={name!r} is none of {', '.join(STDLIB)}, parquet, so it is streamed "
            "from Hugging Face: say with data.max_tokens how much of it to read"
        )
    digest = ":".join(["hub", name, str(config.data.subset), config.data.split, column])
    return digest, partial(_hub_documents, config)


def digest_of(files: list[Path]) -> str:
    """Hash the files' contents, in their order, with blake2b; about a second per GB."""
    total = hashlib.blake2b(digest_size=16)
    for path in files:
        with open(path, "rb") as file:
            total.update(hashlib.file_digest(file, "blake2b").digest())
    return total.hexdigest()


# ---- the standard library ----


def _stdlib_files(with_tests: bool) -> list[Path]:
    """List the interpreter's *.py files by path, without those that its build generated: they name
    the machine."""
    excluded = {"site-packages", "dist-packages"}
    if not with_tests:
        excluded |= TEST_FOLDERS
    files = []
    for folder, folders, names in os.walk(sysconfig.get_path("stdlib")):
        # os.walk enters what is left; config-* is the build's
        folders[:] = [f for f in folders if f not in excluded and not f.startswith("config-")]
        paths = (Path(folder, name) for name in names if not name.startswith("_sysconfigdata"))
        files += [path for path in paths if path.suffix == ".py"]
    return sorted(files)


def _stdlib_documents(files: list[Path]) -> Iterator[str]:
    for path in files:  # a few tests are in other encodings on purpose
        yield path.read_text(encoding="utf-8", errors="replace")


# ---- parquet ----


def _parquet_files(given: str | None) -> list[Path]:
    """List the parquet file, or the folder's files by name."""
    mend = "give a .parquet file or a folder of them"
    if not given:
        raise InputError(f"training.dataset=parquet needs training.dataset_path: {mend}")
    path = Path(given)
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files or not path.exists():
        raise InputError(f"training.dataset_path={given}: no *.parquet file is there: {mend}")
    return files


def _parquet_documents(files: list[Path], column: str) -> Iterator[str]:
    import pyarrow.parquet

    mend = "convert it anew, or take it out of training.dataset_path"
    for path in files:  # all of them before the hours that encoding the first may take
        with readable(f"{path} could not be read as parquet", mend):
            _require_column(column, pyarrow.parquet.read_schema(path).names, str(path))
    for path in files:
        with (
            readable(f"{path} could not be read as parquet with text in UTF-8", mend),
            pyarrow.parquet.ParquetFile(path) as file,
        ):
            for batch in file.iter_batches(batch_size=1024, columns=[column]):
                yield from _texts(batch.column(0).to_pylist(), column, str(path))


# ---- Hugging Face's hub ----


def _hub_documents(config: Config) -> Iterator[str]:
    name, column, data = config.training.dataset, config.data.text_column, config.data
    mend = (
        "run `python -m experiments.data prepare ...` on a node with internet, "
        "or use training.dataset=python_stdlib"
    )
    with readable(f"the dataset {name} could not be read from Hugging Face", mend):
        import datasets

        for row in datasets.load_dataset(name, data.subset, split=data.split, streaming=True):
            _require_column(column, list(row), name)
            yield from _texts([row[column]], column, name)


# ---- columns of text ----


@contextmanager
def readable(what: str, mend: str) -> Iterator[None]:
    """Turn any error of the libraries that read corpora and tokenizers into an `InputError`: no
    network, no such name, no access, a broken file."""
    try:
        yield
    except InputError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        reason = " ".join(str(error).split())
        raise InputError(f"{what} ({type(error).__name__}: {reason}): {mend}") from error


def _require_column(wanted: str, names: list[str], where: str) -> None:
    if wanted not in names:
        raise InputError(f"data.text_column, in {where}: {unknown('column', wanted, names)}")


def _texts(values: Iterable[str | None], column: str, where: str) -> Iterator[str]:
    """Give the texts of a column that are not empty."""
    for value in filter(None, values):
        if not isinstance(value, str):
            raise InputError(
                f"column {column!r} of {where} does not hold text: set data.text_column to another"
            )
        yield value


# ---- text to tokens: a tokenizer.json, one of the hub, or a BPE trained on the corpus ----


def open_tokenizer(config: Config) -> tuple[str, Callable[[Documents], Tokenizer]]:
    """Give the tokenizer's identity, which enters the token file's hash, and a function that loads
    it for a corpus.

    A tokenizer of the hub is identified by its name. Raises `InputError` if it is a local file that
    is not there.
    """
    given, vocab_size = config.model.hf_assets_path, config.data.bpe_vocab_size
    path = Path(given)
    if not given:
        return f"bpe:{vocab_size}", lambda documents: _train_bpe(documents(), vocab_size)
    if not path.exists() and not LOCAL_PATH.fullmatch(given):
        return f"hub:{given}", lambda _: _read(Tokenizer.from_pretrained, given)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise InputError(
            f"model.hf_assets_path={given}: {file} does not exist; give a tokenizer.json, a folder "
            'with one, a name on Hugging Face, or "" to train a BPE on the corpus'
        )
    return digest_of([file]), lambda _: _read(Tokenizer.from_file, str(file))


def _read(load: Callable[[str], Tokenizer], given: str) -> Tokenizer:
    mend = "give a tokenizer.json of the `tokenizers` library, or fetch it on a node with internet"
    with readable(f"model.hf_assets_path={given} could not be read", mend):
        return load(given)


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
    beginning = itertools.islice(_batches(documents), BPE_BATCHES)
    tokenizer.train_from_iterator((texts for texts, _ in beginning), trainer)
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


def encode(tokenizer: Tokenizer, documents: Iterator[str]) -> Iterator[tuple[list[int], bool]]:
    """Give the token ids of pieces of documents, without specials such as end-of-text, and whether
    a document ends with the piece."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # "</s>" in a document is text, not the document's end
    mend = "give another model.hf_assets_path, with a token for unknown words"
    for texts, ends in _batches(documents):
        with readable("the tokenizer cannot encode the corpus", mend):
            encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        for encoding, document_ends in zip(encodings, ends, strict=True):
            yield encoding.ids, document_ends


def _batches(documents: Iterator[str]) -> Iterator[tuple[list[str], list[bool]]]:
    """Gather documents, long ones in pieces of a batch's size, and whether a document ends with the
    piece.

    The tokenizer takes 100 times a text's size in memory; a cut costs a token or two.
    """
    texts, ends, room = [], [], BATCH_CHARACTERS
    for document in documents:
        for start in range(0, len(document), BATCH_CHARACTERS):
            piece = document[start : start + BATCH_CHARACTERS]
            texts.append(piece)
            ends.append(start + len(piece) == len(document))
            room -= len(piece)
            if room <= 0:
                yield texts, ends
                texts, ends, room = [], [], BATCH_CHARACTERS
    if texts:
        yield texts, ends
