"""Where a run's warm-up went."""

from collections import Counter

from experiments.training import metrics
from experiments.training.metrics import Timeline, compile_cache
from models import device


def test_graphs_that_cannot_be_cached_were_compiled(monkeypatch):
    """As with recomputation."""
    found = {"inductor": Counter(fxgraph_cache_hit=2), "aot_autograd": Counter()}
    monkeypatch.setattr(metrics, "counters", found)
    assert compile_cache() == "warm"
    found["inductor"]["fxgraph_cache_bypass"] = 1
    assert compile_cache() == "cold"


def test_phases_add_up_for_a_second_run_of_one_process(monkeypatch):
    """What torch.compile took counts from the start of the process: 4 s of the first run, 1 s of
    the second."""
    marks = Timeline()
    for now, compiled in (10.0, 4.0), (25.0, 5.0):
        monkeypatch.setattr(device, "seconds_since_process_start", lambda now=now: now)
        monkeypatch.setattr(metrics, "compiled_s", lambda compiled=compiled: compiled)
        marks.end_first_step()
    assert marks.phases == {"first_step": 20.0, "compile": 5.0}
