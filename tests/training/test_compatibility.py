"""The table of what FP8 goes with is true: what works there trains, with its proof, and what is
refused is refused. And what several processes train is what one does."""

import json
import re
import sys
from pathlib import Path

import pytest

from analysis.compatibility import cells
from experiments.config import recipes
from experiments.records.files import read
from experiments.records.run import MANIFEST, PROOF, Manifest, Proof
from experiments.training.plan import plan
from models.errors import InputError
from tests import processes
from tests.runs import SMALL, SMALLEST, lines_of, losses_of

CELLS = {f"{cell.recipe} with {cell.pairing}": cell for cell in cells()}
WORKING = [name for name, cell in CELLS.items() if not cell.refused]
REFUSED = [name for name, cell in CELLS.items() if cell.refused]
QUICK = [*SMALL, "training.steps=3", "compile.enable=false", "metrics.enable_tensorboard=false"]
QUICK += ["compile.backend=aot_eager"]  # inductor's code is that of tests/jobs/test_study.py
GATHER = "quantize.linear.float8.enable_fsdp_float8_all_gather=true"
BY_THREE = "model.sizes={dim: 96, n_layers: 1, n_heads: 6, n_kv_heads: 3, hidden_dim: 144}"
TIED = ["model.flavor=llama3.2-1B", SMALLEST, "model.sizes.vocab_size=4096"]
TIED += ["training.dtype=float32", "training.mixed_precision_param=float32"]
TIED += ["checkpoint.enable=true", "checkpoint.interval=2"]


def arguments(recipe: str, keys: list[str], out: Path) -> list[str]:
    return [recipe, "--overlay", "cpu", "--out", str(out), *QUICK, *keys]


def of_cell(name: str, out: Path) -> list[str]:
    return arguments(CELLS[name].recipe, ["model.sizes.n_layers=1", *of(CELLS[name])], out)


def of(cell) -> list[str]:
    return [*cell.keys, f"sharded.processes={cell.processes}"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Trains all runs of several processes, and what they are compared with, each in a folder of
    its name."""
    folder = tmp_path_factory.mktemp("runs")
    several = [name for name in WORKING if CELLS[name].processes > 1]
    runs = [(CELLS[name].processes, of_cell(name, folder / name)) for name in several]

    def add(name: str, processes: int, *keys: str, recipe: str = "baseline") -> None:
        keys = [*keys, f"sharded.processes={processes}"]
        runs.append((processes, arguments(recipe, keys, folder / name)))

    add("three", 3, BY_THREE, GATHER, recipe="tensorwise_fp8_compiled")
    add("one", 1, *TIED, "training.local_batch_size=6")
    add("two", 2, *TIED, "training.local_batch_size=3")
    add("by three", 3, *TIED, "training.local_batch_size=2")
    go_on = f"checkpoint.initial_load_path={folder}/two/checkpoint/step-2"
    more = [go_on, "checkpoint.initial_load_model_only=false"]
    add("resumed", 2, *TIED, "training.local_batch_size=3", *more)

    (folder / "runs.json").write_text(json.dumps(runs))
    command = [sys.executable, "-m", "extensions.sharded.tests.forked", folder / "runs.json"]
    processes.run(command, 290)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKING)
def test_what_works_trains_and_proves_its_fp8(name, request, run_here, tmp_path):
    if CELLS[name].processes == 1:
        out = tmp_path
        assert run_here(*of_cell(name, out)) == 0
    else:
        out = request.getfixturevalue("folder") / name
    manifest, proof = read(out / MANIFEST, Manifest), read(out / PROOF, Proof)
    assert manifest.status == "completed" and manifest.world_size == CELLS[name].processes
    assert proof.fp8_flops >= proof.fp8_flops_expected > 0


@pytest.mark.slow
def test_three_processes_gather_fp8_rows_that_divide(folder):
    sent = read(folder / "three" / PROOF, Proof).sharded
    assert sent["shards"] == 3
    assert sent["gathered_bytes"] == sent["gathered_bytes_expected"] > 0


@pytest.mark.slow
def test_two_and_three_processes_train_a_tied_matrix_as_one_does(folder):
    """Each draws its first weights from the seed. FSDP2 shards the matrix of embedding and head
    once. A norm of 260,000 numbers depends on the order in which float32 adds them up; a matrix
    that lost one of its two uses would be off by about 1."""
    one, two = (lines_of(folder / name) for name in ("one", "two"))
    for key in "loss", "grad_norm":
        expected = [line[key] for line in one]
        assert [line[key] for line in two] == pytest.approx(expected, rel=1e-4)
        three = [line[key] for line in lines_of(folder / "by three")]
        assert three == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_two_processes_resume_bit_for_bit(folder):
    whole, resumed = losses_of(folder / "two"), losses_of(folder / "resumed")
    assert len(whole) == 3 and resumed == whole[2:]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_with_its_sentence(name):
    cell = CELLS[name]
    with pytest.raises(InputError) as error:
        plan(recipes.load(cell.recipe, ["cpu"], of(cell)))
    assert cell.refused in str(error.value) and re.search("set |leave ", str(error.value))
