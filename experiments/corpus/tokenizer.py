"""Load a tokenizer, or train one on the corpus; choose its end-of-text token; encode documents.

The end-of-text token is, in this order:

    the key data.end_of_text         any token of the vocabulary
    eos_token                        of tokenizer_config.json in tokenizer.json's folder, or beside
                                     it on Hugging Face's hub
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
# Up to format 2's first release any token of the vocabulary with one of these names was taken
OLD_END_OF_TEXT_NAMES = END_OF_TEXT_NAMES[:5]
MAX_LISTED_TOKENS = 8

BATCH_CHARACTERS = 4_000_000  # encoded at once: enough for every core, and takes about 0.5 GB
BPE_BATCHES = 25  # the BPE learns from the corpus' beginning: more takes minutes, changes little


# ---- a tokenizer.json, one of the hub, or a BPE trained on the corpus ----


def identify_tokenizer(config: Config) -> str:
    """Identify tokenizer and end-of-text token for the token file's hash.

    A tokenizer's file enters by its content, one of the hub by its name. The token enters where it
    is another one than earlier versions chose, and on the hub where a key names it: other token
    files keep their hash. Raises `InputError`.
    """
    given, named = config.model.hf_assets_path, config.data.end_of_text
    if not given:
        return f"bpe:{config.data.bpe_vocab_size}"
    file = find_tokenizer_file(given)
    if file is None:
        identity, changed = f"hub:{given}", named
    else:
        identity, tokenizer = hash_files([file]), load_tokenizer_file(file)
        token = choose_end_of_text(tokenizer, config)
        earlier = [
            name for name in OLD_END_OF_TEXT_NAMES if tokenizer.token_to_id(name) is not None
        ]
        changed = token if [token] != earlier[:1] else None
    return f"{identity}:{changed}" if changed else identity


def is_on_hub(given: str) -> bool:
    """True for the name of a tokenizer on Hugging Face; False for a path, and for none."""
    return bool(given) and find_tokenizer_file(given) is None


def find_tokenizer_file(given: str) -> Path | None:
    """Return the tokenizer.json at or in a path; None for a name on the hub.

    Raises `InputError` for a path without one.
    """
    if not os.path.exists(given) and is_hub_name(given):
        return None
    path = check_path(HF_ASSETS_PATH, given)
    if path.is_file():
        return path
    if not os.path.lexists(path / TOKENIZER_FILE):
        raise InputError(
            f"{HF_ASSETS_PATH}={given}: the folder holds no {TOKENIZER_FILE}: name one that does, or a "
            'name on Hugging Face; "" trains a BPE on the corpus'
        )
    return check_path(HF_ASSETS_PATH, str(path / TOKENIZER_FILE))


def is_hub_name(given: str) -> bool:
    """True for what can be a name on Hugging Face, as `gpt2` or `someone/model`; else it is a
    path."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(given)
    except HFValidationError:
        return False
    return not given.endswith(".json")


def load_tokenizer(config: Config, documents: Documents) -> Tokenizer:
    """Load the tokenizer, or train one on the documents. Raises `InputError`."""
    given = config.model.hf_assets_path
    if not given:
        return train_bpe(documents(), config.data.bpe_vocab_size)
    file = find_tokenizer_file(given)
    if file:
        return load_tokenizer_file(file)
    with explain_tokenizer_errors(given):
        return Tokenizer.from_pretrained(given)


def load_tokenizer_file(file: Path) -> Tokenizer:
    """Load a tokenizer.json. Raises `InputError`."""
    with explain_tokenizer_errors(str(file)):
        return Tokenizer.from_file(str(file))


def explain_tokenizer_errors(given: str):
    """Turn any error of reading a tokenizer into an `InputError`."""
    mend = (
        "give a tokenizer.json of the `tokenizers` library, a folder with one, or a name on "
        'Hugging Face, which needs internet; "" trains a BPE on the corpus'
    )
    return explain_read_errors(f"{HF_ASSETS_PATH}={given} could not be read", mend)


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
    tokenizer.train_from_iterator(
        itertools.islice(batch_documents(documents), BPE_BATCHES), trainer
    )
    return tokenizer


# ---- end of text ----


def choose_end_of_text(tokenizer: Tokenizer, config: Config) -> str:
    """Choose the token at the end of each document. Raises `InputError` if there is none."""
    given, named = config.model.hf_assets_path, config.data.end_of_text
    if named is not None:
        return check_token(tokenizer, named, f"data.end_of_text={named}")
    place = find_tokenizer_config(given) if given else None
    named = read_eos_token(place) if place else None
    if named is not None:
        return check_token(tokenizer, named, f"{place}: eos_token={named}")
    special = list_special_tokens(tokenizer)
    for name in END_OF_TEXT_NAMES:
        if name in special:
            return name
    raise InputError(
        f"{HF_ASSETS_PATH}={given}: the tokenizer does not name an end-of-text token: "
        f"{advise_token(tokenizer)}"
    )


def check_token(tokenizer: Tokenizer, token: str, place: str) -> str:
    """Return a token of the tokenizer. Raises `InputError`, which begins with `place`, for another
    text."""
    if tokenizer.token_to_id(token) is None:
        raise InputError(f"{place}: the tokenizer has no such token: {advise_token(tokenizer)}")
    return token


def advise_token(tokenizer: Tokenizer) -> str:
    """Advise to name the end-of-text token, with the first special tokens as examples."""
    names = list_special_tokens(tokenizer)[:MAX_LISTED_TOKENS]
    names = names or [name for name in END_OF_TEXT_NAMES if tokenizer.token_to_id(name) is not None]
    examples = f", as {', '.join(names)}" if names else ""
    return f"choose a token of its vocabulary with data.end_of_text{examples}"


def list_special_tokens(tokenizer: Tokenizer) -> list[str]:
    """List the special tokens by number: control marks, which no text has."""
    added = tokenizer.get_added_tokens_decoder()
    return [added[number].content for number in sorted(added) if added[number].special]


def find_tokenizer_config(given: str) -> Path | None:
    """Find the tokenizer_config.json in tokenizer.json's folder, or on the hub; None if there is
    none. Raises `InputError`."""
    file = find_tokenizer_file(given)
    if file:
        place = file.with_name(TOKENIZER_CONFIG_FILE)
        # A tokenizer of another name is not what this folder's configuration is about
        return place if file.name == TOKENIZER_FILE and os.path.lexists(place) else None
    mend = "try again with internet, or name the end-of-text token with data.end_of_text"
    with explain_read_errors(f"{TOKENIZER_CONFIG_FILE} of {given} could not be read", mend):
        from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        try:
            return Path(hf_hub_download(given, TOKENIZER_CONFIG_FILE))
        except LocalEntryNotFoundError:  # no internet
            if try_to_load_from_cache(given, TOKENIZER_CONFIG_FILE) is _CACHED_NO_EXIST:
                return None
            raise
        except EntryNotFoundError:
            return None


def read_eos_token(file: Path) -> str | None:
    """Read `eos_token`, a text or an object with `content`; None if it is missing or null.

    Raises `InputError`.
    """
    mend = "correct that file, or name the end-of-text token with data.end_of_text"
    with explain_read_errors(f"{file} could not be read", mend):
        content = json.loads(file.read_bytes())
    token = content.get("eos_token") if isinstance(content, dict) else content
    if isinstance(token, dict):
        token = token.get("content", token)
    if not isinstance(token, str | None):
        raise InputError(f"{file}: eos_token is not a text: {token!r:.80}: {mend}")
    return token


# ---- text to tokens ----


def encode_documents(tokenizer: Tokenizer, documents: Iterator[str]) -> Iterator[list[int]]:
    """Encode documents to token ids, without special tokens; skip documents without tokens."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # "</s>" in a document is text, not the document's end
    mend = f"give another {HF_ASSETS_PATH}, with a token for unknown words"
    for batch in batch_documents(documents):
        with explain_read_errors("the tokenizer cannot encode the corpus", mend):
            encodings = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        yield from filter(None, (encoding.ids for encoding in encodings))


def batch_documents(documents: Iterator[str]) -> Iterator[list[str]]:
    """Batch documents: encoding a text takes 100 times its size in memory."""
    batch, characters = [], 0
    for document in documents:
        batch.append(document)
        characters += len(document)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    yield batch
