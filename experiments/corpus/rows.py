"""Make torchtitan's batches from a token file."""

import itertools
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from experiments.config.keys import Config  # before torchtitan, for its CPU device  # isort: skip
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import IGNORE_INDEX

from experiments.corpus.tokens import TokenFile, find_lack, prepare
from models.errors import InputError

Row = tuple[dict[str, torch.Tensor], torch.Tensor]
"""{"input": int64 [seq_len]} and the labels, int64 [seq_len]."""


def open_data(plan):
    """Open a plan's token file, writing it first if it is missing.

    Returns the plan with it, and a sentence about what the run reads. Raises `InputError`.
    """
    earlier = plan.recipe.made.plan
    if earlier and not find_lack(Path(earlier["token_file"])):
        token_file = TokenFile.open(Path(earlier["token_file"]))
    else:
        token_file = prepare(plan.config)
        check_vocabulary(token_file, plan.args.vocab_size)
    finding = describe(token_file, plan.config, plan.world_size)
    return replace(plan, token_file=token_file), finding


def check_vocabulary(token_file: TokenFile, model_vocab_size: int) -> None:
    """Raise InputError if the tokenizer has more tokens than the model's embedding has rows."""
    if token_file.vocab_size > model_vocab_size:
        raise InputError(
            f"the tokenizer of {token_file.dataset} has {token_file.vocab_size:,} tokens and the "
            f"model {model_vocab_size:,}: choose a flavor or model.sizes with a larger vocabulary, "
            "another model.hf_assets_path, or, with an empty one, a smaller data.bpe_vocab_size"
        )


def describe(token_file: TokenFile, config: Config, processes: int = 1) -> str:
    """Say in a sentence what a run reads of a token file. Raises InputError if it has no row."""
    rows, training = len(Rows(token_file, config)), config.training
    # a global batch of -1 is one forward pass of each process
    batch = max(training.global_batch_size, training.local_batch_size * processes)
    needed = training.steps * batch
    return (
        f"{token_file.dataset}: {len(token_file.tokens):,} tokens of {token_file.vocab_size:,}, "
        f"{rows:,} {config.data.layout} rows of {training.seq_len:,}; "
        f"the run reads {needed:,} rows, {needed / rows:.1%} of them"
    )


class Rows(Dataset):
    """A token file in rows of `seq_len` tokens, laid out as `data.layout` says.

    packed: row i is tokens[i * seq_len : (i + 1) * seq_len + 1], the input and, one further, the
    labels. Neighbours share one token, so that every token but the file's first is a label exactly
    once; the incomplete last row is left out. Documents in one row see each other.

    padded: row i is document i, cut to seq_len + 1 tokens or padded with end-of-text. The
    document's own end-of-text is a label; what follows it is IGNORE_INDEX.
    """

    def __init__(self, token_file: TokenFile, config: Config):
        self.tokens, self.eos_id = token_file.tokens, token_file.eos_id
        self.seq_len = config.training.seq_len
        if config.data.layout == "padded":
            self.starts, ends = token_file.documents[:-1], token_file.documents[1:]
        else:
            self.starts = np.arange((len(self.tokens) - 1) // self.seq_len) * self.seq_len
            ends = len(self.tokens)
        self.ends = np.minimum(self.starts + self.seq_len + 1, ends)
        if len(self) < 1:
            raise InputError(
                f"{token_file.dataset} has fewer tokens than one row: lower training.seq_len, "
                "raise data.max_tokens, or give a larger corpus"
            )

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, i: int) -> Row:
        piece = self.tokens[self.starts[i] : self.ends[i]]
        row = torch.full((self.seq_len + 1,), self.eos_id)
        row[: len(piece)] = torch.from_numpy(piece.astype(np.int64))
        labels = row[1:].clone()
        labels[len(piece) - 1 :] = IGNORE_INDEX
        return {"input": row[:-1]}, labels


class Loader(BaseDataLoader):
    """Endless batches of {"input": [batch, seq_len]} and labels [batch, seq_len], int64 on the CPU.

    Its state is the number of batches that it has given; it goes on with the next one.
    """

    def __init__(self, token_file: TokenFile, config: Config, rank: int = 0, world_size: int = 1):
        """Order the rows by `debug.seed`; rank r of W reads every W-th row, from the r-th on.

        So the rows of a step depend on seed and data, and not on W. Raises InputError if the
        corpus has no row.
        """
        self.rows, self.config = Rows(token_file, config), config
        self.rank, self.world_size, self.given = rank, world_size, 0

    def __iter__(self) -> Iterator[Row]:
        training = self.config.training
        numbers = row_numbers(len(self.rows), self.config.debug.seed)
        rows_of_rank = itertools.islice(numbers, self.rank, None, self.world_size)
        batches = DataLoader(
            self.rows,
            training.local_batch_size,
            sampler=itertools.islice(rows_of_rank, self.given * training.local_batch_size, None),
            generator=torch.Generator(),  # the global one is the model's, and checkpointed
            **asdict(training.dataloader),
        )
        for batch in batches:
            self.given += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"batches": self.given}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.given = state_dict["batches"]


def row_numbers(n_rows: int, seed: int) -> Iterator[int]:
    """Shuffle all rows anew each epoch, without end."""
    for epoch in itertools.count():
        yield from np.random.default_rng((seed, epoch)).permutation(n_rows).tolist()
