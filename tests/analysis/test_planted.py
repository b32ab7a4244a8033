"""What would mislead: studies of three seeds in which one thing is wrong, and what answer and
matrix must say of it."""

import re
import shutil

import pytest

from analysis.answer import answer
from analysis.comparison import compare
from analysis.report import as_json
from analysis.table import matrix
from tests.make_runs import change, change_lines, plus, write_study

FP8, ALL = "tensorwise_fp8_compiled", (0, 1, 2)
BF16 = ("baseline", "baseline_compiled")


# ---- plants: functions of a study's folder ----


def lines(changed, seeds=ALL, recipe=FP8):
    return lambda folder: change_lines(folder, recipe, changed, seeds)


def shifted(recipe, *shifts):
    """Losses of a recipe that are higher, in each seed by so much."""
    return lines(plus(*shifts), recipe=recipe)


def facts(recipe=FP8, seeds=ALL, name="manifest.json", **values):
    return lambda folder: change(folder, recipe, seeds, name, **values)


def diverged(recipe, *seeds):
    return facts(recipe, seeds, status="diverged")


def proof(seeds=ALL, **values):
    return facts(FP8, seeds, "proof.json", **values)


def gone(recipe, *seeds):
    return lambda folder: [shutil.rmtree(folder / f"{recipe}{seed}") for seed in seeds]


# ---- what is other about a line, by line and seed ----


def slow_tenths(seconds, logged):
    """Every tenth step takes so many seconds, which the log says as in `logged`, or by the clock
    alone."""

    def slower(line, seed):
        late = max(0, (line["step"] - 5) // 10)  # after the first 10 steps, which are slow anyway
        slow = line["step"] % 10 == 5 and late > 0
        told = {"step_s": [seconds], "not_steady": [] if logged else [line["step"]]}
        return {"elapsed_s": line["elapsed_s"] + late * (seconds - 0.08)} | (told if slow else {})

    return slower


def not_logged(line, seed):
    """The log has a gap of 100 steps, in which FP8 took 0.58 s each."""
    if 50 < line["step"] <= 150:
        return None
    return {"elapsed_s": line["elapsed_s"] + 50 * (line["step"] > 150)}


def half(line, seed):
    return {} if line["step"] < 101 else None


def not_finite(where):
    lost = {"loss": None, "losses": [None]}
    return lambda line, seed: lost if where(line["step"]) else {}


def of_seconds(step_s, late=0.0):
    """Steady steps of so many seconds, after a warm-up that is longer by `late`."""

    def changed(line, seed):
        if line["step"] <= 10:
            return {}
        elapsed = 14.0 + late + step_s * (line["step"] - 10)
        return {"elapsed_s": elapsed, "step_s": [step_s], "tokens_per_s": 100 / step_s}

    return changed


LOSS, PROOF, SPEED, PAYS = "loss after 200 steps", "FP8 proof", "over compiled bf16", "pays back"
# 0.02 s a step pay 40 s back after 2,000 steady steps; the first ten are as slow in both
YES = (
    f"Yes: {FP8} has 1.25 times the tokens/s of baseline_compiled, and would be ahead from about "
    "step 2,01[01], warm-up included, beyond these runs. It ends at the same loss after 200 steps.*"
    "9 % of the compute"
)
SHARE = "fp8_share_of_matmul_flops"
UNPROVEN = f"No answer: {FP8} has 1.25 times .* nothing proves that it ran in FP8"
LEFT = "seed 1 left the recipe's other seeds: it ends at a loss of 18."
CLOCK = f"Cannot tell: {FP8} .*0.{{}}\\d times by the clock"
KEPT = "1.25 (1.25 to 1.25)"
MEDIAN = f"No: {FP8} has 0.89 times .*1.25 times by the median step"
IN_EACH = f"For speed, yes.*baseline diverged in 1 of 3 .*{FP8} diverged in 1"
MORE = f"No: baseline diverged in 1 .*{FP8} diverged in 2"
NONE_LEFT = "No answer: it needs completed .*baseline diverged in 3 of 3"
SPREAD = r"For speed, yes.* about 1\d seeds for the loss of tensorwise"
WARM = "Yes.*warm-up included.*some runs have no compilation"
SINGLE = "No verdict from a single run: "
PLANTED = {
    "nothing is wrong": ([], YES, SPEED, KEPT),
    "slow steps that the median hides": ([lines(slow_tenths(0.4, True))], MEDIAN, PAYS, "never"),
    "slow steps that are not steady": (
        [lines(slow_tenths(0.6, False))], CLOCK.format(7), SPEED, KEPT),
    "slow steps that are not logged": ([lines(not_logged)], CLOCK.format(2), SPEED, KEPT),
    "one seed diverges": (
        [diverged(FP8, 2)], f"No: {FP8} diverged in 1 of 3 seeds.", LOSS,
        "diverged in 1 of 3"),
    "a seed that only the compiled baseline completed diverges": (
        [facts("baseline", [2], status="failed"), diverged(FP8, 2)],
        f"No: {FP8} diverged in 1 of 3 seeds", LOSS, "diverged in 1 of 3"),
    "each recipe diverges in another seed": (
        [diverged("baseline", 2), diverged("baseline_compiled", 1), diverged(FP8, 0)],
        IN_EACH, LOSS, "diverged in 1 of 3"),
    "FP8 diverges more often": (
        [diverged("baseline", 2), diverged(FP8, 0, 1)], MORE, LOSS, "diverged in 2 of 3"),
    "all of bf16 diverges": ([diverged(r, *ALL) for r in BF16], NONE_LEFT, PAYS, "-"),
    "logs end in NaN and say completed": (
        [lines(not_finite(lambda step: step > 100))],
        f"No: {FP8} diverged in 3 of 3 seeds", LOSS, "diverged in 3 of 3"),
    "some losses are not finite": (
        [lines(not_finite(lambda step: step == 100))], "Yes", LOSS, "the same"),
    "two seeds of three jump": (
        [shifted(FP8, 0, 8, 8)], f"No: {FP8} {LEFT}.*{FP8} seed 2 left", LOSS,
        "2 of 3 left the others"),
    "the baseline's seed jumps, not FP8's": (
        [shifted("baseline", 0, 8, 0)], f"For speed, yes.*baseline {LEFT}", LOSS, "cannot tell"),
    "the same seed jumps in all recipes": (
        [shifted(r, 0, 8, 0) for r in (*BF16, FP8)], "Yes", LOSS, "the same"),
    "one seed ends far below": ([shifted(FP8, 0, -8, 0)], "For speed, yes", LOSS, "cannot tell"),
    "losses below zero": (
        [shifted(r, -30, -30, -30) for r in (*BF16, FP8)], "Yes", LOSS, "the same"),
    "a spread as wide as the margin, 0.025": (
        [shifted(FP8, -0.03, 0, 0.03)], SPREAD, LOSS, "cannot tell"),
    "a proof of 0 %": ([proof(**{SHARE: 0.0})], UNPROVEN, PROOF, "none"),
    "emulated": ([proof(emulated=True)], UNPROVEN, PROOF, "emulated"),
    "proofs that differ between seeds": ([proof([1], **{SHARE: 0.01})], UNPROVEN, PROOF, "differs"),
    "the log of one seed ends early": ([lines(half, [0])], "For speed, yes", LOSS, "2 of 3 seeds"),
    "a single run of the opponent": (
        [gone("baseline_compiled", 1, 2)], SINGLE, SPEED, "1.25, one run"),
    "only FP8 finds compiled kernels": (
        [facts(name="timing.json", compile_cache="warm")], WARM, LOSS, "the same"),
    "one seed is four times as fast": (
        [lines(of_seconds(0.02, 40), [2])], "Cannot tell.*95 % interval.*would take .* runs", PAYS,
        "cannot tell"),
    "a lead that takes 20 billion steps: 2e-9 s a step on 40 s": (
        [*(lines(of_seconds(1e-8), recipe=r) for r in BF16), lines(of_seconds(8e-9, 40))],
        "Yes.* about step 2\\d,\\d{3},\\d{3},\\d{3}", LOSS, "the same"),
}  # fmt: skip


@pytest.mark.parametrize("case", PLANTED)
def test_planted_cases(tmp_path, case):
    plants, expected, column, cell = PLANTED[case]
    write_study(tmp_path)
    for plant in plants:
        plant(tmp_path)
    comparison = compare(tmp_path)
    assert re.match(expected, " ".join(answer(comparison)))
    columns, found = matrix(comparison)
    rows = {row[0]: row for row in found}
    assert rows[FP8][columns.index(column)] == cell
    as_json(comparison)
