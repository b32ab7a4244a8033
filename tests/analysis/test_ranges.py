"""The figure of how near to its limits FP8 was."""

import json

import pandas as pd

from analysis import plots
from analysis.fp8_ranges import fp8_ranges


def test_what_runs_kept_is_drawn_by_group(tmp_path):
    lines = [
        {"step": 1},
        {
            "step": 2,
            "fp8_ranges": {"weight/flushed/feed_forward.w1": 0.25, "weight/amax/attention.wq": 3},
        },
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    ranges = fp8_ranges(
        pd.DataFrame([{"run": "a", "recipe": "tensorwise_fp8_compiled", "path": str(tmp_path)}])
    )
    assert ranges[["step", "tensor", "quantity", "group", "value"]].values.tolist() == [
        [2, "weight", "flushed", "feed_forward.w1", 0.25],
        [2, "weight", "amax", "attention.wq", 3],
    ]
    flushed, amax, *_ = plots.fp8_ranges(ranges).axes
    assert [line.get_label() for line in flushed.lines] == ["w1"] and [
        line.get_label() for line in amax.lines
    ] == ["wq"]


def test_runs_without_them_say_so():
    runs = pd.DataFrame([{"run": "a", "recipe": "baseline", "path": "nowhere"}])
    texts = [
        text.get_text() for axes in plots.fp8_ranges(fp8_ranges(runs)).axes for text in axes.texts
    ]
    assert len(texts) == 4 and all("no data" in text for text in texts)
