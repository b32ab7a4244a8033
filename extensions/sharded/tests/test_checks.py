"""What does not suit the number of processes is refused, with the key to change; and so are
variables of ranks that are half set or nonsense."""

import pytest

from experiments.config import recipes
from experiments.jobs.command import Stop
from experiments.training.plan import plan
from extensions.sharded.ranks import start
from models.errors import InputError

GATHER = "quantize.linear.float8.enable_fsdp_float8_all_gather"
TENSORWISE = "quantize.linear.float8.recipe_name=tensorwise"
REPLICAS = "parallelism.data_parallel_replicate_degree"
TIED = ["model.flavor=llama3.2-1B", "model.sizes.n_layers=1", TENSORWISE, f"{GATHER}=true"]
TIED.append("quantize.linear.float8.filter_fqns=[]")


@pytest.mark.parametrize(
    ("processes", "keys", "named"),
    [
        (0, [], "sharded.processes"),
        (2, [f"{REPLICAS}=3"], REPLICAS),
        (2, [f"{REPLICAS}=2"], REPLICAS),
        (2, ["training.global_batch_size=12"], "training.global_batch_size"),
        (1, [TENSORWISE, f"{GATHER}=true"], GATHER),
        (3, [TENSORWISE, f"{GATHER}=true"], GATHER),  # rows that do not divide
        (2, TIED, "filter_fqns"),
    ],
)
def test_keys_that_do_not_suit_the_processes(processes, keys, named):
    with pytest.raises(InputError, match=named):
        plan(recipes.load("baseline", ["cpu"], [*keys, f"sharded.processes={processes}"]))


def test_the_estimate_of_memory_is_what_the_allocator_counts():
    """Peak GiB on each of two GPUs, counted as those of tests/training/test_run.py"""
    keys = ["sharded.processes=2", "activation_checkpoint.mode=full"]
    needed = plan(recipes.load("baseline", [], keys)).memory_needed
    assert needed / 2**30 == pytest.approx(34.07, rel=0.02)


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"WORLD_SIZE": "4"}, "sharded.processes=4"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE"),
        ({"CUDA_VISIBLE_DEVICES": "0"}, "2 GPUs"),
        ({"WORLD_SIZE": "2"}, "--out"),  # each would write to a folder of its own
    ],
)
def test_what_started_the_process_does_not_suit_the_recipe(variables, named, monkeypatch):
    recipe = recipes.load("baseline", ["cpu"], ["sharded.processes=2"])
    monkeypatch.setattr("os.environ", dict(variables))
    with pytest.raises(InputError, match=named):
        start(recipe, [], None, Stop())
