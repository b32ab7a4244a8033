"""The table of what FP8 goes with is true: what works there trains, with its proof, and what is
refused is refused. What several processes train is in their extension's tests."""

import pytest

from experiments.config import recipes
from experiments.training.plan import plan
from models.errors import InputError
from tests.runs import TINY, attempt_of, proof_of, proves_its_fp8
from tools.compatibility import list_cells

CELLS = {f"{cell.recipe} with {cell.pairing}": cell for cell in list_cells()}
REFUSED = [name for name, cell in CELLS.items() if cell.refusal]
QUICK = [*TINY, "model.sizes.n_layers=1", "compile.enable=false", "compile.backend=aot_eager"]
QUICK += ["metrics.enable_tensorboard=false"]  # inductor's code is that of tests/jobs/test_study.py


def load(name: str) -> recipes.Recipe:
    return recipes.load(CELLS[name].recipe, ["cpu"], [*QUICK, *CELLS[name].keys])


ALONE = [
    name
    for name in CELLS
    if name not in REFUSED and not load(name).find_hooks("data_parallel_degrees")
]


@pytest.mark.parametrize("name", ALONE)
def test_what_works_trains_and_proves_its_fp8(name, run_here, tmp_path):
    cell = CELLS[name]
    assert run_here(cell.recipe, "--overlay", "cpu", "--out", tmp_path, *QUICK, *cell.keys) == 0
    proof = proof_of(tmp_path)
    assert attempt_of(tmp_path)["status"] == "completed"
    proves_its_fp8(proof)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_with_its_sentence(name):
    with pytest.raises(InputError) as error:
        plan(load(name))
    assert CELLS[name].refusal in str(error.value)
