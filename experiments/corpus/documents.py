"""Find the documents of a corpus: the standard library's files, parquet files, or a dataset on
Hugging Face's hub."""

import hashlib
import os
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

from experiments.config.keys import Config
from models.errors import InputError

INSTALLED = {"site-packages", "dist-packages"}
TESTS = {"test", "tests", "idle_test"}
STDLIB = {"python_stdlib": INSTALLED | TESTS, "python_stdlib_with_tests": INSTALLED}
"""Datasets of the standard library, and the folders that each leaves out."""

OF_THE_BUILD = ("_sysconfigdata", "python-config")  # these files name the machine
PANIC = "PanicException"  # the tokenizers library's, which is no Exception

Documents = Callable[[], Iterator[str]]
"""Gives the texts of a corpus, each time the same ones in the same order."""


def open_corpus(config: Config) -> tuple[str, Documents]:
    """Find the corpus that `training.dataset` names, and a digest that identifies it; of the hub
    nothing is read yet.

    Raises `InputError` if it is not there, and `OSError` if its files cannot be read.
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


# ---- the standard library ----


def _stdlib_files(left_out: set[str]) -> list[Path]:
    """List the interpreter's *.py files by path, without those that its build generated."""
    files = []
    for folder, folders, names in os.walk(sysconfig.get_path("stdlib")):
        folders[:] = {*folders} - left_out  # os.walk enters these
        ours = [name for name in names if not name.startswith(OF_THE_BUILD)]
        files += [Path(folder, name) for name in ours if name.endswith(".py")]
    return sorted(files)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")  # some tests are in other encodings


# ---- parquet files, and Hugging Face's hub ----


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
    """Stream the texts of a column that are not empty; `source` is for `datasets.load_dataset`."""
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
