"""Where documents come from: the standard library, parquet files, or a dataset on Hugging Face's hub."""

import difflib
import hashlib
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from experiments.config.keys import Config
from models.errors import InputError

STDLIB = {"python_stdlib": False, "python_stdlib_with_tests": True}
TEST_FOLDERS = {"test", "tests", "idle_test"}


@dataclass(frozen=True)
class Source:
    """A corpus: `documents()` gives the same texts in the same order each time, and `digest` identifies them."""

    name: str
    digest: str
    documents: Callable[[], Iterator[str]]


def open_source(config: Config) -> Source:
    """The corpus that `training.dataset` names; of the hub nothing is read yet.

    Raises `InputError` if it is not there, and `OSError` if its files cannot be read. So does reading its documents.
    """
    name, column = config.training.dataset, config.data.text_column
    if name in STDLIB:
        files = _stdlib_files(with_tests=STDLIB[name])
        return Source(name, digest_of(files), partial(_stdlib_documents, files))
    if name == "parquet":
        files = _parquet_files(config.training.dataset_path)
        for file in files:
            _check_column(file, column)
        return Source(name, f"{digest_of(files)}:{column}", partial(_parquet_documents, files, column))
    if config.data.max_tokens is None:
        raise InputError(
            f"training.dataset={name!r} is none of {', '.join(STDLIB)}, parquet, so it is streamed from Hugging Face: "
            "say with data.max_tokens how much of it to read"
        )
    digest = ":".join(["hub", name, str(config.data.subset), config.data.split, column])
    return Source(name, digest, partial(_hub_documents, config))


def digest_of(files: list[Path]) -> str:
    """blake2b of the files' contents, in their order; about a second per GB."""
    total = hashlib.blake2b(digest_size=16)
    for path in files:
        with open(path, "rb") as file:
            total.update(hashlib.file_digest(file, "blake2b").digest())
    return total.hexdigest()


# ---- the standard library ----


def _stdlib_files(with_tests: bool) -> list[Path]:
    """The interpreter's *.py files, ordered by path, without those that its build generated: they name the machine."""
    root = Path(sysconfig.get_path("stdlib"))
    files = []
    for path in sorted(root.rglob("*.py")):
        folders = path.relative_to(root).parts[:-1]
        installed = {"site-packages", "dist-packages"}.intersection(folders)
        generated = path.name.startswith("_sysconfigdata") or (folders and folders[0].startswith("config-"))
        if not installed and not generated and (with_tests or TEST_FOLDERS.isdisjoint(folders)):
            files.append(path)
    return files


def _stdlib_documents(files: list[Path]) -> Iterator[str]:
    for path in files:
        yield path.read_text(encoding="utf-8", errors="replace")  # a few tests are in other encodings on purpose


# ---- parquet ----


def _parquet_files(given: str | None) -> list[Path]:
    """The parquet file, or the folder's files by name."""
    if not given:
        raise InputError("training.dataset=parquet needs training.dataset_path: a .parquet file or a folder of them")
    path = Path(given)
    if not path.exists():
        raise InputError(f"training.dataset_path={path} does not exist: give a .parquet file or a folder of them")
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise InputError(f"training.dataset_path={path} holds no *.parquet file: give another folder, or one file")
    for file in files:
        if not file.is_file():  # a folder, a pipe, a link that leads nowhere
            raise InputError(f"{file} is not a file: take it out of training.dataset_path")
    return files


def _check_column(file: Path, column: str) -> None:
    """Raise `InputError` unless the file has the column once, and with text."""
    import pyarrow
    import pyarrow.parquet

    with _as_parquet(file):
        schema = pyarrow.parquet.read_schema(file)
    _require_column(column, schema.names, str(file))
    kind = schema.field(schema.names.index(column)).type
    if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
        raise InputError(f"column {column!r} of {file} holds {kind}, not text: set data.text_column to another")


def _parquet_documents(files: list[Path], column: str) -> Iterator[str]:
    import pyarrow.parquet

    for path in files:
        with _as_parquet(path), pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024, columns=[column]):
                yield from filter(None, batch.column(0).to_pylist())


@contextmanager
def _as_parquet(path: Path) -> Iterator[None]:
    """Whatever is wrong with the file's content becomes an `InputError`."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{path} could not be read as parquet with text in UTF-8 ({reason}): convert it anew, or take it out of "
            "training.dataset_path"
        ) from error


def _require_column(wanted: str, names: list[str], where: str) -> None:
    if names.count(wanted) > 1:
        raise InputError(f"{where} has {names.count(wanted)} columns {wanted!r}: convert it anew, with one of them")
    if wanted not in names:
        near = difflib.get_close_matches(wanted, names, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise InputError(f"{where} has no column {wanted!r}{hint}: set data.text_column to one of {', '.join(names)}")


# ---- Hugging Face's hub ----


def _hub_documents(config: Config) -> Iterator[str]:
    import datasets

    name, column = config.training.dataset, config.data.text_column
    try:
        stream = datasets.load_dataset(name, config.data.subset, split=config.data.split, streaming=True)
        for row in stream:
            _require_column(column, list(row), name)
            if not isinstance(row[column], str | None):
                raise InputError(f"column {column!r} of {name} does not hold text: set data.text_column to another")
            if row[column]:
                yield row[column]
    except InputError:
        raise
    except Exception as error:  # of a dozen libraries: no network, no such name, no access, a broken file
        reason = " ".join(str(error).split())
        raise InputError(
            f"the dataset {name} could not be read from Hugging Face ({type(error).__name__}: {reason}): run "
            "`python -m experiments.data prepare ...` on a node with internet, or use training.dataset=python_stdlib"
        ) from error
