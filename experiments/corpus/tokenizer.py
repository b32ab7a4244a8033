"""Text to tokens: by a tokenizer.json, a tokenizer of Hugging Face's hub, or a BPE trained on the
corpus."""

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from experiments.config.keys import Config
from experiments.corpus.documents import Source, digest_of, readable
from models.errors import InputError

END_OF_TEXT_NAMES = ("<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>", "<|eot_id|>")
BATCH_CHARACTERS = 4_000_000  # encoded at once: enough for every core, and takes about 0.5 GB
BPE_BATCHES = 25  # the BPE learns from the corpus' beginning: more takes minutes, changes little
# A path cannot be a hub name, which is `name` or `owner/name`.
LOCAL_PATH = re.compile(r"[./~].*|.*\.json|.*/.*/.*")


def open_tokenizer(config: Config) -> tuple[str, Callable[[Source], Tokenizer]]:
    """Give the tokenizer's identity, which enters the token file's hash, and a function that loads
    it for a corpus.

    A tokenizer of the hub is identified by its name. Raises `InputError` if it is a local file that
    is not there.
    """
    given, vocab_size = config.model.hf_assets_path, config.data.bpe_vocab_size
    path = Path(given)
    if not given:
        return f"bpe:{vocab_size}", lambda source: _train_bpe(source.documents(), vocab_size)
    if not path.exists() and not LOCAL_PATH.fullmatch(given):
        return f"hub:{given}", lambda _: _read(Tokenizer.from_pretrained, given)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise InputError(
            f"model.hf_assets_path={given}: {file} does not exist; give a tokenizer.json, a folder "
            'with one, a name on Hugging Face, or "" to train a BPE on the corpus'
        )
    return digest_of([file]), lambda _: _read(Tokenizer.from_file, str(file))


def _read(load: Callable[[str], Tokenizer], given: str) -> Tokenizer:
    mend = "give a tokenizer.json of the `tokenizers` library, or fetch it on a node with internet"
    with readable(f"model.hf_assets_path={given} could not be read", mend):
        return load(given)


def _train_bpe(documents: Iterator[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE; the same documents give the same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT_NAMES[0]],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    beginning = itertools.islice(_batches(documents), BPE_BATCHES)
    tokenizer.train_from_iterator((texts for texts, _ in beginning), trainer)
    return tokenizer


def end_of_text(tokenizer: Tokenizer) -> int:
    """Find the token that ends a document. Raises `InputError` if there is none."""
    for name in END_OF_TEXT_NAMES:
        token = tokenizer.token_to_id(name)
        if token is not None:
            return token
    raise InputError(
        f"the tokenizer has no end-of-text token: add one of {', '.join(END_OF_TEXT_NAMES)} to it"
    )


def encode(tokenizer: Tokenizer, documents: Iterator[str]) -> Iterator[tuple[list[int], bool]]:
    """Give the token ids of pieces of documents, without specials such as end-of-text, and whether
    a document ends with the piece."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # "</s>" in a document is text, not the document's end
    mend = "give another model.hf_assets_path, with a token for unknown words"
    for texts, ends in _batches(documents):
        with readable("the tokenizer cannot encode the corpus", mend):
            encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        for encoding, document_ends in zip(encodings, ends, strict=True):
            yield encoding.ids, document_ends


def _batches(documents: Iterator[str]) -> Iterator[tuple[list[str], list[bool]]]:
    """Gather documents, long ones in pieces of a batch's size, and whether a document ends with the
    piece.

    The tokenizer takes 100 times a text's size in memory; a cut costs a token or two.
    """
    texts, ends, room = [], [], BATCH_CHARACTERS
    for document in documents:
        for start in range(0, len(document), BATCH_CHARACTERS):
            piece = document[start : start + BATCH_CHARACTERS]
            texts.append(piece)
            ends.append(start + len(piece) == len(document))
            room -= len(piece)
            if room <= 0:
                yield texts, ends
                texts, ends, room = [], [], BATCH_CHARACTERS
    if texts:
        yield texts, ends
