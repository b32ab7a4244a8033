"""Frames from logs of other programs: the published project's, and plain torchtitan's TensorBoard
folders."""

import json

import numpy as np
import pandas as pd
import pytest

from analysis.load import LoadError, load
from analysis.other_logs import published
from models import flops
from models.llama import FLAVORS
from tests.make_runs import write_lines, write_published, write_run, write_tensorboard
from tests.runs import PUBLISHED_LOGS, needs_published_logs


def facts(row: pd.Series, expected: dict) -> bool:
    """Whether a row has these values: numbers to a millionth."""
    return row[list(expected)].to_dict() == pytest.approx(expected)


# ---- the published project's ----


def test_published_log(tmp_path):
    log = write_published(tmp_path / "fp8-tensorwise-compile_20250525_173352.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    lines[1]["training_tokens_percentage"] = 45.0  # of 4 of its 25 steps; 20 % of the others
    write_lines(log, lines)
    frames = load(log)
    per_token = flops.flops_per_token(FLAVORS["8B-published"], 4096)
    assert frames.problems == [] and facts(frames.runs.iloc[0], {
        "run": log.name, "recipe": "tensorwise_fp8_compiled", "source": "published log",
        "float8": "tensorwise", "status": "completed", "steps": 25, "tokens_per_step": 4096.0,
        "tokens": 25.0 * 4096, "warm_up_s": 30.0, "wall_s": 46.5, "tokens_per_s": 8192.0,
        "valid_share": 0.2 + 0.25 * 4 / 25,
        "flops_per_token": per_token, "mfu_bf16_peak": 8192 * per_token / 989e12,
        "parameters": flops.parameters(FLAVORS["8B-published"]),
    })  # fmt: skip
    assert frames.runs[["seed", "steps_asked"]].isna().all(axis=None)
    assert frames.windows["elapsed_s"].tolist() == [30, 34, 39, 41.5, 44, 46.5]
    by_step = frames.steps
    assert by_step["step"].tolist() == list(range(1, 26))
    assert by_step["seconds"].tolist() == [30.0] + [1.0] * 9 + [0.5] * 15
    assert by_step.loc[by_step["loss"].notna(), "step"].tolist() == [1, 5, 10, 15, 20, 25]


@pytest.mark.parametrize(
    ("name", "recipe"),
    [("baseline", "baseline"), ("baseline-compile", "baseline_compiled"),
     ("fp8-rowwise-compile", "rowwise_fp8_compiled"), ("flash-attn-fa3", "flash_attn_fa3")],
)  # fmt: skip
def test_the_projects_own_names_are_this_projects_recipes(tmp_path, name, recipe):
    assert published.recipe_name(tmp_path / f"{name}_20250525_173352.jsonl") == recipe


def test_a_missing_line_is_named_and_its_steps_are_not_timed(tmp_path):
    log = write_published(tmp_path / "baseline.jsonl")
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:3], *lines[4:]]))
    frames = load(log)
    assert frames.problems == [f"{log}: 5 steps are missing from its log"]
    assert frames.steps["step"].tolist() == [*range(1, 11), *range(16, 26)]
    assert frames.steps["seconds"].iloc[-1] == 0.5
    log.write_bytes(b"".join([*lines[:5], lines[5][:-30]]))
    with pytest.raises(LoadError, match="baseline.jsonl: .* no log of the published project"):
        load(log)


@needs_published_logs
def test_published_figures():
    frames = load(PUBLISHED_LOGS)
    expected = pd.DataFrame(
        {"tokens_per_s": [8123, 8777, 9280, 10898], "mfu_bf16_peak": [0.423, 0.457, 0.484, 0.568],
         "warm_up_s": [1.0, 36.9, 134.2, 102.9], "wall_s": [504.7, 503.0, 575.1, 478.3]},
        index=["baseline", "baseline_compiled", "rowwise_fp8_compiled", "tensorwise_fp8_compiled"],
    )  # fmt: skip
    runs = frames.runs.set_index("recipe").loc[expected.index]
    assert frames.problems == [] and (frames.runs["status"] == "completed").all()
    assert expected["tokens_per_s"].to_dict() == published.TOKENS_PER_S
    digits = {"tokens_per_s": 0, "mfu_bf16_peak": 3, "warm_up_s": 1, "wall_s": 1}
    assert runs[list(expected)].round(digits).to_dict() == expected.to_dict()
    assert (100 * runs["valid_share"]).round(1).tolist() == [22.6] * 4


# ---- how a log ended, which it does not say ----


@pytest.mark.parametrize(
    ("write", "name", "short", "ends"),
    [(write_published, "{}.jsonl", {"seconds": (30.0, 4.0, 5.0)}, "10 of 25"),
     (write_tensorboard, "{}/tb/20260131-1200", {"last": 20}, "20 of 50")],
)  # fmt: skip
def test_a_log_that_ends_early_or_not_finite_is_not_completed(tmp_path, write, name, short, ends):
    """Beside a whole log, so that the shorter one is seen to be short."""
    lost = {"nan": {"last_loss": float("nan")}, "inf": {"last_loss": float("inf")}}
    for recipe, keys in ({"whole": {}, "short": short} | lost).items():
        write(tmp_path / name.format(recipe), **keys)
    frames = load(tmp_path)
    status = frames.runs.set_index("recipe")["status"].to_dict()
    assert status == {"whole": "completed", "short": "short", "nan": "diverged", "inf": "diverged"}
    text = "\n".join(frames.problems)
    assert f"short, its log ends at step {ends}" in text
    assert f"diverged at step {ends.split()[-1]}, so it is not averaged" in text


# ---- torchtitan's ----


@pytest.mark.parametrize("log_freq", [1, 10])
def test_tensorboard_of_torchtitan(tmp_path, log_freq):
    folder = write_tensorboard(tmp_path / "llama3_8b" / "tb" / "20260131-1200", log_freq=log_freq)
    frames = load(tmp_path)
    assert facts(frames.runs.iloc[0], {
        "recipe": "llama3_8b", "source": "tensorboard", "steps": 50, "world_size": 2,
        "tokens_per_step": 2000.0, "tokens_per_s": 4000.0,
        "peak_memory_bytes": 3 * 2**30, "warm_up_s": 2.0, "wall_s": 2 + 49 * 0.5,
        "final_loss": np.mean([10 - step / 10 for step in range(46, 51) if step % log_freq == 0]),
    })  # fmt: skip
    assert frames.runs["mfu_bf16_peak"].isna().all()
    by_step = frames.steps
    assert by_step["step"].tolist() == list(range(1, 51))
    assert by_step["seconds"].tolist() == pytest.approx([2.0] + [0.5] * 49)
    assert by_step.loc[~by_step["steady"], "step"].tolist() == list(range(1, 11))
    (problem,) = frames.problems
    assert problem.startswith(f"{folder}: TensorBoard does not say how a run ended")
    of_one_device = load(write_tensorboard(tmp_path / "one", without=("n_tokens_seen", "lr"))).runs
    assert of_one_device["tokens_per_s"].tolist() == [pytest.approx(2000)]
    assert of_one_device[["world_size", "valid_share"]].isna().all(axis=None)


def test_a_training_that_was_resumed_is_one_run(tmp_path):
    """The first process logged up to step 30, the second went on from step 20, at 0.55 instead of
    0.5 s a step. The third was killed before its first line."""
    tb = tmp_path / "llama3_8b" / "tb"
    write_tensorboard(tb / "20260131-1200", last=30)
    write_tensorboard(tb / "20260131-1300", first=30, step_s=0.55)
    (tb / "20260131-1330").mkdir()
    (tb / "20260131-1330" / "events.out.tfevents.9.host.1.0").write_bytes(b"")
    frames = load(tmp_path)
    first = 2 + 29 * 0.5
    assert frames.runs["recipe"].tolist() == ["llama3_8b"] and len(frames.problems) == 1
    assert facts(frames.runs.iloc[0], {"wall_s": first + 16.5, "warm_up_s": 2.0})
    elapsed = {1: 2, 10: 6.5, 20: 11.5, 30: first + 5.5, 40: first + 11, 50: first + 16.5}
    assert frames.windows.set_index("step")["elapsed_s"].to_dict() == pytest.approx(elapsed)
    not_steady = frames.steps.query("not steady")["step"].tolist()
    assert not_steady == [*range(1, 11), *range(21, 31)]


def test_a_training_that_began_anew_is_another_run_and_of_many_ranks_the_first_is_read(tmp_path):
    for rank in (0, 1, 10):
        write_tensorboard(tmp_path / "llama" / "tb" / "20260131-1200" / f"rank_{rank}", last=20)
        write_tensorboard(tmp_path / "llama" / "tb" / "20260131-1300" / f"rank_{rank}")
    frames = load(tmp_path)
    assert frames.runs["run"].tolist() == ["20260131-1200/rank_0", "20260131-1300/rank_0"]
    assert frames.runs["status"].tolist() == ["short", "completed"]


def test_events_that_are_not_torchtitans_are_named(tmp_path):
    write_run(tmp_path / "sound")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "events.out.tfevents.1.host.1.0").write_bytes(b"garbage" * 20)
    frames = load(tmp_path)
    (problem,) = frames.problems
    assert frames.runs["run"].tolist() == ["sound"]
    assert f"{tmp_path}/other" in problem and "no loss_metrics/global_avg_loss" in problem
