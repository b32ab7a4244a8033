"""Compare each recipe with its reference: one outcome, and the reasons that limit it."""

from dataclasses import dataclass, field
from enum import StrEnum

from analysis.break_even import BreakEven, find_break_even
from analysis.comparable import Differences, compare_records, find_record_faults, is_fp8
from analysis.losses import (
    HIGHER,
    SAME,
    LossVerdict,
    check_batches,
    check_beginnings,
    compare_final_losses,
    compare_lost_runs,
    describe_gap,
    find_equal_losses,
    find_far_runs,
)
from analysis.speed import EQUAL_SPEED, SpeedUp, compare_speeds
from analysis.study import Study, StudyError

BASELINE = "baseline"
COMPILED = "baseline_compiled"


class Outcome(StrEnum):
    """What can be said of a recipe, the best answer first."""

    YES = "yes"
    FOR_SPEED = "yes_for_speed"  # faster, and the loss is undecided
    NO_PLAIN_YES = "no_plain_yes"  # something forbids a yes
    NO_VERDICT = "no_verdict"  # something forbids any verdict on the speed
    SINGLE_RUN = "single_run"
    CANNOT_TELL = "cannot_tell"
    NO_GAIN = "no_gain"
    SLOWER = "slower"
    HIGHER_LOSS = "higher_loss"
    TOO_SHORT = "too_short"
    DIVERGED = "diverged"  # more of its runs than the reference's
    CPU = "cpu"  # speeds of a CPU say nothing
    NO_REFERENCE = "no_reference"  # no completed run in FP8, or of a reference in bf16


@dataclass(frozen=True)
class ComparisonResult:
    """What the comparison of a recipe with its reference gives.

    Args:
        reasons: what limits the answer, the weightiest first.
        remarks: differences between the runs that limit nothing.
    """

    recipe: str = ""
    outcome: Outcome = Outcome.NO_REFERENCE
    speed: SpeedUp = SpeedUp()
    loss: LossVerdict = LossVerdict()
    break_even: BreakEven = BreakEven()
    reasons: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Comparison:
    """All recipes of a study, compared with one reference.

    Args:
        fp8: the recipes in FP8.
        results: by recipe, of all recipes except the reference; empty if the reference has no
            completed run.
    """

    study: Study
    reference: str
    fp8: list[str]
    results: dict[str, ComparisonResult]

    @property
    def best(self) -> ComparisonResult:
        """The result of the FP8 recipe with the best outcome, of several the fastest. Its `recipe`
        is empty if no recipe is in FP8."""
        outcomes = [*Outcome]

        def rank(result: ComparisonResult) -> tuple:
            has_speed = result.speed.runs > 0  # else its ratio is NaN, which does not sort
            return outcomes.index(result.outcome), not has_speed, -result.speed.ratio.mean

        fp8_results = [self.results[recipe] for recipe in self.fp8 if recipe in self.results]
        return min(fp8_results, key=rank, default=ComparisonResult())

    @property
    def undecided(self) -> list[ComparisonResult]:
        """The results of FP8 recipes that are faster than the best one, with an undecided loss;
        empty unless the best outcome is a yes."""
        best = self.best
        if best.outcome != Outcome.YES:
            return []
        undecided = []
        for recipe in self.fp8:
            result = self.results.get(recipe, ComparisonResult())
            is_faster = result.speed.ratio.mean > best.speed.ratio.mean
            if is_faster and result.outcome == Outcome.FOR_SPEED:
                undecided.append(result)
        return undecided


def compare(study: Study, reference: str | None = None) -> Comparison:
    """Compare all recipes of a study with one reference.

    Args:
        reference: a recipe; by default `choose_reference` chooses one.

    Raises:
        StudyError: a recipe is named that has no completed run.
    """
    if reference and reference not in study.completed_by_recipe:
        raise StudyError(
            f"--reference {reference}: no run of it was completed; the recipes are "
            f"{', '.join(study.recipes)}"
        )
    fp8 = [recipe for recipe in study.recipes if is_fp8(recipe, study.recorded_by_recipe[recipe])]
    reference = reference or choose_reference(study, fp8)
    is_bf16_reference = reference not in fp8
    results = {}
    if reference in study.completed_by_recipe:
        for recipe in study.recipes:
            if recipe != reference:
                recipes_judged = len(fp8) if recipe in fp8 else 1
                results[recipe] = compare_recipe(
                    study, recipe, reference, recipes_judged, is_bf16_reference
                )
    return Comparison(study, reference, fp8, results)


def choose_reference(study: Study, fp8: list[str]) -> str:
    """Choose the study's reference. Compiled bf16 takes the place of eager bf16 if a run in FP8 is
    compiled, because eager bf16 would be unfair, and if the study has compiled bf16."""
    if study.file.reference != BASELINE:
        return study.file.reference
    if COMPILED in study.recipes:
        return COMPILED
    for recipe in fp8:
        for run in study.recorded_by_recipe[recipe]:
            if run.facts.get("compiled"):
                return COMPILED
    return BASELINE


def compare_recipe(
    study: Study, recipe: str, reference: str, recipes_judged: int, is_bf16_reference: bool
) -> ComparisonResult:
    """Compare a recipe with its reference by all rules.

    Args:
        recipes_judged: how many recipes are judged together: intervals are wider (Bonferroni).
    """
    runs = study.completed_by_recipe.get(recipe, [])
    reference_runs = study.completed_by_recipe[reference]
    recorded_runs = study.recorded_by_recipe[recipe]
    recorded_reference_runs = study.recorded_by_recipe[reference]

    # Rules 1 and 2: can the runs be compared?
    differences = Differences()
    if recorded_runs:
        differences = compare_records(runs or recorded_runs, reference_runs)
    breaches = differences.forbidden
    if runs:
        breaches = find_record_faults(runs) + find_record_faults(reference_runs) + breaches

    # Rule 3: is the recipe faster?
    speed = compare_speeds(runs, reference_runs, recipes_judged, differences.mixed_keys)
    break_even = find_break_even(runs, reference_runs, speed)

    # Rules 4 to 6: is its loss the same, and did it lose no more runs?
    loss = compare_final_losses(runs, reference_runs, recipes_judged)
    different_beginnings = check_beginnings(recorded_runs, recorded_reference_runs)
    different_batches = check_batches(runs, reference_runs)
    are_paired = not different_beginnings
    doubts = [*different_beginnings]
    if are_paired:
        doubts += find_far_runs(runs, reference_runs) + find_far_runs(reference_runs, runs)
        doubts += different_batches
        doubts += find_equal_losses(runs, reference_runs)
        doubts += describe_gap(loss)
    all_runs = study.runs_by_recipe
    lost_runs = compare_lost_runs(all_runs[recipe], all_runs[reference], are_paired)
    doubts += lost_runs.reasons

    if study.on_cpu:
        outcome = Outcome.CPU
    elif breaches and (lost_runs.diverges or speed.runs > 1):
        outcome = Outcome.NO_VERDICT
    elif lost_runs.diverges:
        outcome = Outcome.DIVERGED
    elif not runs or not is_bf16_reference:
        outcome = Outcome.NO_REFERENCE
    else:
        outcome = judge_speed(speed)
    if outcome == Outcome.YES:
        has_same_batches = are_paired and not different_batches
        outcome = judge_loss(loss, has_same_batches, has_doubts=bool(doubts))

    # Speeds of a CPU say nothing, and what contradicts them says nothing either.
    caveats = [] if study.on_cpu else speed.caveats
    return ComparisonResult(
        recipe=recipe,
        outcome=outcome,
        speed=speed,
        loss=loss,
        break_even=break_even,
        reasons=breaches + caveats + doubts,
        remarks=differences.remarks + lost_runs.remarks,
    )


def judge_speed(speed: SpeedUp) -> Outcome:
    """Judge the speed: `YES` if the recipe is faster.

    A caveat, such as an honest way to count that contradicts the ratio, forbids a yes and a no. So
    does a difference below 1 %, because two GPUs of one model differ as much.
    """
    ratio = speed.ratio
    is_slower = ratio.mean < 1 - EQUAL_SPEED
    is_faster = ratio.mean > 1 + EQUAL_SPEED
    if not speed.runs:
        return Outcome.TOO_SHORT
    if speed.runs == 1:
        return Outcome.SINGLE_RUN
    if speed.caveats:
        return Outcome.NO_VERDICT if is_slower else Outcome.NO_PLAIN_YES
    if ratio.is_equal:
        return Outcome.NO_GAIN
    if ratio.is_clear and is_slower:
        return Outcome.SLOWER
    if ratio.is_clear and is_faster:
        return Outcome.YES
    return Outcome.CANNOT_TELL


def judge_loss(loss: LossVerdict, has_same_batches: bool, has_doubts: bool) -> Outcome:
    """Judge the loss of a recipe that is faster.

    Args:
        has_same_batches: whether runs of one seed read the same batches.
        has_doubts: whether something forbids a plain yes.
    """
    if loss.word == HIGHER and has_same_batches:
        return Outcome.HIGHER_LOSS
    if has_doubts:
        return Outcome.NO_PLAIN_YES
    return Outcome.YES if loss.word == SAME else Outcome.FOR_SPEED
