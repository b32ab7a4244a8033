"""What would mislead: studies of three seeds in which one thing is wrong, and what answer and
matrix must say of it."""

import re
import shutil

import pytest

from analysis.answer import answer
from analysis.comparison import compare
from analysis.load import LoadError
from analysis.report import as_json
from analysis.table import matrix, notes, rows_of
from tests.make_runs import change, change_lines, plus, write_run, write_study

FP8 = "tensorwise_fp8_compiled"


def slow_tenths(folder):
    """By the median step FP8 is 1.25 times as fast; every tenth takes five times as long, so in
    total it is slower."""

    def slower(line, seed):
        late = max(
            0, (line["step"] - 5) // 10
        )  # of those after the first 10 steps, which are slow anyway
        slow = {"step_s": [0.4]} if line["step"] % 10 == 5 and late else {}
        return {"elapsed_s": line["elapsed_s"] + late * (0.4 - 0.08)} | slow

    change_lines(folder, FP8, slower)


def unproven(proof):
    return lambda folder: change(folder, FP8, name="proof.json", **proof)


def nan_from_step_100(line, seed):
    return {"loss": None, "losses": [None]} if line["step"] > 100 else {}


def slow_steps_not_logged(folder):
    """The log has a gap of 100 steps, in which FP8 took 0.58 s each."""
    change_lines(folder, FP8, lambda line, seed: (
        None if 50 < line["step"] <= 150 else {"elapsed_s": line["elapsed_s"] + 50 * (line["step"] > 150)}
    ))  # fmt: skip


def diverged(**seeds):
    """The seeds of each recipe that diverge."""
    return lambda folder: [
        change(folder, recipe, of, status="diverged") for recipe, of in seeds.items()
    ]


def shifted(recipe, *shifts):
    """Losses of a recipe that are higher, in each seed by so much."""
    return lambda folder: change_lines(folder, recipe, plus(*shifts))


def slow_by_the_clock(**told):
    """Every tenth step of FP8 takes 0.6 s, which its log says by the clock alone."""

    def slower(line, seed):
        late = max(0, (line["step"] - 5) // 10)
        slow = (
            {name: value(line["step"]) for name, value in told.items()}
            if line["step"] % 10 == 5 and late
            else {}
        )
        return {"elapsed_s": line["elapsed_s"] + late * (0.6 - 0.08)} | slow

    return lambda folder: change_lines(folder, FP8, slower)


def nan_in_the_middle(line, seed):
    return {"loss": None, "losses": [None]} if line["step"] == 100 else {}


def four_times(line, seed):
    late = max(0, line["step"] - 10)
    fast = {"step_s": [0.02], "tokens_per_s": 5000} if late else {}
    return {"elapsed_s": line["elapsed_s"] - 0.06 * late} | fast


def billionth(folder):
    """FP8 gains 2e-9 s a step on 40 s."""
    for recipe, step_s in (*((r, 1e-8) for r in BF16), (FP8, 8e-9)):
        change_lines(folder, recipe, lambda line, seed, s=step_s: {"step_s": [s], "tokens_per_s": 100 / s} | (
            {"elapsed_s": 14.0 + 40 * (s < 1e-8) + s * line["step"]} if line["step"] > 10 else {}
        ) if line["step"] > 10 else {})  # fmt: skip


LOSS, PROOF = "loss after 200 steps", "FP8 proof"
UNPROVEN = f"No answer: {FP8} has 1.25 times .* nothing proves that it ran in FP8"
SHARE, SPEED, BF16 = (
    "fp8_share_of_matmul_flops",
    "over compiled bf16",
    ("baseline", "baseline_compiled"),
)
LEFT = "seed 1 left the recipe's other seeds: it ends at a loss of 18."
BY_CLOCK = f"Cannot tell: {FP8} has 1.25 times .*0.7\\d times by the clock"
PLANTED = {
    "slow steps that the median hides": (slow_tenths, f"No: {FP8} has 0.89 times .*1.25 times by the median step",
                                         "pays back", "never"),
    "one seed diverges": (lambda folder: change(folder, FP8, [2], status="diverged"),
                          f"No: {FP8} diverged in 1 of 3 seeds, where bf16 did not.", LOSS, "diverged in 1 of 3"),
    "all seeds diverge": (lambda folder: change(folder, FP8, status="diverged"),
                          f"No: {FP8} diverged in 3 of 3 seeds", LOSS, "diverged in 3 of 3"),
    "a seed that only the compiled baseline completed diverges": (
        lambda folder: (change(folder, "baseline", [2], status="failed"), change(folder, FP8, [2], status="diverged")),
        f"No: {FP8} diverged in 1 of 3 seeds", LOSS, "diverged in 1 of 3"),
    "logs end in NaN and say completed": (lambda folder: change_lines(folder, FP8, nan_from_step_100),
                                          f"No: {FP8} diverged in 3 of 3 seeds", LOSS, "diverged in 3 of 3"),
    "one seed jumps by 8, finite": (lambda folder: change_lines(folder, FP8, plus(0, 8, 0)), f"No: {FP8} {LEFT}", LOSS,
                                    "1 of 3 left the others"),
    "a proof of 0 %": (unproven({SHARE: 0.0}), UNPROVEN, PROOF, "none"),
    "emulated": (unproven({"emulated": True}), UNPROVEN, PROOF, "emulated"),
    "a spread as wide as the margin, 0.025": (lambda folder: change_lines(folder, FP8, plus(-0.03, 0, 0.03)),
                                              r"For speed, yes.* about 1\d seeds for the loss of tensorwise", LOSS,
                                              "cannot tell"),
    "proofs that differ between seeds": (lambda folder: change(folder, FP8, [1], "proof.json", **{SHARE: 0.01}),
                                         UNPROVEN, PROOF, "differs"),
    "one seed without a proof": (lambda folder: (folder / f"{FP8}1" / "proof.json").unlink(), "For speed, yes", LOSS,
                                "2 seeds"),
    "slow steps that are not steady": (slow_by_the_clock(step_s=lambda step: [0.6], not_steady=lambda step: [step]),
                                       BY_CLOCK, SPEED, "1.25 (1.25 to 1.25)"),
    "slow steps that are not logged": (slow_steps_not_logged, f"Cannot tell: {FP8} .*0.29 times by the clock", SPEED,
                                       "1.25 (1.25 to 1.25)"),
    "the baseline's seed jumps, not FP8's": (shifted("baseline", 0, 8, 0),
                                             f"For speed, yes.*cannot tell. baseline {LEFT}", LOSS, "cannot tell"),
    "one seed ends far below": (shifted(FP8, 0, -8, 0), "For speed, yes.*cannot tell", LOSS, "cannot tell"),
    "two seeds of three jump": (shifted(FP8, 0, 8, 8), f"No: {FP8} {LEFT}.*{FP8} seed 2 left", LOSS,
                                "2 of 3 left the others"),
    "the same seed jumps in all recipes": (lambda folder: [shifted(r, 0, 8, 0)(folder) for r in (*BF16, FP8)],
                                           "Yes", LOSS, "the same"),
    "each recipe diverges in another seed": (diverged(baseline=[2], baseline_compiled=[1], **{FP8: [0]}),
                                             f"For speed, yes.*baseline diverged in 1 of 3 .*{FP8} diverged in 1",
                                             LOSS, "diverged in 1 of 3"),
    "FP8 diverges more often": (diverged(baseline=[2], **{FP8: [0, 1]}),
                                f"No: baseline diverged in 1 .*{FP8} diverged in 2", LOSS, "diverged in 2 of 3"),
    "all of bf16 diverges": (diverged(baseline=[0, 1, 2], baseline_compiled=[0, 1, 2]),
                             "No answer: it needs completed .*baseline diverged in 3 of 3", "pays back", "-"),
    "some losses are not finite": (lambda folder: change_lines(folder, FP8, nan_in_the_middle), "Yes", LOSS,
                                   "the same"),
    "losses below zero": (lambda folder: [shifted(r, -30, -30, -30)(folder) for r in (*BF16, FP8)], "Yes", LOSS,
                          "the same"),
    "only FP8 finds compiled kernels": (lambda folder: change(folder, FP8, name="timing.json", compile_cache="warm"),
                                        "Yes.*warm-up included .of some runs without compilation.", LOSS, "the same"),
    "one seed is four times as fast": (lambda folder: change_lines(folder, FP8, four_times, [2]),
                                       "Cannot tell.*about .* runs", "pays back", "cannot tell"),
    "one seed of FP8 is missing": (lambda folder: shutil.rmtree(folder / f"{FP8}2"), "For speed, yes", LOSS, "2 seeds"),
    "a single run of the opponent": (lambda folder: [shutil.rmtree(folder / f"baseline_compiled{k}") for k in (1, 2)],
                                     "No verdict from a single run of baseline_compiled", SPEED, "1.25, one run"),
    "a lead that takes 20 billion steps": (billionth, "Yes.* about step 2\\d,\\d{3},\\d{3},\\d{3}", LOSS, "the same"),
}  # fmt: skip


@pytest.mark.parametrize("case", PLANTED)
def test_planted_cases(tmp_path, case):
    plant, expected, column, cell = PLANTED[case]
    plant(write_study(tmp_path))
    comparison = compare(tmp_path)
    assert re.match(expected, " ".join(answer(comparison)))
    columns, lines = matrix(comparison)
    row = next(line for line in lines if line[0] == FP8)
    assert row[columns.index(column)] == cell
    as_json(comparison)


def test_a_single_run_that_ends_far_above_is_said(tmp_path):
    write_study(tmp_path, seeds=1, loss_shift=8)
    assert re.match(
        "No verdict from one run each: .* ends at a far higher loss", answer(compare(tmp_path))[0]
    )


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"data": "stdlib-1f"}, None),
        ({"git": {"commit": "0a", "changes": "1f"}}, "differ in commit: 0a (.*); 0a and changes"),
        ({"packages": {"torch": "2.13.0"}}, "differ in torchtitan: 0.2.2 (.*); unknown"),
    ],
)
def test_what_fp8_runs_do_not_share_with_bf16_is_refused_or_named(tmp_path, value, sentence):
    write_study(tmp_path, seeds=1)
    for recipe in BF16:
        change(tmp_path, recipe, [0], data="stdlib-2e", git={"commit": "0a", "changes": None})
    change(tmp_path, FP8, [0], **value)
    if sentence is None:
        with pytest.raises(LoadError, match="differ in data"):
            compare(tmp_path)
    else:
        assert any(re.search(sentence, line) for line in notes(rows_of(compare(tmp_path))))


def test_the_command_to_repeat_quotes_names(tmp_path):
    write_run(tmp_path / "a", compiled=True)
    write_run(tmp_path / "b", "x; rm -rf ~", float8="tensorwise", steps=30)
    assert "'x; rm -rf ~' --seeds" in answer(compare(tmp_path))[1]
