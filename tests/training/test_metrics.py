"""What a run measures of itself: whether kernels came from the cache, times, and traces."""

from collections import Counter

from experiments.training import metrics
from experiments.training.metrics import compile_cache
from tests.runs import SMALLEST, TINY


def test_graphs_that_cannot_be_cached_were_compiled(monkeypatch):
    """As with recomputation."""
    found = {"inductor": Counter(fxgraph_cache_hit=2), "aot_autograd": Counter()}
    monkeypatch.setattr(metrics, "counters", found)
    assert compile_cache() == "warm"
    found["inductor"]["fxgraph_cache_bypass"] = 1
    assert compile_cache() == "cold"


def test_torchtitans_profiler_writes_a_trace_of_the_steps_asked_for(run_here, tmp_path):
    keys = [*TINY, SMALLEST, "training.steps=12", "metrics.log_freq=1", "compile.enable=false"]
    keys += ["profiling.enable_profiling=true", "profiling.profile_freq=5"]
    command = ["tensorwise_fp8_compiled", "--overlay", "cpu", "--out", tmp_path, *keys]
    assert run_here(*command) == 0
    traces = list(tmp_path.glob("profile*/iteration_*/rank0_trace.json"))
    assert traces and "aten::_scaled_mm" in traces[0].read_text()
