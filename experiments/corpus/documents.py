"""Find the documents of a corpus: the standard library's files, parquet files, or a dataset on
Hugging Face's hub."""

import hashlib
import os
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from experiments.config.keys import Config
from experiments.config.recipes import unknown
from models.errors import InputError

STDLIB = {"python_stdlib": False, "python_stdlib_with_tests": True}
TEST_FOLDERS = {"test", "tests", "idle_test"}
PANIC = "PanicException"  # the tokenizers library's, which is no Exception

Documents = Callable[[], Iterator[str]]
"""Gives the texts of a corpus, each time the same ones in the same order."""


_digests: dict[tuple[int, ...], bytes] = {}  # by where a file is and when it was last written


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
    """Hash the files' contents, in their order, with blake2b; about a second per GB.

    In one process a file is read once, until it changes: recipes of a study share their data.
    """
    total = hashlib.blake2b(digest_size=16)
    for path in files:
        found = path.stat()
        content = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        if content not in _digests:
            with open(path, "rb") as file:
                _digests[content] = hashlib.file_digest(file, "blake2b").digest()
        total.update(_digests[content])
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
