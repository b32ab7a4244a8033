"""The table of what FP8 goes with is true: what works there trains, with its proof, and what is refused is refused."""

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from analysis.compatibility import cells
from experiments.config import recipes
from experiments.jobs.ranks import variables
from experiments.training import preflight
from models.errors import InputError
from tests import processes
from tests.runs import SMALL

CELLS = {f"{cell.recipe} with {cell.pairing}": cell for cell in cells()}
WORKING = [name for name, cell in CELLS.items() if not cell.refused]
REFUSED = [name for name, cell in CELLS.items() if cell.refused]
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
def trained(tmp_path_factory):
    """Trains all cells that work with this number of processes; gives exit codes and run directories by cell."""

    @cache
    def train(count: int) -> dict[str, tuple[int, Path]]:
        folder = tmp_path_factory.mktemp(f"processes{count}")
        places = {name: folder / str(place) for place, name in enumerate(WORKING) if CELLS[name].processes == count}
        runs = [arguments(name, place) for name, place in places.items()]
        (folder / "runs.json").write_text(json.dumps(list(zip(runs, free_ports(len(runs)), strict=True))))
        command = [sys.executable, "-m", "tests.training.compatible_ranks", folder / "runs.json"]
        with ExitStack() as stack:
            ranks = [
                processes.started(command, env=os.environ | variables(rank, count), stdout=subprocess.PIPE, text=True)
                for rank in range(count)
            ]
            first, *_ = [stack.enter_context(rank) for rank in ranks]
            codes = json.loads(first.communicate(timeout=280)[0].splitlines()[-1])
        return {name: (code, place) for code, (name, place) in zip(codes, places.items(), strict=True)}

    return train


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in sockets]


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKING)
def test_what_works_trains_and_proves_its_fp8(name, trained, run_here, tmp_path):
    if CELLS[name].processes > 1:
        code, run = trained(CELLS[name].processes)[name]
    else:
        code, run = run_here(*arguments(name, tmp_path)), tmp_path
    assert code == 0
    manifest, proof = (json.loads((run / f"{kind}.json").read_text()) for kind in ("manifest", "proof"))
    assert manifest["status"] == "completed" and manifest["world_size"] == CELLS[name].processes
    assert proof["fp8_flops"] >= 0.99 * proof["fp8_flops_expected"] > 0


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_with_its_sentence(name):
    cell = CELLS[name]
    with pytest.raises(InputError) as error:
        config = recipes.load(cell.recipe, ["cpu"], cell.keys).config
        preflight.check_ranks(config, cell.processes)
    assert cell.refused in str(error.value) and ("set " in str(error.value))
