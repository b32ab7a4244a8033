"""What ranks send: the recorded table against the closed form, and runs that promise FP8 and send
something else.

One process stands for rank 0 of several: the backend `fake` takes every collective and sends
nothing. That real ones are recorded the same way is part of test_ranks.py.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.autograd import DeviceType
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchtitan.distributed import ParallelDims

from experiments.config import recipes
from experiments.training.plan import plan
from experiments.training.proof import ProofCollector, ProofError
from extensions.sharded import collectives
from models import float8
from models.architectures import build_model, parallelize_model

EACH, RESHARD = "tensorwise_fp8_allgather_amax_each", "parallelism.fsdp_reshard_after_forward"
LAYERS = 7  # linear ones of the model's one block
GROUPS = 3  # of parameters whose gradients are sent together: embedding, block, norm and head


def profile_step(name: str, override: str, ranks: int = 2) -> dict:
    """What the proof records of collectives, of one forward and backward pass of a recipe on a
    model of one block."""
    keys = ["compile.enable=false", "training.local_batch_size=1", "training.seq_len=32"]
    keys += ["model.sizes={n_layers: 1, vocab_size: 64}", f"sharded.processes={ranks}", override]
    planned = plan(recipes.load(name, ["cpu"], keys))
    config = planned.config
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        dims = ParallelDims(
            dp_replicate=ranks // planned.shards,
            dp_shard=planned.shards,
            cp=1, tp=1, pp=1, ep=1, etp=1, world_size=ranks,
        )  # fmt: skip
        dims.build_mesh()
        model = build_model(config).bfloat16()
        float8.convert_linears(model, planned)
        model = parallelize_model(model, dims, config, planned.recipe.find_hook("parallelize"))
        proof = ProofCollector(planned, model, torch.optim.AdamW(model.parameters()))
        with proof.profile(1):
            model(torch.zeros(1, 32, dtype=torch.long)).float().mean().backward()
        return proof.evidence["sharded"]
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("recipe", "override", "ranks", "all_reduces"),
    [
        ("tensorwise_fp8_compiled", f"{RESHARD}=default", 2, 0),
        (EACH, f"{RESHARD}=default", 2, 2 * LAYERS),  # once for each of two gathers
        ("baseline_compiled", f"{RESHARD}=never", 2, 0),
        ("baseline_compiled", f"{RESHARD}=always", 3, 0),  # 3: rows are padded
        ("baseline_compiled", "parallelism.data_parallel_replicate_degree=2", 4, GROUPS),
    ],
)
def test_bytes_are_those_of_the_closed_form(recipe, override, ranks, all_reduces):
    record = profile_step(recipe, override, ranks)
    assert record["gathered_bytes"] == record["gathered_bytes_expected"] > 0
    assert record["reduced_bytes"] == record["reduced_bytes_expected"] > 0
    assert record["all_reduces"] == all_reduces


# ---- promises that are not kept ----


@pytest.mark.parametrize("gathered", ["in bf16", "unseen"])
def test_a_run_that_promises_fp8_and_sends_something_else_fails(gathered, monkeypatch):
    """torchao's layer casts its weight itself where FSDP2 has not. Another version of torch may
    gather by an operator that is not counted."""
    convert = float8.convert_to_float8_training

    def without_gather(model, config, **more) -> None:
        convert(model, config=replace(config, enable_fsdp_float8_all_gather=False), **more)

    if gathered == "in bf16":
        monkeypatch.setattr(float8, "convert_to_float8_training", without_gather)
    else:
        monkeypatch.delitem(collectives._OPERATORS, "c10d::_allgather_base_")
    with pytest.raises(ProofError, match="gathered_bytes"):
        profile_step(EACH, f"{RESHARD}=default")


# ---- NCCL ----


def kernel(name: str, start: float, end: float, **more) -> SimpleNamespace:
    """One of a profile's events on a GPU; times in microseconds."""
    facts = {"device_type": DeviceType.CUDA, "is_user_annotation": False} | more
    return SimpleNamespace(name=name, time_range=SimpleNamespace(start=start, end=end), **facts)


def test_exposed_time_is_that_of_nccl_kernels_beside_which_nothing_computes():
    events = [
        kernel("ncclDevKernel_AllGather_RING_LL", 0, 10),
        kernel("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", 8, 20),  # on another stream
        kernel("nvjet_qqtst_128x256", 2, 6),
        kernel("triton_poi_fused_add_0", 5, 9),
        kernel("Memcpy DtoD (Device -> Device)", 10, 12),  # no computing
        kernel("FSDP::all_gather", 0, 50, is_user_annotation=True),
        kernel("aten::mm", 0, 50, device_type=DeviceType.CPU),
    ]
    nccl = collectives.nccl_seconds(events)
    assert nccl == pytest.approx({"seconds": 20e-6, "exposed_seconds": 13e-6})
    assert collectives.nccl_seconds(events[2:]) is None
