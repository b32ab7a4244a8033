"""Two processes that exchange gradients in FP8, with the optimizer's states in FP8."""

import json
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from experiments.config import recipes
from experiments.records.files import read
from experiments.records.run import PROOF, Proof
from experiments.training.plan import plan
from extensions.fp8_lm.gradients import bytes_sent, send_in_fp8
from models.errors import InputError
from tests import processes
from tests.runs import SMALL, SMALLEST, losses_of

KEYS = [*SMALL, SMALLEST, "training.steps=3", "compile.enable=false"]
KEYS += ["metrics.enable_tensorboard=false", "checkpoint.enable=true", "checkpoint.interval=2"]
KEYS += ["sharded.processes=2"]


def test_one_process_has_no_gradients_to_send():
    with pytest.raises(InputError, match="fp8_lm.gradients"):
        plan(recipes.load("fp8_gradients", ["cpu"]))


def test_a_group_of_gradients_is_sent_by_one_all_to_all_of_260_bytes_for_256():
    """One process stands for rank 0 of three: the backend `fake` sends nothing."""
    dist.init_process_group("fake", rank=0, world_size=3, store=FakeStore())
    try:
        model = fully_shard(nn.Linear(100, 32, bias=False))  # 11 rows a rank, with padding
        model.set_force_sum_reduction_for_comms(True)
        model.set_gradient_divide_factor(1.0)
        send_in_fp8(model)
        with torch.profiler.profile(record_shapes=True) as profiler:
            model(torch.ones(1, 100)).sum().backward()
    finally:
        dist.destroy_process_group()
    sent = [event.input_shapes for event in profiler.events() if "alltoall_base" in event.name]
    assert [shapes[0] for shapes in sent] == [[3, bytes_sent(1100)]] and bytes_sent(1100) == 5 * 260


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs of all levels, of the same without FP8 gradients, and one that goes on at step 2."""
    pytest.importorskip("extensions.sharded")
    folder = tmp_path_factory.mktemp("runs")
    go_on = f"checkpoint.initial_load_path={folder}/fp8/checkpoint/step-2"
    runs = {
        "fp8": [],
        "float32": ["fp8_lm.gradients=null"],
        "resumed": [go_on, "checkpoint.initial_load_model_only=false"],
    }
    asked = []
    for name, keys in runs.items():
        out = ["--overlay", "cpu", "--out", str(folder / name)]
        asked.append([2, ["fp8_lm", *out, *KEYS, *keys]])
    (folder / "runs.json").write_text(json.dumps(asked))
    command = [sys.executable, "-m", "extensions.sharded.tests.forked", folder / "runs.json"]
    processes.run(command, 290)
    return folder


@pytest.mark.slow
def test_two_processes_resume_bit_for_bit(folder):
    whole, resumed = losses_of(folder / "fp8"), losses_of(folder / "resumed")
    assert len(whole) == 3 and resumed == whole[2:]


@pytest.mark.slow
def test_gradients_are_rounded_and_nothing_else(folder):
    """The first loss is before the first gradient."""
    fp8, float32 = (losses_of(folder / name) for name in ("fp8", "float32"))
    assert fp8[0] == float32[0]
    assert fp8[1:] != float32[1:] and fp8[1:] == pytest.approx(float32[1:], rel=1e-4)


@pytest.mark.slow
def test_the_proof_has_the_bytes_that_were_sent_and_kept(folder):
    """Two states of 1 and 2 bytes, and a master weight of 2."""
    proof = read(folder / "fp8" / PROOF, Proof)
    parameters, sent = proof.parameters, proof.sharded
    assert sent["reduced_bytes"] == sent["reduced_bytes_expected"] > 0
    assert parameters.moved_in_first_step > 0 and not parameters.still_in_first_step
    kept = parameters.bytes_per_parameter
    assert kept == pytest.approx({"weights": 2, "states": 5}, abs=5e-3)
