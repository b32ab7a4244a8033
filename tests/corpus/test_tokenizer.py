"""The token at the end of each document: a special one, and who names it."""

import json

import huggingface_hub
import pytest
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from experiments.corpus import tokens
from experiments.corpus.tokens import prepare_token_file
from models.errors import InputError

# Special tokens and ordinary ones, as in the tokenizers of these models
GEMMA = ["<pad>", "<eos>", "<bos>", "<unk>"], ["<s>", "</s>", "<b>", "</b>"]
DEEPSEEK = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"], []
QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], []
LLAMA_2 = ["<unk>", "<s>", "</s>"], []
LLAMA_3 = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"], []
OF_ANOTHER_FAMILY = ["[CLS]", "[SEP]"], ["</s>"]


def write_tokenizer(path, special, ordinary=()):
    """A tokenizer of words, whose special tokens come first."""
    vocabulary = [*special, *(f"w{number}" for number in range(1, 500))]
    numbered = {token: number for number, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(numbered, unk_token="w1"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in ordinary])
    path.parent.mkdir(exist_ok=True)
    tokenizer.save(str(path))
    return tokenizer


def prepared(config, tmp_path, family, **configuration) -> str:
    """Prepare with a tokenizer's folder; return the token at the end of each document."""
    tokenizer = write_tokenizer(tmp_path / "model/tokenizer.json", *family)
    for name, content in configuration.items():
        (tmp_path / f"model/{name}.json").write_text(json.dumps(content))
    config.model.hf_assets_path = str(tmp_path / "model")
    file = prepare_token_file(config)
    assert {*file.tokens[file.documents[1:] - 1].tolist()} == {file.eos_id}
    return tokenizer.id_to_token(file.eos_id)


def refused(config) -> str:
    """The one sentence about what is wrong."""
    with pytest.raises(InputError) as error:
        prepare_token_file(config)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("family", "token"),
    [
        (GEMMA, "<eos>"),
        (DEEPSEEK, "<｜end▁of▁sentence｜>"),
        (QWEN, "<|endoftext|>"),
        (LLAMA_2, "</s>"),
        (LLAMA_3, "<|end_of_text|>"),
        ((["<|begin_of_text|>", "<|eot_id|>"], ["</s>"]), "<|eot_id|>"),
    ],
)
def test_an_ordinary_token_ends_no_document(config, tmp_path, family, token):
    assert prepared(config, tmp_path, family) == token


@pytest.mark.parametrize("form", ["{}", {"__type": "AddedToken", "content": "{}", "lstrip": False}])
@pytest.mark.parametrize("token", ["<|im_end|>", "w7"])
def test_tokenizer_config_names_it(config, tmp_path, form, token):
    """Also an ordinary token, and where tokenizer.json itself is given."""
    eos_token = json.loads(json.dumps(form).replace("{}", token))
    tokenizer_config = {"eos_token": eos_token, "bos_token": None}
    assert prepared(config, tmp_path, QWEN, tokenizer_config=tokenizer_config) == token
    folder = prepare_token_file(config).path
    config.model.hf_assets_path += "/tokenizer.json"
    assert prepare_token_file(config).path == folder


@pytest.mark.parametrize("content", [{}, {"eos_token": None}])
def test_a_tokenizer_config_without_it_counts_for_nothing(config, tmp_path, content):
    """Nor does the list of tokens at which a chat stops."""
    stops = {"eos_token_id": [1, 2]}
    token = prepared(config, tmp_path, QWEN, tokenizer_config=content, generation_config=stops)
    assert token == "<|endoftext|>"


def test_the_key_comes_first(config, tmp_path):
    config.data.end_of_text = "<|im_start|>"
    (tmp_path / "model").mkdir()
    (tmp_path / "model/tokenizer_config.json").write_text("{")
    assert prepared(config, tmp_path, QWEN) == "<|im_start|>"
    config.data.end_of_text = "w7"
    assert prepared(config, tmp_path, QWEN) == "w7"


def test_it_enters_the_hash_only_where_earlier_versions_chose_another(config, tmp_path):
    """As those named the folder, whose token file is still valid: by the file's content alone."""

    def hashed(family, end_of_text=None) -> str:
        config.data.end_of_text = end_of_text
        prepared(config, tmp_path, family)
        return prepare_token_file(config).path.name

    assert hashed(QWEN) == hashed(QWEN, "<|endoftext|>") != hashed(QWEN, "<|im_end|>")
    assert hashed(GEMMA) == hashed(GEMMA, "<eos>") != hashed(GEMMA, "</s>")
    content = [2, tokens.open_corpus(config)[0], None, None]
    content[2] = tokens.hash_files([tmp_path / "model/tokenizer.json"])
    earlier = tokens.hashlib.blake2b(json.dumps(content).encode()).hexdigest()[:12]
    assert hashed(GEMMA, "</s>") == f"parquet-{earlier}" != hashed(GEMMA)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '"</s>"',
        '{"eos_token": 2}',
        '{"eos_token": {"special": true}}',
        '{"eos_token": "<|nowhere|>"}',
        '{"eos_token": ""}',
        "\xff",
    ],
)
def test_a_wrong_tokenizer_config_is_one_sentence(config, tmp_path, content):
    write_tokenizer(tmp_path / "model/tokenizer.json", *QWEN)
    (tmp_path / "model/tokenizer_config.json").write_text(content, encoding="latin-1")
    config.model.hf_assets_path = str(tmp_path / "model")
    sentence = refused(config)
    assert "tokenizer_config.json" in sentence and "data.end_of_text" in sentence


def test_a_wrong_name_is_answered_with_candidates(config, tmp_path):
    write_tokenizer(tmp_path / "tokenizer.json", *OF_ANOTHER_FAMILY)
    nothing_named = refused(config)
    config.data.end_of_text = "<|eos|>"
    for sentence in (nothing_named, refused(config)):
        assert "data.end_of_text" in sentence and "[CLS], [SEP]" in sentence
        assert "</s>" not in sentence
    config.data.end_of_text = "[SEP]"
    assert prepare_token_file(config).eos_id == 1


# ---- of Hugging Face's hub ----


@pytest.fixture
def hub(config, tmp_path, monkeypatch):
    """A hub with one model, of Gemma's tokens; returns its folder."""
    folder = tmp_path / "hub"
    write_tokenizer(folder / "tokenizer.json", *GEMMA)

    def download(name, file):
        if folder.exists() and (folder / file).exists():
            return str(folder / file)
        raise EntryNotFoundError(file) if folder.exists() else LocalEntryNotFoundError(file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(
        "experiments.corpus.tokenizer.Tokenizer.from_pretrained",
        lambda name: Tokenizer.from_file(download(name, "tokenizer.json")),
        raising=False,
    )
    config.model.hf_assets_path = "someone/model"
    return folder


@pytest.mark.parametrize("eos_token", ["<eos>", "<b>", None])
def test_a_tokenizer_of_the_hub_has_its_configuration_there(config, hub, eos_token):
    if eos_token:
        (hub / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos_token}))
    file = prepare_token_file(config)
    assert Tokenizer.from_file(str(hub / "tokenizer.json")).id_to_token(file.eos_id) == (
        eos_token or "<eos>"
    )
    hub.rename(hub.with_name("offline"))
    assert prepare_token_file(config).path == file.path
    config.data.end_of_text = "<bos>"
    assert "someone/model" in refused(config)


def test_offline_a_configuration_may_be_known_to_be_missing(config, hub, monkeypatch):
    def download(name, file):
        raise LocalEntryNotFoundError(file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert "tokenizer_config.json of someone/model" in refused(config)
    missing = huggingface_hub._CACHED_NO_EXIST
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda name, file: missing)
    assert prepare_token_file(config).eos_id == 1


def test_an_earlier_choice_of_an_ordinary_token_is_not_used(config, hub, monkeypatch):
    """The hash of a tokenizer of the hub is of its name: it cannot tell which token was chosen."""
    earlier = "experiments.corpus.tokens.choose_end_of_text"
    with monkeypatch.context() as patch:
        patch.setattr(earlier, lambda tokenizer, config: "</s>")
        patch.setattr(tokens, "list_special_tokens", lambda tokenizer: ["</s>"])  # not marked
        file = prepare_token_file(config)
    again = prepare_token_file(config)
    assert again.path == file.path and again.eos_id == 1 != file.eos_id
