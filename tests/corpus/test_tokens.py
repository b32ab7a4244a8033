"""Token files: what enters them, when they are made again, and mistakes."""

import errno
import io
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path
from unittest.mock import Mock

import datasets
import numpy as np
import pytest
from tokenizers import Tokenizer

from experiments.corpus import tokenizer, tokens
from experiments.corpus.tokens import prepare_token_file
from experiments.records.files import DISK_FULL_REASONS, DiskFull
from models.errors import InputError
from tests.make_corpus import EOS, words, write_parquet
from tests.runs import room_for


def refused(config) -> str:
    """The one sentence about what is wrong."""
    with pytest.raises(InputError) as error:
        prepare_token_file(config)
    assert "\n" not in str(error.value)
    return str(error.value)


# ---- what enters ----


def test_a_bpe_of_the_corpus_loses_nothing_and_ends_each_document_once(config):
    config.model.hf_assets_path, config.data.bpe_vocab_size = "", 300
    text = "one <|end_of_text|> zwölf\n\ttwo"
    write_parquet(config.training.dataset_path, [text])
    file = prepare_token_file(config)
    assert np.flatnonzero(file.tokens == file.eos_id).tolist() == [len(file.tokens) - 1]
    own = Tokenizer.from_file(str(file.path / "tokenizer.json"))
    assert own.decode(file.tokens[:-1].tolist(), skip_special_tokens=False) == text


def test_prepared_and_hashed_once_until_the_content_changes(config, monkeypatch):
    file = prepare_token_file(config)
    config.data.layout, config.training.seq_len = "padded", 8  # the loader's affair
    with monkeypatch.context() as patch:
        patch.delattr("hashlib.file_digest")
        assert prepare_token_file(config).path == file.path

    write_parquet(config.training.dataset_path, words(31))
    files = [file, prepare_token_file(config)]
    config.data.max_tokens = 17  # whole documents are kept, 8 tokens long with their end-of-text
    files.append(prepare_token_file(config))
    config.model.hf_assets_path = ""
    for config.data.bpe_vocab_size in (300, 301):
        files.append(prepare_token_file(config))
    assert files[2].documents.tolist() == [0, 8, 16, 24]
    assert len({file.path for file in files}) == 5


def test_a_folder_is_read_by_name_in_batches_that_change_nothing(config, tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer, "BATCH_CHARACTERS", 3)
    folder = tmp_path / "many"
    folder.mkdir()
    write_parquet(folder / "b.parquet", ["w2 w3", " ", "w4"])
    write_parquet(folder / "a.parquet", ["w1"])
    config.training.dataset_path = str(folder)
    assert prepare_token_file(config).tokens.tolist() == [1, EOS, 2, 3, EOS, 4, EOS]


def test_hub_dataset_is_streamed_and_then_found_offline(config, monkeypatch):
    texts = [{"body": text} for text in ["w1 w2", None, "w3", "w4"]]
    load = Mock(return_value=datasets.IterableDataset.from_generator(lambda: texts))
    monkeypatch.setattr(datasets, "load_dataset", load)
    config.training.dataset, config.data.subset = "someone/texts", "small"
    config.data.text_column, config.data.max_tokens = "body", 5
    file = prepare_token_file(config)
    assert file.tokens.tolist() == [1, 2, EOS, 3, EOS]
    load.assert_called_once_with("someone/texts", name="small", split="train", streaming=True)
    load.side_effect = ConnectionError("Couldn't reach the Hub")
    assert prepare_token_file(config).path == file.path
    config.data.split = "test"
    assert "Couldn't reach" in refused(config)


# ---- several at once, and those that end ----


def test_concurrent_preparers_share_one_file(config, monkeypatch):
    """As threads: each has a lock file of its own, as a process has."""
    write_parquet(config.training.dataset_path, words(20_000))
    write = Mock(wraps=tokens._write_token_file)
    monkeypatch.setattr(tokens, "_write_token_file", write)
    with ThreadPoolExecutor() as pool:
        files = list(pool.map(prepare_token_file, [config] * 3))
    write.assert_called_once()
    assert [len(file.tokens) for file in files] == [160_000] * 3


@pytest.mark.parametrize("name", tokens.TOKEN_FILE_NAMES)
def test_a_full_disk_is_told_with_its_folder_and_leaves_nothing_behind(name, config):
    """Whichever file does not fit, and whoever writes it: the tokenizers raise no OSError."""
    file = prepare_token_file(config).path / name
    size = file.stat().st_size
    shutil.rmtree(file.parent)
    full = pytest.raises(DiskFull, match=re.escape(DISK_FULL_REASONS[errno.EFBIG]))
    # what is printed goes into a file too, which the limit holds for
    with redirect_stdout(io.StringIO()), room_for(size - 1), full as error:
        prepare_token_file(config)
    assert config.data.cache_dir in str(error.value) or "free" not in str(error.value)
    assert all(path.name.endswith(".lock") for path in Path(config.data.cache_dir).iterdir())


def test_what_a_killed_process_left_is_removed(config):
    prepared = prepare_token_file(config).path
    partial = prepared.with_name(f".{prepared.name}.partial")
    prepared.rename(partial)
    assert prepare_token_file(config).path == prepared and not partial.exists()


# ---- cleaned scratch ----


@pytest.mark.parametrize(
    "lost", [tokens.TOKEN_FILE_NAMES, ["checksum"], ["meta.json"], ["tokens.bin"]]
)
def test_a_cleaned_token_file_is_prepared_again(config, lost, caplog):
    """Some file systems delete what nobody has read for long, and keep its folder."""
    file = prepare_token_file(config)
    content = file.tokens.tolist()
    for name in lost:
        (file.path / name).unlink()
    (file.path / ".nfs0001").touch()  # of a process that has the file open
    again = prepare_token_file(config)
    assert again.path == file.path and again.tokens.tolist() == content
    assert str(file.path) in caplog.text and lost[0] in caplog.text
    caplog.clear()
    prepare_token_file(config)
    assert not caplog.text
    assert not [path for path in file.path.parent.iterdir() if "left" in path.name]


def test_several_prepare_a_cleaned_token_file_once(config, monkeypatch):
    path = prepare_token_file(config).path
    (path / "tokens.bin").unlink()
    write = Mock(wraps=tokens._write_token_file)
    monkeypatch.setattr(tokens, "_write_token_file", write)
    with ThreadPoolExecutor() as pool:
        files = list(pool.map(prepare_token_file, [config] * 3))
    write.assert_called_once()
    assert [len(file.tokens) for file in files] == [240] * 3


def test_a_cache_that_cannot_be_written_is_one_sentence(config, monkeypatch):
    path = prepare_token_file(config).path
    denied = Mock(side_effect=OSError(errno.EROFS, "Read-only file system", str(path.parent)))
    monkeypatch.setattr(tokens, "lock_file", denied)
    assert prepare_token_file(config).path == path  # nothing is to be written
    (path / "tokens.bin").unlink()
    assert refused(config).startswith(f"data.cache_dir={path.parent}: ")


# ---- what is not right ----


def test_a_corpus_without_text_is_refused(config):
    write_parquet(config.training.dataset_path, ["", ""])
    assert "holds no text" in refused(config)


@pytest.mark.parametrize("name", ["tokens.bin", "meta.json", "checksum"])
def test_a_damaged_file_is_prepared_again(config, name, caplog):
    whole = prepare_token_file(config)
    tokens = whole.tokens.tolist()
    os.truncate(whole.path / name, 3)
    assert prepare_token_file(config).tokens.tolist() == tokens
    assert f"{whole.path} is damaged" in caplog.text
