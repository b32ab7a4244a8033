"""The data path on corpora of a few words: a word-level tokenizer makes `w7` token 7 and end-of-text token 0."""

import itertools
import multiprocessing
import os
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from experiments import data
from experiments.config import Config
from experiments.corpus import DataError, TokenFile, prepare

EOS, IGNORE = 0, -100
VOCABULARY = {"</s>": EOS} | {f"w{i}": i for i in range(1, 500)}


def write_tokenizer(path, vocabulary=VOCABULARY):
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w1"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.enable_truncation(2)  # as some published tokenizers do; a corpus must not be cut by it
    tokenizer.save(str(path))


def write_parquet(path, documents, column="text"):
    pq.write_table(pa.table({"id": list(range(len(documents))), column: documents}), path)


def words(n_documents, length=7):
    """Documents of `length` words, no two equal."""
    numbers = itertools.cycle(range(1, 500))
    return [" ".join(f"w{next(numbers)}" for _ in range(length)) for _ in range(n_documents)]


@pytest.fixture
def config(tmp_path):
    config = Config()
    config.model.hf_assets_path = str(tmp_path / "tokenizer.json")
    config.data.cache_dir = str(tmp_path / "cache")
    config.debug.seed = 42
    training = config.training
    training.dataset, training.dataset_path = "parquet", str(tmp_path / "corpus.parquet")
    training.seq_len, training.local_batch_size, training.steps = 4, 1, 1
    write_tokenizer(config.model.hf_assets_path)
    write_parquet(training.dataset_path, words(30))
    return config


def loader(config, rank=0, world_size=1):
    return data.build_dataloader(dp_world_size=world_size, dp_rank=rank, tokenizer=None, job_config=config)


def take(batches, n):
    """n batches as lists, for comparing."""
    return [(inputs["input"].tolist(), labels.tolist()) for inputs, labels in itertools.islice(batches, n)]


def test_packed_rows_join_documents_and_shift_labels(config):
    write_parquet(config.training.dataset_path, ["w1 w2 w3", "w4 w5", "", None, "w6 w7 w8 </s>"])
    file = prepare(config)
    assert file.tokens.tolist() == [1, 2, 3, EOS, 4, 5, EOS, 6, 7, 8, EOS, EOS]
    assert file.documents.tolist() == [0, 4, 7, 12] and file.eos_id == EOS

    config.training.local_batch_size = 2
    inputs, labels = next(iter(loader(config)))
    assert inputs["input"].dtype == labels.dtype == torch.int64
    rows = sorted(zip(inputs["input"].tolist(), labels.tolist(), strict=True))
    assert rows == [([1, 2, 3, EOS], [2, 3, EOS, 4]), ([4, 5, EOS, 6], [5, EOS, 6, 7])]


def test_text_that_looks_like_end_of_text_does_not_end_a_document(config):
    config.model.hf_assets_path = ""
    config.data.bpe_vocab_size = 300
    write_parquet(config.training.dataset_path, ["one <|end_of_text|> two"])
    file = prepare(config)
    assert np.flatnonzero(file.tokens == file.eos_id).tolist() == [file.n_tokens - 1]


def test_padded_rows_hold_one_document_and_ignore_padding(config):
    config.data.layout = "padded"
    config.training.local_batch_size = 3
    write_parquet(config.training.dataset_path, ["w1 w2", "w3 w4 w5 w6", "w7 w8 w9 w10 w11 w12"])
    inputs, labels = next(iter(loader(config)))
    assert sorted(zip(inputs["input"].tolist(), labels.tolist(), strict=True)) == [
        ([1, 2, EOS, EOS], [2, EOS, IGNORE, IGNORE]),
        ([3, 4, 5, 6], [4, 5, 6, EOS]),
        ([7, 8, 9, 10], [8, 9, 10, 11]),
    ]


def test_order_depends_on_seed_and_epoch_only(config):
    rows = (prepare(config).n_tokens - 1) // 4
    two_epochs = take(loader(config), 2 * rows)
    assert two_epochs == take(loader(config), 2 * rows)
    first, second = two_epochs[:rows], two_epochs[rows:]
    assert first != second and sorted(first) == sorted(second)
    assert len({str(row) for row in first}) == rows

    config.debug.seed = 43
    other = take(loader(config), rows)
    assert other != first and sorted(other) == sorted(first)


def test_ranks_share_every_epoch_without_overlap(config):
    config.training.seq_len = 3
    rows = (prepare(config).n_tokens - 1) // 3
    world_size = 4
    assert rows % world_size, "an epoch must end in the middle of a global batch for this test to mean anything"
    alone = take(loader(config), rows * world_size)
    ranks = [take(loader(config, rank, world_size), rows) for rank in range(world_size)]
    assert [row for step in zip(*ranks, strict=True) for row in step] == alone


@pytest.mark.parametrize("num_workers", [0, 1])
def test_resume_goes_on_with_the_next_batch(config, num_workers):
    config.training.local_batch_size = 2
    config.training.dataloader.num_workers = num_workers
    before = loader(config)
    batches = iter(before)
    n = 40  # more than an epoch
    take(batches, n)
    state = before.state_dict()
    expected = take(batches, 5)

    after = loader(config)
    after.load_state_dict(state)
    assert take(after, 5) == expected != take(loader(config), 5)


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
        child.join(timeout=60)
    assert [child.exitcode for child in children] == [0, 0]
    assert results.get() == results.get() == 160_000
    folders = [path for path in os.scandir(config.data.cache_dir) if path.is_dir()]
    assert len(folders) == 1


def test_python_stdlib_with_its_own_bpe(config):
    config.training.dataset, config.training.seq_len = "python_stdlib", 4096
    config.model.hf_assets_path, config.data.bpe_vocab_size = "", 512
    config.data.max_tokens = 200_000
    sentence = data.check(config)
    assert sentence.startswith("python_stdlib: 2") and "vocabulary 512 (BPE trained on it)" in sentence
    file = prepare(config)
    first = Tokenizer.from_file(str(file.path / "tokenizer.json")).decode(file.tokens[: file.documents[1]].tolist())
    import __future__

    with open(__future__.__file__) as source:
        assert first == source.read()  # the first file by name, and nothing lost


def test_a_run_longer_than_the_data_is_told_once(config, caplog):
    config.training.steps = 177
    for rank in range(2):
        loader(config, rank, world_size=2)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == ["The run reads parquet 6.0 times: 354 rows are needed and it has 59"]
    assert data.check(config).endswith("59 packed rows of 4; the run reads 177 rows, 3.00 times the data")


# ---- Hugging Face datasets ----


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
    with pytest.raises(DataError, match="did you mean 'body'.*one of body"):
        prepare(config)

    def unreachable(*args, **options):
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(DataError, match="someone/texts.*Couldn't reach.*experiments.data prepare.*python_stdlib"):
        prepare(config)
    config.data.max_tokens = None
    with pytest.raises(DataError, match="is none of python_stdlib, .*data.max_tokens"):
        prepare(config)


# ---- errors ----


@pytest.mark.parametrize(
    "key, value, sentence",
    [
        ("training.dataset_path", None, "needs training.dataset_path"),
        ("training.dataset_path", "corpse.parquet", "corpse.parquet does not exist: give"),
        ("training.dataset_path", "empty", "holds no .*parquet file"),
        ("training.seq_len", 10_000, r"240 tokens, fewer than one row \(10,001\): lower training.seq_len"),
        ("data.text_column", "texts", r"no column 'texts' \(did you mean 'text'\?\).*one of id, text"),
        ("data.text_column", "id", "column 'id' .* holds int64, not text"),
        ("model.hf_assets_path", "./llama", "model.hf_assets_path=./llama: llama does not exist"),
        ("model.hf_assets_path", "empty", "empty/tokenizer.json does not exist"),
        ("model.hf_assets_path", "corpus.parquet", "model.hf_assets_path=corpus.parquet could not be read"),
    ],
)
def test_bad_setting_gets_one_sentence(config, tmp_path, monkeypatch, key, value, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    section, name = key.split(".")
    setattr(getattr(config, section), name, value)
    with pytest.raises(DataError, match=sentence) as error:
        loader(config)
    assert "\n" not in str(error.value)


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
    with pytest.raises(DataError, match=sentence):
        prepare(config)


def test_vocabulary_larger_than_the_models(config):
    file = prepare(config)
    data.check_vocabulary(file, 500)
    with pytest.raises(DataError, match="has 500 tokens and the model 499.*data.bpe_vocab_size=499"):
        data.check_vocabulary(file, 499)


@pytest.mark.parametrize("name", ["tokens.bin", "documents.npy", "meta.json"])
@pytest.mark.parametrize("keep", [0, 101, None])
def test_damaged_file_says_what_to_delete(config, name, keep):
    path = prepare(config).path
    if keep is None:
        (path / name).unlink()
    else:
        os.truncate(path / name, keep)
    with pytest.raises(DataError, match=f"{path} is damaged .*: delete that folder and run again"):
        TokenFile.open(path)


def test_command_prepares_ahead_of_the_run(config, monkeypatch, capsys):
    asked = []

    def load(*arguments):
        asked.append(arguments)
        return SimpleNamespace(config=config)

    monkeypatch.setattr("experiments.recipe.load", load)
    command = ["data", "prepare", "baseline", "--overlay", "cpu", "training.steps=2", "--overlay", "h200"]
    monkeypatch.setattr("sys.argv", command)
    data.main()
    assert asked == [("baseline", ["cpu", "h200"], ["training.steps=2"])]
    assert str(prepare(config).path) in capsys.readouterr().out

    config.training.dataset_path = None
    with pytest.raises(SystemExit, match="error: .*needs training.dataset_path"):
        data.main()
