"""The published runs, which are kept as a study without proof, and the conversion of their logs."""

import pytest

from analysis import plots
from analysis.comparison import compare
from analysis.speed import mfu, tokens_per_s
from analysis.study import read_study
from extensions.published.convert import RUNS, main
from models.architectures import FLAVORS
from models.errors import InputError
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


def convert(tmp_path, **seconds_by_name):
    """Convert logs, and compare the runs."""
    for name, seconds in seconds_by_name.items():
        path = tmp_path / "logs" / "data" / f"{name.replace('_', '-')}_20250525_173352.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_log(path, seconds)
    assert main([str(tmp_path / "logs"), str(tmp_path / "study")]) == 0
    return compare(read_study(tmp_path / "study"))


def test_a_log_is_a_run(tmp_path):
    comparison = convert(tmp_path, fp8_tensorwise_compile=[30.0, 4.0, 5.0, 2.5, 2.5, 2.5])
    [run] = comparison.study.runs
    assert run.recipe == "tensorwise_fp8_compiled" and run.completed
    assert run.steps["step_s"].tolist() == [30.0] + [1.0] * 9 + [0.5] * 15
    assert run.clock.to_dict() == {
        1: 30, 5: 34, 10: 39, 15: 41.5, 20: 44, 25: 46.5,
    }  # fmt: skip
    assert run.steps["is_steady"].sum() == 15
    valid_share = run.steps["valid_tokens"].sum() / run.steps["tokens"].sum()
    assert valid_share == pytest.approx(0.2 + 0.25 * 4 / 25)


def test_logs_compare_as_single_runs_of_the_published_size(tmp_path):
    comparison = convert(
        tmp_path,
        baseline_compile=[30.0, *[2.5] * 40],
        fp8_tensorwise_compile=[30.0, *[2.0] * 40],
    )
    assert comparison.best.outcome == "single_run"
    assert comparison.best.speed.ratio.mean == pytest.approx(1.25)
    [run] = comparison.study.completed_by_recipe["baseline_compiled"]
    model = FLAVORS["8B-published"]
    assert mfu(run) == pytest.approx(8192 * model.flops_per_token(4096) / 989e12)
    assert run.record.parameters == model.parameters()
    assert "starts with training, not with the process" in plots.lead(comparison).alternative


def test_a_file_that_is_not_a_log_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no"):
        main([str(tmp_path), str(tmp_path / "study")])
    (tmp_path / "baseline.jsonl").write_text("{}")
    with pytest.raises(InputError, match="baseline.jsonl"):
        main([str(tmp_path), str(tmp_path / "study")])
    (tmp_path / "baseline.jsonl").rename(tmp_path / "other.jsonl")
    with pytest.raises(InputError, match="other.jsonl"):
        main([str(tmp_path), str(tmp_path / "study")])


def test_published_figures():
    comparison = compare(read_study(RUNS))
    runs = [runs_of_recipe[0] for runs_of_recipe in comparison.study.completed_by_recipe.values()]
    assert [round(tokens_per_s(run)) for run in runs] == [8123, 8777, 9280, 10898]
    assert [round(mfu(run), 3) for run in runs] == [0.423, 0.457, 0.484, 0.568]
    assert [round(run.first_step_s, 1) for run in runs] == [1.0, 36.9, 134.2, 102.9]
    wall_s = [round(run.steps["wall_s"].max(), 1) for run in runs]
    assert wall_s == [504.7, 503.0, 575.1, 478.3]
    assert comparison.results["tensorwise_fp8_compiled"].break_even.step == 728
    assert comparison.results["rowwise_fp8_compiled"].break_even.step == 3851


def test_the_published_runs_prove_nothing_and_get_no_verdict():
    comparison = compare(read_study(RUNS))
    assert comparison.best.outcome == "single_run"
    assert comparison.best.loss.word.startswith("it takes")
    assert not comparison.study.on_cpu and not any(
        run.record.proof for run in comparison.study.runs
    )
