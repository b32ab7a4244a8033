"""What a run measures of itself: whether kernels came from the cache, and how near to its limits
FP8 is."""

from collections import Counter

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from experiments.training import metrics
from experiments.training.metrics import compile_cache, fp8_ranges
from models import device
from tests.models.layers import converted
from tests.runs import SMALLEST, TINY, lines_of


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
    marks = metrics.Timeline()
    for now, compiled in (10.0, 4.0), (25.0, 5.0):
        monkeypatch.setattr(device, "seconds_since_process_start", lambda now=now: now)
        monkeypatch.setattr(metrics, "compiled_s", lambda compiled=compiled: compiled)
        marks.end_first_step()
    assert marks.parts == {"first_step": 20.0, "compile": 5.0}


def ranges_of(recipe: str, weight: torch.Tensor, gradient: torch.Tensor | None) -> dict:
    """The ranges of one layer of the blocks, without the layer's name."""
    linear = nn.Linear(16, 16, bias=False)
    linear.weight = nn.Parameter(weight)
    linear.weight.grad = gradient
    ranges = fp8_ranges(converted(nn.ModuleDict({"w1": linear}), recipe, emulate=True))
    return {name.removesuffix("/w1"): value for name, value in ranges.items()}


def test_ranges_show_what_a_format_flushes():
    """e4m3 ends at 448, and what is at most 2^-10 becomes 0: a range of 2^18.8. Gradients are in
    e5m2, which ends at 57,344."""
    weight, gradient = torch.full((16, 16), 1.0), torch.full((16, 16), 57344.0)
    weight[0, :4], weight[1, :8], gradient[0, 0] = -448.0, 2.0**-11, 2.0**-18
    assert ranges_of("tensorwise", weight, gradient) == {
        "weight/amax": 448,
        "weight/scale": 1,
        "weight/saturated": 4 / 256,
        "weight/flushed": 8 / 256,
        "gradient/amax": 57344,
        "gradient/scale": 1,
        "gradient/saturated": 255 / 256,
        "gradient/flushed": 1 / 256,
    }
    assert ranges_of("rowwise", weight, None)["weight/flushed"] == 0
    assert fp8_ranges(nn.Linear(16, 16)) == {}


def test_a_run_shows_them_in_tensorboard_and_keeps_them(run_here, tmp_path):
    keys = [*TINY, SMALLEST, "metrics.fp8_ranges_every=2", "compile.enable=false"]
    assert run_here("tensorwise_fp8_compiled", "--overlay", "cpu", "--out", tmp_path, *keys) == 0
    lines = {line["step"]: line for line in lines_of(tmp_path) if "fp8_ranges" in line}
    assert [line["not_steady"] for line in lines.values()] == [[2], [4]]
    kept = lines[4]["fp8_ranges"]
    assert len(kept) == 7 * 2 * 4  # seven layers of a block, weight and gradient, four quantities
    [events] = (tmp_path / "tb").rglob("events.*")
    curves = EventAccumulator(str(events.parent)).Reload()
    [_, last] = curves.Scalars("fp8_weight/amax/feed_forward.w1")
    assert last.step == 4 and last.value == pytest.approx(kept["weight/amax/feed_forward.w1"])


def test_torchtitans_profiler_writes_a_trace_of_the_steps_asked_for(run_here, tmp_path):
    keys = [*TINY, SMALLEST, "training.steps=12", "metrics.log_freq=1", "compile.enable=false"]
    keys += ["profiling.enable_profiling=true", "profiling.profile_freq=5"]
    command = ["tensorwise_fp8_compiled", "--overlay", "cpu", "--out", tmp_path, *keys]
    assert run_here(*command) == 0
    traces = list(tmp_path.glob("profile*/iteration_*/rank0_trace.json"))
    assert traces and "aten::_scaled_mm" in traces[0].read_text()
