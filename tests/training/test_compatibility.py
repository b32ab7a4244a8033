"""The table of what FP8 goes with is true: what works there trains, with its proof, and what is
refused is refused."""

import json
import re
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from analysis.compatibility import cells
from experiments.config import recipes
from experiments.jobs.placement import reserved_port
from experiments.training.plan import plan
from models.errors import InputError
from tests import processes
from tests.runs import SMALL

CELLS = {f"{cell.recipe} with {cell.pairing}": cell for cell in cells()}
WORKING = [name for name, cell in CELLS.items() if not cell.refused]
REFUSED = [name for name, cell in CELLS.items() if cell.refused]
RECOMPUTED = "tensorwise_fp8_compiled with Activation checkpointing, full"
SWITCHED, FLOAT8 = "recomputed, and in FP8 in its second step alone", "quantize.linear.float8"
QUICK = [
    "compile.enable=false",
    "model.sizes.n_layers=1",
    *SMALL,
    "training.steps=3",
    "metrics.enable_tensorboard=false",
]


def arguments(name: str, out: Path) -> list[str]:
    return [CELLS[name].recipe, "--overlay", "cpu", "--out", str(out), *QUICK, *CELLS[name].keys]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[str, tuple[int, Path]]:
    """Trains all cells that work with several processes, and SWITCHED; (exit code, run directory)
    by name."""
    folder = tmp_path_factory.mktemp("cells")
    several = [name for name in WORKING if CELLS[name].processes > 1]
    places = {name: folder / str(place) for place, name in enumerate([*several, SWITCHED])}
    with ExitStack() as stack:
        ports = {name: stack.enter_context(reserved_port()).getsockname()[1] for name in places}
        runs = [
            (CELLS[name].processes, ports[name], arguments(name, places[name])) for name in several
        ]
        switched = [
            *arguments(RECOMPUTED, places[SWITCHED]),
            f"{FLOAT8}.first_step=2",
            f"{FLOAT8}.last_step=2",
        ]
        runs.append((2, ports[SWITCHED], switched))
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
    if CELLS[name].processes > 1:
        code, run = trained[name]
    else:
        code, run = run_here(*arguments(name, tmp_path)), tmp_path
    assert code == 0
    manifest, proof = (
        json.loads((run / f"{kind}.json").read_text()) for kind in ("manifest", "proof")
    )
    assert manifest["status"] == "completed" and manifest["world_size"] == CELLS[name].processes
    assert proof["fp8_flops"] >= 0.99 * proof["fp8_flops_expected"] > 0


@pytest.mark.slow
def test_two_processes_that_recompute_activations_switch_together(trained):
    """FSDP2 gathers weights in bf16."""
    code, run = trained[SWITCHED]
    assert code == 0
    phases = json.loads((run / "proof.json").read_text())["phases"]
    assert {first: phase["in_fp8"] for first, phase in phases.items()} == {
        "1": False,
        "2": True,
        "3": False,
    }


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_with_its_sentence(name):
    cell = CELLS[name]
    with pytest.raises(InputError) as error:
        plan(recipes.load(cell.recipe, ["cpu"], cell.keys), cell.processes)
    assert cell.refused in str(error.value) and re.search("set |leave ", str(error.value))
