"""Make torchtitan's batches from a token file."""

import itertools
from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from experiments.config.keys import Config  # before torchtitan, for its CPU device  # isort: skip
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import IGNORE_INDEX

from experiments.corpus.tokens import TokenFile
from models.errors import InputError

Row = tuple[dict[str, torch.Tensor], torch.Tensor]
"""{"input": int64 [seq_len]} and the labels, int64 [seq_len]."""


def check_vocabulary(token_file: TokenFile, model_vocab_size: int) -> None:
    """Raise InputError if the tokenizer has more tokens than the model's embedding has rows."""
    if token_file.vocab_size > model_vocab_size:
        raise InputError(
            f"the tokenizer of {token_file.dataset} has {token_file.vocab_size:,} tokens and the "
            f"model {model_vocab_size:,}: choose a flavor or model.sizes with a larger vocabulary, "
            "another model.hf_assets_path, or, with an empty one, a smaller data.bpe_vocab_size"
        )


def describe_data(token_file: TokenFile, config: Config, world_size: int = 1) -> str:
    """Say in a sentence what a run reads of a token file. Raises InputError if it has no row."""
    n_rows = len(Rows(token_file, config))
    training = config.training
    # a global batch of -1 is one forward pass of each process
    batch_size = max(training.global_batch_size, training.local_batch_size * world_size)
    rows_of_run = training.steps * batch_size
    share = rows_of_run / n_rows
    if share <= 1:
        reading = f"{share:.1%} of them"
    else:
        reading = f"all of them {share:,.{1 if share < 10 else 0}f} times over"
    return (
        f"{token_file.dataset}: {len(token_file.tokens):,} tokens (a vocabulary of "
        f"{token_file.vocab_size:,}), {n_rows:,} {config.data.layout} rows of "
        f"{training.seq_len:,}; the run reads {rows_of_run:,} rows, {reading}"
    )


class Rows(Dataset):
    """A token file in rows of `seq_len` tokens, laid out as `data.layout` says.

    packed: row i is tokens[i * seq_len : (i + 1) * seq_len + 1]. Its first seq_len tokens are the
    input, its last seq_len tokens the labels. Neighbours share one token, so that each token except
    the file's first is a label exactly once; the incomplete last row is left out. Documents in one
    row see each other.

    padded: row i is document i, cut to seq_len + 1 tokens or padded with end-of-text. The
    end-of-text of the document is a label; the labels after it are IGNORE_INDEX.
    """

    def __init__(self, token_file: TokenFile, config: Config):
        self.tokens = token_file.tokens
        self.eos_id = token_file.eos_id
        self.seq_len = config.training.seq_len
        if config.data.layout == "padded":
            self.starts = token_file.documents[:-1]
            max_ends: np.ndarray | int = token_file.documents[1:]
        else:
            self.starts = np.arange((len(self.tokens) - 1) // self.seq_len) * self.seq_len
            max_ends = len(self.tokens)
        self.ends = np.minimum(self.starts + self.seq_len + 1, max_ends)
        if len(self) < 1:
            raise InputError(
                f"{token_file.dataset} has fewer tokens than one row: lower training.seq_len, "
                "raise data.max_tokens, or give a larger corpus"
            )

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, i: int) -> Row:
        tokens = self.tokens[self.starts[i] : self.ends[i]]
        row = torch.full((self.seq_len + 1,), self.eos_id)
        row[: len(tokens)] = torch.from_numpy(tokens.astype(np.int64))
        labels = row[1:].clone()
        labels[len(tokens) - 1 :] = IGNORE_INDEX
        return {"input": row[:-1]}, labels


class BatchLoader(BaseDataLoader):
    """Endless batches of {"input": [batch, seq_len]} and labels [batch, seq_len], int64 on the CPU.

    Its state is the number of batches so far; a resumed loader continues with the next batch.
    """

    def __init__(self, token_file: TokenFile, config: Config, rank: int = 0, world_size: int = 1):
        """Order the rows by `debug.seed`; rank r of W reads every W-th row, from the r-th on.

        So the rows of a step depend on seed and data, and not on W. Raises InputError if the
        corpus has no row.
        """
        self.rows = Rows(token_file, config)
        self.config = config
        self.rank = rank
        self.world_size = world_size
        self.n_batches = 0

    def __iter__(self) -> Iterator[Row]:
        training = self.config.training
        row_numbers = shuffle_rows(len(self.rows), self.config.debug.seed)
        rows_of_rank = itertools.islice(row_numbers, self.rank, None, self.world_size)
        rows_so_far = self.n_batches * training.local_batch_size
        batches = DataLoader(
            self.rows,
            training.local_batch_size,
            sampler=itertools.islice(rows_of_rank, rows_so_far, None),
            generator=torch.Generator(),  # the model uses the global one, and checkpoints have it
            **asdict(training.dataloader),
        )
        for batch in batches:
            self.n_batches += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"batches": self.n_batches}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.n_batches = state_dict["batches"]


def shuffle_rows(n_rows: int, seed: int) -> Iterator[int]:
    """Shuffle all rows anew each epoch, without end."""
    for epoch in itertools.count():
        yield from np.random.default_rng((seed, epoch)).permutation(n_rows).tolist()
