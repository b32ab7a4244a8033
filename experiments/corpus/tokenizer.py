"""Load a tokenizer, or train one on the corpus; choose its end-of-text token; encode documents.

The end-of-text token is, in this order:

    the key data.end_of_text         any token of the vocabulary
    eos_token                        of tokenizer_config.json in tokenizer.json's folder, or in its
                                     repository on Hugging Face's hub
    a name of END_OF_TEXT_NAMES      the first one that is a special token of the tokenizer

An ordinary token with such a name can be text: Gemma's `</s>` is a tag of HTML. Files of models
(config.json, generation_config.json) are not read: they list tokens at which a chat stops.
"""

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from experiments.config.keys import BPE_END_OF_TEXT, Config
from experiments.corpus.documents import Documents
from experiments.corpus.paths import check_path, explain_read_errors, hash_files
from models.errors import InputError

HF_ASSETS_PATH = "model.hf_assets_path"
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
END_OF_TEXT_NAMES = (
    BPE_END_OF_TEXT, "<|endoftext|>", "</s>", "<eos>", "<|eot_id|>", "<｜end▁of▁sentence｜>",
)  # fmt: skip
# Older versions chose the first of these names that was any token of the vocabulary
OLD_END_OF_TEXT_NAMES = END_OF_TEXT_NAMES[:5]
MAX_LISTED_TOKENS = 8

BATCH_CHARACTERS = 4_000_000  # encoded at once: enough for every core, in about 0.5 GB
BPE_BATCHES = 25  # the BPE learns from the corpus' beginning: more text changes it little


# ---- a tokenizer.json, one of the hub, or a BPE trained on the corpus ----


def identify_tokenizer(config: Config) -> str:
    """Identify tokenizer and end-of-text token for the token file's hash.

    A tokenizer's file enters by its content, a tokenizer of the hub by its name. The token enters
    where older versions chose another one, and, for the hub, where a key names it. So the hash of
    most token files is the same as with older versions. Raises `InputError`.
    """
    assets_path = config.model.hf_assets_path
    if not assets_path:
        return f"bpe:{config.data.bpe_vocab_size}"
    file = find_tokenizer_file(assets_path)
    if file is None:
        end_of_text = config.data.end_of_text
        return f"hub:{assets_path}:{end_of_text}" if end_of_text else f"hub:{assets_path}"
    identity = hash_files([file])
    tokenizer = load_tokenizer_file(file)
    end_of_text = choose_end_of_text(tokenizer, config)
    for name in OLD_END_OF_TEXT_NAMES:
        if tokenizer.token_to_id(name) is not None:  # the choice of older versions
            return identity if name == end_of_text else f"{identity}:{end_of_text}"
    return f"{identity}:{end_of_text}"


def is_on_hub(assets_path: str) -> bool:
    """True for the name of a tokenizer on Hugging Face; False for a path and for an empty text."""
    return bool(assets_path) and find_tokenizer_file(assets_path) is None


def find_tokenizer_file(assets_path: str) -> Path | None:
    """Return the tokenizer.json at or in a path; None for a name on the hub.

    Raises `InputError` for a path without a tokenizer.json.
    """
    if not os.path.exists(assets_path) and is_hub_name(assets_path):
        return None
    path = check_path(HF_ASSETS_PATH, assets_path)
    if path.is_file():
        return path
    if not os.path.lexists(path / TOKENIZER_FILE):
        raise InputError(
            f"{HF_ASSETS_PATH}={assets_path}: the folder holds no {TOKENIZER_FILE}: name one that "
            'does, or a name on Hugging Face; "" trains a BPE on the corpus'
        )
    return check_path(HF_ASSETS_PATH, str(path / TOKENIZER_FILE))


def is_hub_name(text: str) -> bool:
    """True for a text that can be a name on Hugging Face, as `gpt2` or `someone/model`; False for
    a path."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(text)
    except HFValidationError:
        return False
    return not text.endswith(".json")


def load_tokenizer(config: Config, documents: Documents) -> Tokenizer:
    """Load the tokenizer, or train one on the documents. Raises `InputError`."""
    assets_path = config.model.hf_assets_path
    if not assets_path:
        return train_bpe(documents(), config.data.bpe_vocab_size)
    file = find_tokenizer_file(assets_path)
    if file:
        return load_tokenizer_file(file)
    with explain_tokenizer_errors(assets_path):
        return Tokenizer.from_pretrained(assets_path)


def load_tokenizer_file(file: Path) -> Tokenizer:
    """Load a tokenizer.json. Raises `InputError`."""
    with explain_tokenizer_errors(str(file)):
        return Tokenizer.from_file(str(file))


def explain_tokenizer_errors(assets_path: str):
    """Turn any error of reading a tokenizer into an `InputError`; to be used with `with`."""
    fix = (
        "give a tokenizer.json of the `tokenizers` library, a folder with one, or a name on "
        'Hugging Face, which needs internet; "" trains a BPE on the corpus'
    )
    return explain_read_errors(f"{HF_ASSETS_PATH}={assets_path} could not be read", fix)


def train_bpe(documents: Iterator[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE; the same documents give the same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BPE_END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    batches = itertools.islice(batch_documents(documents), BPE_BATCHES)
    tokenizer.train_from_iterator(batches, trainer)
    return tokenizer


# ---- end of text ----


def choose_end_of_text(tokenizer: Tokenizer, config: Config) -> str:
    """Choose the token at the end of each document. Raises `InputError` without one."""
    assets_path = config.model.hf_assets_path
    token = config.data.end_of_text
    if token is not None:
        return check_token(tokenizer, token, f"data.end_of_text={token}")
    config_file = find_tokenizer_config(assets_path) if assets_path else None
    if config_file:
        token = read_eos_token(config_file)
    if token is not None:
        return check_token(tokenizer, token, f"{config_file}: eos_token={token}")
    special_tokens = list_special_tokens(tokenizer)
    for name in END_OF_TEXT_NAMES:
        if name in special_tokens:
            return name
    raise InputError(
        f"{HF_ASSETS_PATH}={assets_path}: the tokenizer does not name an end-of-text token: "
        f"{advise_token(tokenizer)}"
    )


def check_token(tokenizer: Tokenizer, token: str, source: str) -> str:
    """Return a token of the tokenizer. Raises `InputError`, which begins with `source`, for a text
    that is not a token."""
    if tokenizer.token_to_id(token) is None:
        raise InputError(f"{source}: the tokenizer has no such token: {advise_token(tokenizer)}")
    return token


def advise_token(tokenizer: Tokenizer) -> str:
    """Advise to name the end-of-text token, with the first special tokens as examples."""
    advice = "choose a token of its vocabulary with data.end_of_text"
    names = list_special_tokens(tokenizer)[:MAX_LISTED_TOKENS]
    if not names:
        names = [name for name in END_OF_TEXT_NAMES if tokenizer.token_to_id(name) is not None]
    return f"{advice}, as {', '.join(names)}" if names else advice


def list_special_tokens(tokenizer: Tokenizer) -> list[str]:
    """List the special tokens by id: control marks, which no text has."""
    added_tokens = tokenizer.get_added_tokens_decoder()
    special_ids = [token_id for token_id in sorted(added_tokens) if added_tokens[token_id].special]
    return [added_tokens[token_id].content for token_id in special_ids]


def find_tokenizer_config(assets_path: str) -> Path | None:
    """Find the tokenizer_config.json in tokenizer.json's folder, or on the hub; None without one.
    Raises `InputError`."""
    file = find_tokenizer_file(assets_path)
    if file:
        config_file = file.with_name(TOKENIZER_CONFIG_FILE)
        # The folder's configuration is about tokenizer.json, not about a file with another name
        is_present = file.name == TOKENIZER_FILE and os.path.lexists(config_file)
        return config_file if is_present else None
    fix = "try again with internet, or name the end-of-text token with data.end_of_text"
    with explain_read_errors(f"{TOKENIZER_CONFIG_FILE} of {assets_path} could not be read", fix):
        from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        try:
            return Path(hf_hub_download(assets_path, TOKENIZER_CONFIG_FILE))
        except LocalEntryNotFoundError:  # no internet
            cached_file = try_to_load_from_cache(assets_path, TOKENIZER_CONFIG_FILE)
            if cached_file is _CACHED_NO_EXIST:
                return None
            raise
        except EntryNotFoundError:
            return None


def read_eos_token(file: Path) -> str | None:
    """Read `eos_token`, a text or an object with `content`; None if it is missing or null.

    Raises `InputError`.
    """
    fix = "correct that file, or name the end-of-text token with data.end_of_text"
    with explain_read_errors(f"{file} could not be read", fix):
        content = json.loads(file.read_bytes())
    token = content.get("eos_token") if isinstance(content, dict) else content
    if isinstance(token, dict):
        token = token.get("content", token)
    if not isinstance(token, str | None):
        raise InputError(f"{file}: eos_token is not a text: {token!r:.80}: {fix}")
    return token


# ---- text to tokens ----


def encode_documents(tokenizer: Tokenizer, documents: Iterator[str]) -> Iterator[list[int]]:
    """Encode documents to token ids, without special tokens; skip documents without tokens."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # "</s>" in a document is text, not the document's end
    fix = f"give another {HF_ASSETS_PATH}, with a token for unknown words"
    for batch in batch_documents(documents):
        with explain_read_errors("the tokenizer cannot encode the corpus", fix):
            encodings = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        for encoding in encodings:
            if encoding.ids:
                yield encoding.ids


def batch_documents(documents: Iterator[str]) -> Iterator[list[str]]:
    """Batch documents: encoding a text takes 100 times its size in memory."""
    batch = []
    n_characters = 0
    for document in documents:
        batch.append(document)
        n_characters += len(document)
        if n_characters >= BATCH_CHARACTERS:
            yield batch
            batch = []
            n_characters = 0
    yield batch
