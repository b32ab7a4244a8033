"""What a run measures of itself: whether kernels came from the cache, times, and traces."""

import json
from collections import Counter
from functools import partial
from itertools import chain, repeat

from experiments.training import metrics
from experiments.training.metrics import describe_compile_cache
from models import device
from tests.runs import SMALLEST, TINY, attempt_of


def test_graphs_that_cannot_be_cached_were_compiled(monkeypatch):
    """As with recomputation."""
    found = {"inductor": Counter(fxgraph_cache_hit=2), "aot_autograd": Counter()}
    monkeypatch.setattr(metrics, "counters", found)
    assert describe_compile_cache() == "warm"
    found["inductor"]["fxgraph_cache_bypass"] = 1
    assert describe_compile_cache() == "cold"


def test_torchtitans_profiler_writes_a_trace_of_the_steps_asked_for(run_here, tmp_path):
    keys = [*TINY, SMALLEST, "training.steps=12", "metrics.log_freq=1", "compile.enable=false"]
    keys += ["profiling.enable_profiling=true", "profiling.profile_freq=5"]
    command = ["tensorwise_fp8_compiled", "--overlay", "cpu", "--out", tmp_path, *keys]
    assert run_here(*command) == 0
    traces = list(tmp_path.glob("profile*/iteration_*/rank0_trace.json"))
    assert traces and "aten::_scaled_mm" in traces[0].read_text()


def test_steps_that_lacked_memory_are_on_record(run_here, tmp_path, monkeypatch):
    """The allocator has retried twice before the first step, in step 2, and twice in step 12, which
    is steady."""
    counts = chain([2, 2, 3], repeat(3, 9), repeat(5))
    monkeypatch.setattr(device, "allocator_retries", partial(next, counts))
    keys = [*TINY, SMALLEST, "training.steps=13", "metrics.log_freq=5"]
    assert run_here("baseline", "--overlay", "cpu", "--out", tmp_path, *keys) == 0
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line.get("allocator_retries", []) for line in lines] == [[], [2], [], [12]]
    [note] = [note for note in attempt_of(tmp_path)["notes"] if "memory" in note]
    assert "in 1 steady steps" in note
