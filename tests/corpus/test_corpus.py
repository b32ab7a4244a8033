"""Token files: what enters them, when they are made again, and mistakes."""

import json
import multiprocessing
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer

from experiments.corpus import rows
from experiments.corpus.tokens import TokenFile, prepare
from models.errors import InputError
from tests.make_corpus import EOS, VOCABULARY, words, write_parquet, write_tokenizer


def test_text_that_looks_like_end_of_text_does_not_end_a_document(config):
    config.model.hf_assets_path = ""
    config.data.bpe_vocab_size = 300
    write_parquet(config.training.dataset_path, ["one <|end_of_text|> two"])
    file = prepare(config)
    assert np.flatnonzero(file.tokens == file.eos_id).tolist() == [file.n_tokens - 1]


def test_prepared_once_until_the_content_changes(config):
    file = prepare(config)
    before = {path: path.stat().st_mtime_ns for path in [file.path, *file.path.iterdir()]}
    config.data.layout, config.training.seq_len = "padded", 8  # the loader's affair
    assert prepare(config).path == file.path
    assert {path: path.stat().st_mtime_ns for path in [file.path, *file.path.iterdir()]} == before

    paths = {file.path}
    config.data.max_tokens = 50
    paths.add(prepare(config).path)
    config.model.hf_assets_path = ""
    for config.data.bpe_vocab_size in (300, 301):
        paths.add(prepare(config).path)
    write_parquet(config.training.dataset_path, words(31))
    paths.add(prepare(config).path)
    assert len(paths) == 5


def test_max_tokens_keeps_whole_documents(config):
    config.data.max_tokens = 17  # documents are 8 tokens long with their end-of-text
    assert prepare(config).documents.tolist() == [0, 8, 16, 24]


def test_a_folder_is_read_in_the_order_of_its_files(config, tmp_path):
    (tmp_path / "many").mkdir()
    for name, document in {"b": "w2", "a": "w1", "c": "w3"}.items():
        write_parquet(tmp_path / "many" / f"{name}.parquet", [document])
    config.training.dataset_path = str(tmp_path / "many")
    assert prepare(config).tokens.tolist() == [1, EOS, 2, EOS, 3, EOS]


def test_large_vocabulary_is_stored_in_32_bits(config):
    write_tokenizer(config.model.hf_assets_path, VOCABULARY | {"w70000": 70_000})
    write_parquet(config.training.dataset_path, ["w1 w70000"])
    file = prepare(config)
    assert file.tokens.tolist() == [1, 70_000, EOS] and file.vocab_size == 70_001


def prepare_in_child(config, start, results):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the parent's tokenizer threads are not in its fork
    start.wait()
    results.put(prepare(config).n_tokens)


def test_concurrent_preparers_share_one_file(config):
    write_parquet(config.training.dataset_path, words(20_000))
    fork = multiprocessing.get_context("fork")
    start, results = fork.Barrier(2), fork.Queue()
    children = [fork.Process(target=prepare_in_child, args=(config, start, results)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(timeout=120)
    assert [child.exitcode for child in children] == [0, 0]
    assert results.get() == results.get() == 160_000
    folders = [path for path in os.scandir(config.data.cache_dir) if path.is_dir()]
    assert len(folders) == 1


def test_python_stdlib_with_its_own_bpe(config, monkeypatch):
    """Of one of its packages, to be quick: `make study` takes all."""
    package = Path(json.__file__).parent
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(package))
    config.training.dataset, config.training.seq_len = "python_stdlib", 512
    config.model.hf_assets_path, config.data.bpe_vocab_size = "", 512
    config.data.max_tokens = 10_000
    file = prepare(config)
    sentence = rows.describe(file, config)
    assert sentence.startswith("python_stdlib: 1") and "vocabulary 512 (BPE trained on it)" in sentence
    first = Tokenizer.from_file(str(file.path / "tokenizer.json")).decode(file.tokens[: file.documents[1]].tolist())
    assert first == (package / "__init__.py").read_text()  # the first file by name, and nothing lost


@pytest.fixture
def hub(config, monkeypatch):
    """A dataset on the hub, streamed; `hub.asked` is what load_dataset was called with."""
    import datasets

    hub = SimpleNamespace(rows=[{"body": text} for text in ["w1 w2", None, "w3", "w4"]], asked=None)

    def load_dataset(*args, **options):
        hub.asked = (args, options)
        return datasets.IterableDataset.from_generator(lambda: iter(hub.rows))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    config.training.dataset, config.data.subset, config.data.text_column = "someone/texts", "small", "body"
    config.data.max_tokens = 5
    return hub


def test_hub_dataset_is_streamed_and_then_found_offline(config, hub, monkeypatch):
    file = prepare(config)
    assert file.tokens.tolist() == [1, 2, EOS, 3, EOS]
    assert hub.asked == (("someone/texts", "small"), {"split": "train", "streaming": True})
    assert file.path.name.startswith("someone--texts-")
    hub.rows = None  # the next read would fail
    assert prepare(config).path == file.path


def test_hub_errors(config, hub, monkeypatch):
    import datasets

    config.data.text_column = "boby"
    with pytest.raises(InputError, match="did you mean 'body'.*one of body"):
        prepare(config)

    def unreachable(*args, **options):
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(InputError, match="someone/texts.*Couldn't reach.*experiments.data prepare.*python_stdlib"):
        prepare(config)
    config.data.max_tokens = None
    with pytest.raises(InputError, match="is none of python_stdlib, .*data.max_tokens"):
        prepare(config)


@pytest.mark.parametrize(
    "spoil, sentence",
    [
        (lambda folder: (folder / "corpus.parquet").write_text("text\nhello\n"), "corpus.parquet is not a parquet"),
        (lambda folder: write_parquet(folder / "corpus.parquet", ["", ""]), "parquet holds no text"),
        (lambda folder: write_tokenizer(folder / "tokenizer.json", {"w1": 0}), "no end-of-text token: add one of"),
    ],
)
def test_bad_file_gets_one_sentence(config, tmp_path, spoil, sentence):
    spoil(tmp_path)
    with pytest.raises(InputError, match=sentence):
        prepare(config)


@pytest.mark.parametrize("name", ["tokens.bin", "documents.npy", "meta.json"])
@pytest.mark.parametrize("keep", [0, 101, None])
def test_damaged_file_says_what_to_delete(config, name, keep):
    path = prepare(config).path
    if keep is None:
        (path / name).unlink()
    else:
        os.truncate(path / name, keep)
    with pytest.raises(InputError, match=f"{path} is damaged .*: delete that folder and run again"):
        TokenFile.open(path)
