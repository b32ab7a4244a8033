"""Corpora of a user's files: paths as they stand, one column of any shard, and what is refused."""

import gzip
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from experiments import data
from experiments.corpus import documents
from experiments.corpus.tokens import prepare_token_file
from models.errors import PYTHON, InputError
from tests.make_corpus import EOS, write_parquet

ODD_NAMES = [
    "a[1]",
    "x*",
    "?",
    "{a,b}",
    "~",
    "two words",
    "漢字 ü",
    "a #1",
    "[0-9]",
    "!x",
    "- x: y",
]


def refused(config, path=None) -> str:
    """The one sentence about what is wrong."""
    config.training.dataset_path = str(path) if path else config.training.dataset_path
    with pytest.raises(InputError) as error:
        prepare_token_file(config)
    assert "\n" not in str(error.value)
    return str(error.value)


def tokens_of(config, *columns) -> list[int]:
    """Write a shard for each of some tables' columns; return the tokens of the folder."""
    folder = config.training.dataset_path = config.training.dataset_path + ".d"
    os.makedirs(folder)
    for number, shard in enumerate(columns):
        pq.write_table(pa.table(shard), f"{folder}/{number}.parquet")
    return prepare_token_file(config).tokens.tolist()


# ---- paths ----


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_path_is_no_pattern(config, tmp_path, name):
    """Another file, which a pattern of this name would match, is not read in its place."""
    for folder, text in (("a1", "w9"), ("xy", "w9"), ("a", "w9"), ("5", "w9"), (name, "w3")):
        (tmp_path / folder).mkdir(exist_ok=True)
        write_parquet(tmp_path / folder / f"{folder}.parquet", [text])
    write_parquet(tmp_path / name / "other.parquet", ["w4"])
    for given, tokens in ((f"{name}/{name}.parquet", [3, EOS]), (name, [3, EOS, 4, EOS])):
        config.training.dataset_path = str(tmp_path / given)
        assert sorted(prepare_token_file(config).tokens.tolist()) == sorted(tokens)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_paths_of_the_command_line_are_taken_letter_by_letter(
    config, tmp_path, monkeypatch, capsys, name
):
    monkeypatch.chdir(tmp_path)
    os.mkdir(name)
    for place in ("corpus.parquet", "tokenizer.json"):
        os.rename(place, f"{name}/{place}")
    keys = ["training.dataset=parquet", "training.seq_len=16", f"training.dataset_path={name}"]
    keys += [f"model.hf_assets_path={name}", f"data.cache_dir={name}/cache"]
    assert data.main(["prepare", "baseline", "--overlay", "cpu", *keys]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{name}/cache/parquet-")


def test_a_home_is_not_guessed(config, monkeypatch, tmp_path):
    """A folder called ~ would be made."""
    monkeypatch.chdir(tmp_path)
    assert "~" in refused(config, "~/corpus.parquet")
    config.training.dataset_path, config.data.cache_dir = "corpus.parquet", "~/cache"
    assert "data.cache_dir=~/cache" in refused(config)
    assert not os.path.exists("~")


def test_each_fault_of_a_path_has_its_sentence(config, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/notes.txt").touch()
    (tmp_path / "gone").symlink_to(tmp_path / "cleaned/corpus.parquet")
    (tmp_path / "no_parquet").mkdir()
    (tmp_path / "no_parquet/x.parquet").write_text("version https://git-lfs.github.com/spec/v1\n")
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark/x.parquet").mkdir()
    corpus = config.training.dataset_path
    sentences = [
        refused(config, place)
        for place in (
            tmp_path / "capstor/store/corpus.parquet",
            tmp_path / "empty",
            tmp_path / "gone",
            tmp_path / "no_parquet",
            tmp_path / "spark",
            f"{corpus}/x.parquet",
            "s3://bucket/corpus.parquet",
            os.devnull,
        )
    ]
    assert len(set(sentences)) == 8 and "container" in sentences[0] and "git-lfs" in sentences[3]
    assert f"{tmp_path}/capstor does not exist" in sentences[0]  # the first folder that is missing
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read everything
    assert "may not read" in refused(config, corpus)


def test_a_folder_of_folders_names_the_one_with_files(config, tmp_path):
    (tmp_path / "corpus/train").mkdir(parents=True)
    write_parquet(tmp_path / "corpus/train/x.parquet", ["w1"])
    assert f"{tmp_path}/corpus/train" in refused(config, tmp_path / "corpus")


@pytest.mark.parametrize("name", ["corpus.parquet", "./nowhere", "/nowhere/x.parquet"])
def test_a_path_is_not_taken_for_a_name_on_the_hub(config, tmp_path, monkeypatch, name):
    """The token file of a dataset of the hub has the hash of its name, not of its content."""
    monkeypatch.chdir(tmp_path)
    config.training.dataset, config.data.max_tokens = name, 10
    assert f"training.dataset_path={name}" in refused(config)


# ---- columns ----


def test_shards_differ_in_all_columns_but_the_text(config):
    assert tokens_of(
        config,
        {"id": [1], "text": ["w1"]},
        {"text": ["w2"], "id": ["one"], "score": [0.5]},
        {"text": ["w3"], "metadata": [{"url": "u"}]},
    ) == [1, EOS, 2, EOS, 3, EOS]


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.large_string()),
    ],
)
def test_all_types_of_text_are_read_without_nulls(config, kind):
    texts = pa.array(["w1", None, "", "w2", "w1"])
    texts = texts.dictionary_encode().cast(kind) if "dictionary" in str(kind) else texts.cast(kind)
    nothing = {"text": pa.nulls(2)}
    no_row = {"text": pa.array([], pa.string())}
    assert tokens_of(config, nothing, no_row, {"text": texts}) == [1, EOS, 2, EOS, 1, EOS]


@pytest.mark.parametrize("value", [b"w1", 1, 0.5, True, ["w1"], {"role": "user"}])
def test_other_types_are_refused_by_the_name_of_their_file(config, value):
    with pytest.raises(InputError, match=r"data\.text_column=text.*/1\.parquet"):
        tokens_of(config, {"text": ["w1"]}, {"text": [value]})


@pytest.mark.parametrize("shard", [{"id": [1]}, "twice", "damaged", "another"])
def test_a_shard_without_the_text_is_refused_before_any_is_read(config, shard, monkeypatch):
    folder = config.training.dataset_path = config.training.dataset_path + ".d"
    os.makedirs(folder)
    write_parquet(f"{folder}/0.parquet", ["w1"])
    place = f"{folder}/1.parquet"
    write_parquet(place, ["w1"] * 100)
    if shard == "twice":
        pq.write_table(pa.table([["w1"], ["w2"]], names=["text", "text"]), place)
    elif shard == "damaged":
        os.truncate(place, 300)
    elif shard == "another":
        with open(place, "w") as file:
            file.write('{"text": "w1"}\n')
    else:
        pq.write_table(pa.table(shard), place)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", None)
    assert place in refused(config)


def test_a_name_with_a_dot_is_the_column_of_that_name(config):
    config.data.text_column = "a.b"
    column = {"a.b": ["w1"], "a": [{"b": "w2"}]}
    assert tokens_of(config, column) == [1, EOS]


def test_text_that_is_not_utf8_is_refused(config):
    binary = pa.array([b"ok\xff\xfe"])
    text = pa.Array.from_buffers(pa.string(), 1, binary.buffers())
    with pytest.raises(InputError, match="UTF-8"):
        tokens_of(config, {"text": text})


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (ConnectionError("Couldn't reach the hub"), "network"),
        (TimeoutError("timed out"), "network"),
        (FileNotFoundError("Dataset 'a/b' doesn't exist"), "correct the name"),
        (ValueError("Unknown split"), "data.split"),
        (KeyError("text"), "data.text_column"),
    ],
)
def test_advice_for_a_dataset_of_the_hub_is_by_the_kind_of_error(error, fix, monkeypatch):
    library = SimpleNamespace(load_dataset=Mock(side_effect=error))
    monkeypatch.setitem(sys.modules, "datasets", library)
    with pytest.raises(InputError, match=fix) as refusal:
        next(documents.read_hub("a/b", None, "train", "text"))
    assert ("network" in str(refusal.value)) == (fix == "network")


def write_text_folder(folder, kind):
    """Write the texts `w1 w2` and `w3` as people keep them."""
    import datasets

    folder.mkdir()
    rows = datasets.Dataset.from_dict({"text": ["w1 w2", "w3"]})
    lines = "".join(json.dumps({"text": text}) + "\n" for text in ("w1 w2", "w3"))
    if kind == "txt":
        (folder / "a.txt").write_text("w1 w2")
        (folder / "b.txt").write_text("w3")
    elif kind == "jsonl":
        (folder / "a.jsonl").write_text(lines)
    elif kind == "json.gz":
        (folder / "a.json.gz").write_bytes(gzip.compress(lines.encode()))
    elif kind == "dataset":
        rows.save_to_disk(folder)
    else:
        datasets.DatasetDict(train=rows).save_to_disk(folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["txt", "jsonl", "json.gz", "dataset", "dataset_dict"])
def test_other_formats_are_answered_with_the_command_that_makes_parquet(config, tmp_path, kind):
    write_text_folder(tmp_path / "my texts", kind)
    sentence = refused(config, str(tmp_path / "my texts"))
    command = re.search(r"`(.*)`", sentence)[1].replace(PYTHON, sys.executable)
    environment = os.environ | {"HF_HOME": str(tmp_path / "home")}
    subprocess.run(command, shell=True, check=True, cwd=tmp_path, env=environment)
    texts = documents.read_parquet_files([tmp_path / "text.parquet"], "text", check_all=True)
    assert [text.strip() for text in texts] == ["w1 w2", "w3"]
