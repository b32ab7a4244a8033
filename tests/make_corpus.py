"""A corpus of a few words: its word-level tokenizer makes `w7` token 7 and end-of-text token 0."""

import itertools

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, models, pre_tokenizers

EOS = 0
VOCABULARY = {"</s>": EOS} | {f"w{i}": i for i in range(1, 500)}


def write_tokenizer(path, vocabulary=VOCABULARY):
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w1"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([token for token in vocabulary if token == "</s>"])
    tokenizer.enable_truncation(
        2
    )  # as some published tokenizers do; a corpus must not be cut by it
    tokenizer.save(str(path))


def write_parquet(path, documents, column="text"):
    pq.write_table(pa.table({"id": list(range(len(documents))), column: documents}), path)


def words(n_documents, length=7):
    """Documents of `length` words, no two of the first 499 equal."""
    numbers = itertools.cycle(range(1, 500))
    return [" ".join(f"w{next(numbers)}" for _ in range(length)) for _ in range(n_documents)]
