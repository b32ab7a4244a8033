"""What several processes train: what FP8 goes with, by all compatibility.yaml that are there, and
that two train what one does."""

from pathlib import Path

import pytest

from experiments.records.run import RUN_RECORD, RunRecord
from extensions.sharded.tests import forked
from tests.runs import SMALLEST, TINY, lines_of, losses_of, proves_its_fp8
from tools.compatibility import list_cells

pytestmark = pytest.mark.slow

QUICK = [*TINY, "training.steps=3", "compile.enable=false", "metrics.enable_tensorboard=false"]
GATHER = "quantize.linear.float8.enable_fsdp_float8_all_gather=true"
BY_THREE = "model.sizes={dim: 96, n_layers: 1, n_heads: 6, n_kv_heads: 3, hidden_dim: 144}"
TIED = ["model.flavor=llama3.2-1B", SMALLEST, "model.sizes.vocab_size=4096"]
TIED += ["training.dtype=float32", "training.mixed_precision_param=float32"]
TIED += ["checkpoint.enable=true", "checkpoint.interval=2"]
SEVERAL = {
    f"{cell.recipe} with {cell.pairing}": (cell.recipe, ["model.sizes.n_layers=1", *cell.keys])
    for cell in list_cells()
    if not cell.refusal and "sharded.processes" in str(cell.keys)
}
SEVERAL["three"] = ("tensorwise_fp8_compiled", [BY_THREE, GATHER, "sharded.processes=3"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Trains all runs of several processes, and what they are compared with, each in a folder of
    its name."""
    folder = tmp_path_factory.mktemp("runs")
    go_on = f"checkpoint.initial_load_path={folder}/two/checkpoint/step-2"
    two = [*TIED, "sharded.processes=2", "training.local_batch_size=3"]
    runs = SEVERAL | {
        "one": ("baseline", [*TIED, "sharded.processes=1", "training.local_batch_size=6"]),
        "two": ("baseline", two),
        "resumed": ("baseline", [*two, go_on, "checkpoint.initial_load_model_only=false"]),
    }
    forked.train(folder, {name: (recipe, [*QUICK, *keys]) for name, (recipe, keys) in runs.items()})
    return folder


@pytest.mark.parametrize("name", SEVERAL)
def test_what_works_trains_and_proves_its_fp8(name, folder):
    record = RunRecord.read(folder / name / RUN_RECORD)
    proof = record.proof
    assert record.status == "completed" and record.world_size > 1
    proves_its_fp8(proof)
    for what in "gathered_bytes", "reduced_bytes":
        assert proof.sharded[what] == proof.sharded[f"{what}_expected"] > 0


def test_two_processes_train_a_tied_matrix_as_one_does(folder):
    """Each draws its first weights from the seed. FSDP2 shards the matrix of embedding and head
    once. A norm of 260,000 numbers depends on the order in which float32 adds them up; a matrix
    that lost one of its two uses would be off by about 1."""
    one, two = lines_of(folder / "one"), lines_of(folder / "two")
    for key in "loss", "grad_norm":
        expected = pytest.approx([line[key] for line in one], rel=1e-4)
        assert [line[key] for line in two] == expected


def test_two_processes_resume_bit_for_bit(folder):
    whole, resumed = losses_of(folder / "two"), losses_of(folder / "resumed")
    assert len(whole) == 3 and resumed == whole[2:]
