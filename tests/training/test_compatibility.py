"""The table of what FP8 goes with is true: what works there trains, with its proof, and what is
refused is refused."""

import json
import re
import sys
from pathlib import Path

import pytest

from analysis.compatibility import cells
from experiments.config import recipes
from experiments.records.files import read
from experiments.records.run import PROOF, Proof
from experiments.training.plan import plan
from models.errors import InputError
from tests import processes
from tests.runs import SMALL, losses_of, manifest_of
from tests.training.test_tied import TIED

CELLS = {f"{cell.recipe} with {cell.pairing}": cell for cell in cells()}
WORKING = [name for name, cell in CELLS.items() if not cell.refused]
REFUSED = [name for name, cell in CELLS.items() if cell.refused]
RECOMPUTED = CELLS["tensorwise_fp8_compiled with Activation checkpointing, full"]
SWITCHED, WHOLE, RESUMED = "switched", "whole", "resumed"  # runs that are no cells
QUICK = ["compile.enable=false", *SMALL, "training.steps=3", "metrics.enable_tensorboard=false"]


def arguments(recipe: str, keys: list[str], out: Path) -> list[str]:
    return [recipe, "--overlay", "cpu", "--out", str(out), *QUICK, *keys]


def of_cell(name: str, out: Path) -> list[str]:
    return arguments(CELLS[name].recipe, ["model.sizes.n_layers=1", *CELLS[name].keys], out)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[str, tuple[int, Path]]:
    """Trains all runs of several processes: (exit code, run directory) by name."""
    folder = tmp_path_factory.mktemp("runs")
    several = [name for name in WORKING if CELLS[name].processes > 1]
    places = {name: folder / str(i) for i, name in enumerate(several)}
    runs = [(CELLS[name].processes, of_cell(name, places[name])) for name in several]
    tied = [*TIED, "quantize.gradients=float8", "checkpoint.enable=true", "checkpoint.interval=2"]
    start = f"checkpoint.initial_load_path={folder}/{WHOLE}/checkpoint/step-2"
    phase = "quantize.linear.float8={first_step: 2, last_step: 2}"
    for name, recipe, keys in (
        (SWITCHED, RECOMPUTED.recipe, [*RECOMPUTED.keys, phase]),
        (WHOLE, "baseline", tied),
        (RESUMED, "baseline", [*tied, start, "checkpoint.initial_load_model_only=false"]),
    ):
        places[name] = folder / name
        runs.append((2, arguments(recipe, keys, places[name])))
    (folder / "runs.json").write_text(json.dumps(runs))
    command = [sys.executable, "-m", "tests.training.compatible_ranks", folder / "runs.json"]
    printed = processes.run(command, 290).stdout
    codes = {
        place: int(code)
        for code, place in re.findall(r"^exit code (\d+): (.*)$", printed, re.MULTILINE)
    }
    return {name: (codes.get(str(place)), place) for name, place in places.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKING)
def test_what_works_trains_and_proves_its_fp8(name, trained, run_here, tmp_path):
    code, run = trained.get(name, (None, tmp_path))
    if CELLS[name].processes == 1:
        code = run_here(*of_cell(name, run))
    assert code == 0
    manifest, proof = manifest_of(run), read(run / PROOF, Proof)
    assert manifest["status"] == "completed" and manifest["world_size"] == CELLS[name].processes
    assert proof.fp8_flops >= 0.99 * proof.fp8_flops_expected > 0


@pytest.mark.slow
def test_two_processes_that_recompute_activations_switch_together(trained):
    """FSDP2 gathers weights in bf16."""
    code, run = trained[SWITCHED]
    assert code == 0
    phases = read(run / PROOF, Proof).phases
    assert [(first, phase.in_fp8) for first, phase in phases.items()] == [
        ("1", False),
        ("2", True),
        ("3", False),
    ]


@pytest.mark.slow
def test_two_processes_with_a_tied_matrix_resume_bit_for_bit(trained):
    """Gradients are sent in FP8."""
    (code, whole), (code_of_resumed, resumed) = trained[WHOLE], trained[RESUMED]
    assert code == code_of_resumed == 0
    assert len(losses_of(whole)) == 3 and losses_of(resumed) == losses_of(whole)[2:]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_with_its_sentence(name):
    cell = CELLS[name]
    with pytest.raises(InputError) as error:
        plan(recipes.load(cell.recipe, ["cpu"], cell.keys), cell.processes)
    assert cell.refused in str(error.value) and re.search("set |leave ", str(error.value))
