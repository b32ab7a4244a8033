"""The loader: rows, their order, ranks, resuming, and the command that prepares ahead."""

import itertools

import pytest
import torch

from experiments import data
from experiments.corpus import rows
from experiments.corpus.tokens import prepare_token_file
from tests.make_corpus import EOS, write_parquet

IGNORE = -100


def loader(config):
    return rows.BatchLoader(prepare_token_file(config), config)


def take(batches, n) -> list:
    """n batches, each as its pairs of inputs and labels."""
    return [
        list(zip(inputs["input"].tolist(), labels.tolist(), strict=True))
        for inputs, labels in itertools.islice(batches, n)
    ]


def test_packed_rows_join_documents_and_shift_labels(config):
    write_parquet(config.training.dataset_path, ["w1 w2 w3", "w4 w5", "", None, "w6 w7 w8 </s>"])
    file = prepare_token_file(config)
    assert file.tokens.tolist() == [1, 2, 3, EOS, 4, 5, EOS, 6, 7, 8, EOS, EOS]
    assert file.documents.tolist() == [0, 4, 7, 12] and file.eos_id == EOS
    config.training.local_batch_size = 2
    (batch,) = take(loader(config), 1)
    assert sorted(batch) == [([1, 2, 3, EOS], [2, 3, EOS, 4]), ([4, 5, EOS, 6], [5, EOS, 6, 7])]


def test_padded_rows_hold_one_document_and_ignore_padding(config):
    config.data.layout = "padded"
    config.training.local_batch_size = 3
    write_parquet(config.training.dataset_path, ["w1 w2", "w3 w4 w5 w6", "w7 w8 w9 w10 w11 w12"])
    (batch,) = take(loader(config), 1)
    assert sorted(batch) == [
        ([1, 2, EOS, EOS], [2, EOS, IGNORE, IGNORE]),
        ([3, 4, 5, 6], [4, 5, 6, EOS]),
        ([7, 8, 9, 10], [8, 9, 10, 11]),
    ]


def test_order_depends_on_seed_and_epoch_only(config):
    n_rows = (len(prepare_token_file(config).tokens) - 1) // 4
    random_state = torch.get_rng_state()
    two_epochs = take(loader(config), 2 * n_rows)
    assert torch.equal(torch.get_rng_state(), random_state)  # which are the model's
    config.debug.seed = 43
    orders = [two_epochs[:n_rows], two_epochs[n_rows:], take(loader(config), n_rows)]
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    assert len(set(map(str, orders))) == 3 and len(set(map(str, orders[0]))) == n_rows


def test_a_process_reads_its_own_rows(config):
    of_rank = rows.BatchLoader(prepare_token_file(config), config, rank=1, world_size=3)
    assert take(of_rank, 3) == take(loader(config), 9)[1::3]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_resume_goes_on_with_the_next_batch(config, num_workers):
    config.training.local_batch_size = 2
    config.training.dataloader.num_workers = num_workers
    before, after = loader(config), loader(config)
    batches = iter(before)
    take(batches, 40)  # more than an epoch
    after.load_state_dict(before.state_dict())
    assert take(after, 5) == take(batches, 5) != take(loader(config), 5)


@pytest.mark.parametrize(
    ("steps", "reading"), [(6, "10.2% of them"), (90, "1.5 times over"), (4071, "69 times over")]
)
def test_how_much_of_the_data_a_run_reads_is_told(config, steps, reading):
    config.training.steps = steps
    file = prepare_token_file(config)
    assert len(rows.Rows(file, config)) == 59
    assert rows.describe_data(file, config).endswith(reading)


def test_command_prepares_ahead_of_the_run(config, corpus_keys, capsys):
    command = ["prepare", "baseline", *corpus_keys, "training.seq_len=16", "--overlay", "cpu"]
    assert data.main(command) == 0
    assert str(prepare_token_file(config).path) in capsys.readouterr().out
