"""Which size fits into the memory that is free, and what is said where none does."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import yaml

from experiments.config import recipes
from experiments.jobs.command import StopRequest
from experiments.training import attempt, sizes
from experiments.training.plan import plan
from models import device
from models.errors import InputError
from models.flops import GIB

# Peak GiB of torch.cuda.max_memory_allocated in steps 2 to 4 of runs, torch 2.11 with CUDA 13, on a
# stand-in for a GPU, which allocates as one and computes nothing.
PEAKS = {
    "baseline": 71.65,
    "baseline_compiled": 64.18,
    "rowwise_fp8_compiled": 60.17,
    "tensorwise_fp8_compiled activation_checkpoint.mode=full": 60.17,
    "baseline_compiled training.global_batch_size=2": 79.18,
    "tensorwise_fp8_compiled training.global_batch_size=2": 73.68,
    "baseline model.flavor=llama3.2-1B training.local_batch_size=4": 53.11,
    "tensorwise_fp8_compiled model.flavor=llama3.2-1B training.local_batch_size=4": 27.46,
    # the two gradients of a tied embedding are added
    "baseline model.flavor=llama3.2-1B training.seq_len=1024": 10.25,
}
# The same of torch.cuda.max_memory_reserved, by overlay and recipe
RESERVED = {
    ("no_recompute", "baseline"): 73.26,
    ("no_recompute", "baseline_compiled"): 65.69,
    ("no_recompute", "tensorwise_fp8_compiled"): 64.20,
    ("full_recompute", "baseline"): 62.42,
    ("llama_3b", "baseline"): 37.28,
    ("llama_1b", "baseline"): 18.80,
    ("llama_1b_2048", "baseline"): 13.24,
    ("llama_1b_1024", "baseline"): 10.79,
    ("llama_1b_1024", "baseline_compiled"): 11.14,
    ("llama_1b_1024", "rowwise_fp8_compiled"): 11.02,
}


@pytest.mark.parametrize("run", PEAKS)
def test_the_estimate_of_memory_is_what_the_allocator_counts(run):
    recipe, *keys = run.split()
    planned = plan(recipes.load(recipe, [], keys))
    assert planned.memory_needed / GIB == pytest.approx(PEAKS[run], rel=0.02)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of 79 GiB; takes how many GiB are free, one number for each GPU."""
    monkeypatch.setattr(device, "TYPE", "cuda")
    monkeypatch.setattr(device, "name", lambda: "NVIDIA H100")
    monkeypatch.setattr(device, "memory_bytes", lambda: 79 * GIB)

    def free(*gib: float) -> None:
        memories = [sizes.Memory(free_gib * GIB, 79 * GIB) for free_gib in gib]
        monkeypatch.setattr(sizes, "query_gpu_memories", lambda: memories)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: memories[0])
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)

    return free


@pytest.mark.parametrize(("overlay", "recipe"), RESERVED)
def test_a_size_is_chosen_only_where_the_allocators_gaps_fit_too(overlay, recipe, gpu):
    gib = RESERVED[overlay, recipe]
    planned = plan(recipes.load(recipe, [overlay]))
    gpu(gib)
    assert not sizes.has_room(planned, gib * GIB - 1)
    assert sizes.has_room(planned, (gib + 3) * GIB)


@pytest.mark.parametrize("overlay", recipes.list_sizes())
def test_an_overlay_says_the_memory_that_it_needs(overlay):
    """So the sizes are in the order of their memory, and docs/on_a_gpu.md has their numbers."""
    text = (recipes.OVERLAYS_FOLDER / f"{overlay}.yaml").read_text()
    stated_gib = yaml.safe_load(text)["memory_gib"]
    plans = [plan(recipes.load(name, [overlay])) for name in recipes.FOUR_RECIPES]
    needed = max(planned.memory_needed for planned in plans)
    assert stated_gib == round(needed / GIB, 1)
    assert f"| {stated_gib} |" in (recipes.ROOT / "docs/on_a_gpu.md").read_text()


# What is free on cards of 80, 48, 24, 16, 12 and 8 GB; the second 12 GB card has a screen.
@pytest.mark.parametrize(
    ("gib", "overlay"),
    [
        (78.6, "no_recompute"),
        (65.0, "full_recompute"),
        (44.5, "llama_3b"),
        (23.4, "llama_1b"),
        (15.5, "llama_1b_2048"),
        (11.5, "llama_1b_1024"),
        (10.8, "llama_1b_6_layers"),
        (7.5, "llama_1b_6_layers"),
        (3.0, "cpu"),
    ],
)
def test_size_follows_the_free_memory(gib, overlay, gpu):
    gpu(gib)
    overlays, why = sizes.choose_size(["baseline"])
    assert overlays == [overlay] and f"has {gib:.1f} GiB free of 79.0" in why


def test_size_follows_the_fullest_of_several_gpus(gpu):
    gpu(78, 24, 78)
    overlays, why = sizes.choose_size(["baseline"])
    assert overlays == ["llama_1b"] and "GPU 1 has 24.0" in why


def test_size_follows_the_neediest_recipe(gpu):
    gpu(70)
    assert sizes.choose_size(["baseline_compiled"])[0] == ["no_recompute"]
    assert sizes.choose_size(["baseline_compiled", "baseline"])[0] == ["full_recompute"]


def test_gpus_are_asked_for_free_memory_without_a_context(monkeypatch, program):
    """nvidia-smi knows the first of two GPUs."""
    properties = [SimpleNamespace(uuid=number, total_memory=79 * GIB) for number in (0, 1)]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties.__getitem__)
    program("nvidia-smi", '[ "$3" = --id=GPU-0 ] && echo "a warning" && echo 20480')
    context = sizes.CONTEXT_BYTES
    memories = sizes.query_gpu_memories()
    assert memories == [(20 * GIB - context, 79 * GIB), (79 * GIB - context, 79 * GIB)]


@pytest.mark.parametrize(
    ("keys", "free", "said"),
    [
        ([], 78.6, ["about 71.5 GiB of 78.6 GiB free (79.0 GiB in all)"]),
        ([], 71.2, ["71.2 GiB free (79.0", "probably not fit; take --overlay full_recompute"]),
        ([], 73.0, ["may not fit", "take --overlay full_recompute"]),
        ([], 58, ["probably not fit; take --overlay llama_3b, which needs about 35.2 GiB"]),
        (["activation_checkpoint.mode=full"], 50, ["take --overlay llama_3b"]),
        (["model.flavor=llama3.1-70B"], 79, ["no overlay makes it fit", "nvidia-smi"]),
        (["training.local_batch_size=2"], 79, ["take --overlay full_recompute"]),
    ],
)
def test_what_does_not_fit_is_told_what_does(keys, free, said, gpu):
    """Keys of the command line win over an overlay's: where they fill the GPU, no overlay helps."""
    gpu(free)
    planned = plan(recipes.load("baseline", [], keys))
    try:
        finding = sizes.check_memory(planned)
    except InputError as error:
        finding = str(error)
    for words in said:
        assert words in finding
    assert ("take" in finding) == any("take" in words for words in said)


def test_a_run_far_too_large_is_refused(gpu):
    gpu(20)
    with pytest.raises(InputError, match="about 71.5 GiB of 20.0 .*take --overlay llama_1b_2048"):
        sizes.check_memory(plan(recipes.load("baseline")))


def test_overlays_of_the_run_stay(gpu):
    """Parameters in float32 take twice the memory in each size."""
    planned = plan(recipes.load("baseline", ["fp32_master"]))
    gpu(44.5)
    assert "take --overlay llama_1b, which" in sizes.suggest_size(planned, 44.5 * GIB)


@pytest.mark.parametrize(
    ("overlays", "free", "said"),
    [
        (["no_recompute"], 79, "take --overlay full_recompute"),
        (["full_recompute"], 79, "take --overlay llama_3b"),
        (["llama_1b_6_layers"], 8, "no overlay makes it fit"),
        (["llama_1b"], 4, "no overlay makes it fit"),
    ],
)
def test_a_run_that_ran_out_of_memory_is_told_the_next_size(overlays, free, said, gpu, tmp_path):
    gpu(free)
    planned = plan(recipes.load("baseline", overlays))
    end = attempt._describe_end(
        torch.OutOfMemoryError("CUDA out of memory"), StopRequest(), planned, tmp_path
    )
    assert f"{free}.0 GiB free (79.0 GiB in all)" in end.error or free == 79
    assert end.status == "failed" and said in end.error and "out of memory" in end.error


@pytest.mark.parametrize(("gib", "said"), [(80, "about 71.5 GiB of 80.0"), (60, "--overlay cpu")])
def test_without_a_gpu_the_miniature_is_advised(gib, said, monkeypatch):
    monkeypatch.setattr(device, "TYPE", "cpu")
    monkeypatch.setattr(device, "memory_bytes", lambda: gib * GIB)
    assert said in sizes.check_memory(plan(recipes.load("baseline")))


def test_processes_of_a_run_share_the_machines_memory(monkeypatch):
    monkeypatch.setattr(device, "TYPE", "cpu")
    monkeypatch.setattr(device, "memory_bytes", lambda: 160 * GIB)
    planned = replace(plan(recipes.load("baseline")), world_size=2)
    assert "about 71.5 GiB of 80.0 GiB" in sizes.check_memory(planned)
