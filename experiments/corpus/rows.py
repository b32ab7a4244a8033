"""From a token file to torchtitan's batches."""

import itertools
from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

from experiments.config.keys import Config  # before torchtitan, for its CPU device  # isort: skip
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.loss import IGNORE_INDEX
from torchtitan.tools.logging import logger

from experiments.corpus.tokens import TokenFile, prepare
from models.errors import InputError

Row = tuple[dict[str, torch.Tensor], torch.Tensor]
"""{"input": int64 [seq_len]} and the labels, int64 [seq_len]; the default collate stacks them as
torchtitan wants."""


class Rows(Dataset):
    """A token file in rows of `seq_len` tokens, laid out as `data.layout` says.

    packed: row i is tokens[i * seq_len : (i + 1) * seq_len + 1], the input and, one further, the
    labels. Neighbours share one token, so that every token but the file's first is a label exactly
    once; the incomplete last row is left out. Documents in one row see each other.

    padded: row i is document i, cut to seq_len + 1 tokens or padded with end-of-text. The
    document's own end-of-text is a label; what follows it is IGNORE_INDEX.
    """

    def __init__(self, token_file: TokenFile, config: Config):
        self.token_file, self.seq_len = token_file, config.training.seq_len
        self.is_padded = config.data.layout == "padded"
        if len(self) < 1:
            raise InputError(
                f"{token_file.dataset} has {len(token_file.tokens):,} tokens, fewer than one row "
                f"({self.seq_len + 1:,}): lower training.seq_len, raise data.max_tokens, or give a larger corpus"
            )

    def __len__(self) -> int:
        file = self.token_file
        return len(file.documents) - 1 if self.is_padded else (len(file.tokens) - 1) // self.seq_len

    def __getitem__(self, i: int) -> Row:
        file, length = self.token_file, self.seq_len + 1
        start, end = (
            file.documents[i : i + 2] if self.is_padded else (i * self.seq_len, len(file.tokens))
        )
        piece = file.tokens[start : min(end, start + length)]
        row = torch.full((length,), file.eos_id)
        row[: len(piece)] = torch.from_numpy(piece.astype(np.int64))
        labels = row[1:].clone()
        labels[len(piece) - 1 :] = IGNORE_INDEX
        return {"input": row[:-1]}, labels


class EpochShuffle(Sampler[int]):
    """Endless row numbers: one permutation of all rows per epoch, of which rank r of W takes every
    W-th.

    The count runs on over an epoch's end, so that the rows of a global batch depend on seed and
    data, not on W.
    """

    def __init__(self, n_rows: int, seed: int, rank: int, world_size: int):
        self.n_rows, self.seed, self.rank, self.world_size = n_rows, seed, rank, world_size

    def __iter__(self) -> Iterator[int]:
        for epoch in itertools.count():
            order = np.random.default_rng((self.seed, epoch)).permutation(self.n_rows)
            first = (self.rank - epoch * self.n_rows) % self.world_size
            yield from order[first :: self.world_size].tolist()


def build_dataloader(
    dp_world_size: int,
    dp_rank: int,
    tokenizer: None,
    job_config: Config,
    token_file: TokenFile | None = None,
) -> ParallelAwareDataloader:
    """torchtitan's `build_dataloader_fn`: endless batches of {"input": [batch, seq_len]} and labels
    [batch, seq_len].

    Both are int64 on the CPU; `batch` is training.local_batch_size. Prepares the token file where
    it isn't there. `debug.seed` orders the rows, and the loader's state resumes after the last
    batch that was given. `tokenizer` is not used: the corpus has its own. Raises InputError.
    """
    rows = Rows(token_file or prepare(job_config), job_config)
    needed = _rows_needed(job_config, dp_world_size)
    if dp_rank == 0 and needed > len(rows):
        logger.warning(
            f"The run reads {rows.token_file.dataset} {needed / len(rows):.1f} times: "
            f"{needed:,} rows are needed and it has {len(rows):,}"
        )
    return ParallelAwareDataloader(
        rows,
        dp_rank,
        dp_world_size,
        batch_size=job_config.training.local_batch_size,
        sampler=EpochShuffle(len(rows), job_config.debug.seed, dp_rank, dp_world_size),
        generator=torch.Generator(),  # or making an iterator draws from those numbers that a checkpoint restores
        **asdict(job_config.training.dataloader),
    )


def check_vocabulary(token_file: TokenFile, model_vocab_size: int) -> None:
    """Raises InputError where the corpus has tokens that the model's embedding has no row for."""
    if token_file.vocab_size > model_vocab_size:
        raise InputError(
            f"the tokenizer of {token_file.dataset} has {token_file.vocab_size:,} tokens and the model "
            f"{model_vocab_size:,}: choose a flavor or model.sizes with a larger vocabulary, another "
            "model.hf_assets_path, or, with an empty one, a smaller data.bpe_vocab_size"
        )


def describe(token_file: TokenFile, config: Config, world_size: int = 1) -> str:
    """One sentence about what the run would read of a prepared token file. Raises InputError if
    that is not a row."""
    rows = Rows(token_file, config)
    needed = _rows_needed(config, world_size)
    tokenizer = config.model.hf_assets_path
    return (
        f"{token_file.dataset}: {len(token_file.tokens):,} tokens in {len(token_file.documents) - 1:,} documents, "
        f"vocabulary {token_file.vocab_size:,} ({f'of {tokenizer}' if tokenizer else 'BPE trained on it'}), "
        f"{len(rows):,} {config.data.layout} rows of {config.training.seq_len:,}; "
        f"the run reads {needed:,} rows, {needed / len(rows):.1%} of them"
    )


def _rows_needed(config: Config, dp_world_size: int) -> int:
    """Rows that all ranks read in the whole run; a negative global batch size means torchtitan's
    default."""
    training = config.training
    batch = (
        training.global_batch_size
        if training.global_batch_size > 0
        else training.local_batch_size * dp_world_size
    )
    return training.steps * batch
