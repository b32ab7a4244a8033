"""The published project's logs, read as runs without proof."""

import pytest

from analysis import plots
from analysis.comparison import compare
from analysis.newest import NothingToShow
from analysis.speed import mfu, tokens_per_s
from analysis.study import StudyError
from extensions.published.logs import FOLDER, read_log, read_published
from models.architectures import FLAVORS
from tests.make_runs import write_lines


def write_log(path, seconds) -> None:
    """Write a log: a line at step 1, then every 5, of 4,096 tokens a step; `seconds` since the
    previous line. In the second line 45 % of the tokens are not padding, else 20 %."""
    lines = []
    previous_step = 0
    for number, duration in enumerate(seconds):
        step = max(1, 5 * number)
        lines.append({
            "timestamp": "2025-05-25 10:16:09",
            "step": step,
            "loss": 12 - step / 100,
            "tokens_per_second": (step - previous_step) * 4096 / duration,
            "time_delta": duration,
            "training_tokens_percentage": 45.0 if number == 1 else 20.0,
            "learning_rate": 5e-5,
        })  # fmt: skip
        previous_step = step
    write_lines(path, lines)


def test_a_log_is_a_run(tmp_path):
    log = tmp_path / "fp8-tensorwise-compile_20250525_173352.jsonl"
    write_log(log, [30.0, 4.0, 5.0, 2.5, 2.5, 2.5])
    run = read_log(log)
    assert run.recipe == "tensorwise_fp8_compiled" and run.completed
    assert run.steps["step_s"].tolist() == [30.0] + [1.0] * 9 + [0.5] * 15
    assert run.clock.to_dict() == {
        1: 30, 5: 34, 10: 39, 15: 41.5, 20: 44, 25: 46.5,
    }  # fmt: skip
    assert run.steps["is_steady"].sum() == 15
    useful = run.steps["valid_tokens"].sum() / run.steps["tokens"].sum()
    assert useful == pytest.approx(0.2 + 0.25 * 4 / 25)


def test_logs_compare_as_single_runs_of_the_published_size(tmp_path):
    for name, seconds in (("baseline-compile", 2.5), ("fp8-tensorwise-compile", 2.0)):
        write_log(tmp_path / f"{name}.jsonl", [30.0, *[seconds] * 40])
    comparison = compare(read_published(tmp_path))
    assert comparison.best.outcome == "single_run"
    assert comparison.best.speed.ratio.mean == pytest.approx(1.25)
    [run] = comparison.study.completed_by_recipe["baseline_compiled"]
    model = FLAVORS["8B-published"]
    assert mfu(run) == pytest.approx(8192 * model.flops_per_token(4096) / 989e12)
    assert run.record.parameters == model.parameters()
    assert "starts with training, not with the process" in plots.lead(comparison).alternative


def test_a_file_that_is_not_a_log_is_refused(tmp_path):
    # An execution of notebooks reports this error and continues.
    with pytest.raises(NothingToShow, match="make lab"):
        read_published(tmp_path)
    (tmp_path / "other.jsonl").write_text("{}")
    with pytest.raises(StudyError, match="other.jsonl"):
        read_published(tmp_path)


@pytest.mark.skipif(
    not FOLDER.is_dir(),
    reason="needs the published logs: set PUBLISHED_LOGS to a copy of output/data of "
    "github.com/mak2508/lsai-proj",
)
def test_published_figures():
    comparison = compare(read_published())
    runs = [runs_of_recipe[0] for runs_of_recipe in comparison.study.completed_by_recipe.values()]
    assert [round(tokens_per_s(run)) for run in runs] == [8123, 8777, 9280, 10898]
    assert [round(mfu(run), 3) for run in runs] == [0.423, 0.457, 0.484, 0.568]
    wall_s = [round(run.steps["wall_s"].max(), 1) for run in runs]
    assert wall_s == [504.7, 503.0, 575.1, 478.3]
    assert comparison.results["tensorwise_fp8_compiled"].break_even.step == 728
    assert comparison.results["rowwise_fp8_compiled"].break_even.step == 3851
