"""Frames from logs of other programs: the published project's, and plain torchtitan's TensorBoard folders."""

import json

import numpy as np
import pandas as pd
import pytest

from analysis.load import LoadError, load, steps
from analysis.other_logs.published import PUBLISHED, flops_per_token
from models import flops
from models.llama import FLAVORS
from tests.make_runs import write_lines, write_published, write_run, write_tensorboard
from tests.runs import PUBLISHED_LOGS, needs_published_logs


def test_published_log(tmp_path):
    frames = load(write_published(tmp_path / "tensorwise-fp8-compiled.jsonl"))
    row = frames.runs.iloc[0]
    assert frames.problems == []
    assert (row["run"], row["recipe"]) == ("tensorwise-fp8-compiled.jsonl", "tensorwise_fp8_compiled")
    assert (row["source"], row["float8"], row["status"]) == ("published log", "tensorwise", "completed")
    assert (row["steps"], row["tokens_per_step"], row["warm_up_s"], row["wall_s"]) == (25, 4096, 30, 46.5)
    assert np.isnan(row["seed"]) and np.isnan(row["steps_asked"]) and row["error"] is None
    assert row["tokens_per_s"] == pytest.approx(8192) and row["valid_tokens_per_s"] == pytest.approx(8192 * 0.2)
    assert row["mfu_bf16_peak"] == pytest.approx(8192 * flops_per_token(PUBLISHED) / 989e12)
    assert frames.windows["elapsed_s"].tolist() == [30, 34, 39, 41.5, 44, 46.5]
    assert frames.windows["mfu_logged"].tolist() == [0.5] * 6
    per_step = steps(frames.windows)
    assert per_step["step"].tolist() == list(range(1, 26))
    assert per_step["seconds"].tolist() == [30.0] + [1.0] * 9 + [0.5] * 15
    assert per_step.loc[per_step["loss"].notna(), "step"].tolist() == [1, 5, 10, 15, 20, 25]


def test_valid_tokens_of_a_published_log_are_weighted_by_tokens(tmp_path):
    log = write_published(tmp_path / "baseline.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        line["training_tokens_percentage"] = 90.0 if line["step"] == 5 else 10.0  # 4 of 25 steps
    write_lines(log, lines)
    row = load(log).runs.iloc[0]
    assert row["valid_tokens_per_s"] / row["tokens_per_s"] == pytest.approx((4 * 0.9 + 21 * 0.1) / 25)


def test_damaged_published_log(tmp_path):
    log = write_published(tmp_path / "baseline.jsonl")
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:3], b"garbage\n", lines[4], lines[5][:-30]]))
    frames = load(log)
    assert frames.problems == [f"{log}: 2 of 6 lines cannot be read (line 4) and left out"]
    assert frames.windows["step"].tolist() == [1, 5, 10, 20]
    assert steps(frames.windows)["step"].tolist() == [*range(1, 11), *range(16, 21)]  # 11 to 15 are lost
    assert steps(frames.windows)["seconds"].iloc[-1] == 0.5


def test_flops_per_token_of_the_published_model_are_those_of_our_flavor():
    assert PUBLISHED.parameters == flops.parameters(FLAVORS["8B-published"])
    for causal in (False, True):
        assert flops_per_token(PUBLISHED, causal) == flops.flops_per_token(FLAVORS["8B-published"], 4096, causal)


@needs_published_logs
def test_published_figures():
    frames = load(PUBLISHED_LOGS)
    runs = frames.runs.set_index("recipe")
    expected = pd.DataFrame(
        {"tokens_per_s": [8151, 8800, 9315, 10945], "mfu": [42.5, 45.9, 48.5, 57.0],
         "warm_up_s": [1.0, 36.9, 134.2, 102.9], "wall_s": [504.7, 503.0, 575.1, 478.3]},
        index=["baseline", "baseline_compiled", "rowwise_fp8_compiled", "tensorwise_fp8_compiled"],
    )  # fmt: skip
    assert frames.problems == [] and sorted(runs.index) == sorted(expected.index)
    assert runs["tokens_per_s"].round().to_dict() == expected["tokens_per_s"].to_dict()
    assert (100 * runs["mfu_bf16_peak"]).round(1).to_dict() == expected["mfu"].to_dict()
    assert runs[["warm_up_s", "wall_s"]].round(1).to_dict() == expected[["warm_up_s", "wall_s"]].to_dict()
    assert (100 * runs["valid_tokens_per_s"] / runs["tokens_per_s"]).round(1).tolist() == [22.6] * 4
    logged = frames.windows.groupby("recipe")["mfu_logged"].median()
    assert logged["tensorwise_fp8_compiled"] == pytest.approx(0.606, abs=5e-4)


@pytest.mark.parametrize("log_freq", [1, 5, 10])
def test_tensorboard_of_torchtitan(tmp_path, log_freq):
    folder = write_tensorboard(tmp_path / "llama3_8b" / "tb" / "20260131-1200", log_freq=log_freq)
    frames = load(tmp_path)
    row = frames.runs.iloc[0]
    assert (row["recipe"], row["source"], row["steps"]) == ("llama3_8b", "tensorboard", 50)
    assert row["world_size"] == 2 and row["tokens_per_step"] == pytest.approx(2000)
    assert row["tokens_per_s"] == pytest.approx(4000)
    assert row["data_wait_share"] == pytest.approx(0.02) and row["peak_memory_bytes"] == 3 * 2**30
    assert row["warm_up_s"] == pytest.approx(2) and row["wall_s"] == pytest.approx(2 + 49 * 0.5)
    assert np.isnan(row["mfu_bf16_peak"]) and frames.windows["mfu_logged"].iloc[0] == pytest.approx(0.4)
    per_step = steps(frames.windows)
    assert per_step["step"].tolist() == list(range(1, 51))
    assert per_step["seconds"].tolist() == pytest.approx([2.0] + [0.5] * 49)
    assert per_step.loc[~per_step["steady"], "step"].tolist() == list(range(1, 11))
    assert frames.windows["loss"].iloc[-1] == pytest.approx(5.0) and per_step["loss"].iloc[-1] == pytest.approx(5.0)
    assert frames.problems == [
        f"{folder}: TensorBoard does not say how a run ended, it is taken as completed at step 50"
    ]


@pytest.mark.parametrize("content", [b"", b"garbage" * 20])
def test_events_that_are_not_torchtitans_are_named(tmp_path, content):
    write_run(tmp_path / "sound")
    other = tmp_path / "other"
    other.mkdir()
    (other / "events.out.tfevents.1.host.1.0").write_bytes(content)
    frames = load(tmp_path)
    assert frames.runs["run"].tolist() == ["sound"]
    assert frames.problems == [
        f"{other}: its TensorBoard events hold no loss_metrics/global_avg_loss, so they are not torchtitan's"
    ]


def test_tensorboard_that_does_not_count_tokens_gives_rates_of_one_device(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(tmp_path / "titan")
    for step in range(1, 31):
        writer.add_scalar("loss_metrics/global_avg_loss", 3.0, step)
        writer.add_scalar("throughput(tps)", 500.0, step)
        writer.add_scalar("time_metrics/end_to_end(s)", 2.0, step)
    writer.close()
    row = load(tmp_path / "titan").runs.iloc[0]
    assert row["tokens_per_s"] == pytest.approx(500) and np.isnan(row["world_size"])
    assert np.isnan(row["data_wait_share"]) and np.isnan(row["valid_tokens_per_s"])


def test_a_file_that_is_no_log_says_which_lines_it_should_have(tmp_path):
    run = write_run(tmp_path / "run")
    with pytest.raises(LoadError, match="metrics.jsonl.*no log of the published project, whose lines have step, loss"):
        load(run / "metrics.jsonl")
