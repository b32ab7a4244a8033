"""Compare each recipe with its reference: one outcome, and the reasons limiting it.

Rule 6: no cause (a crash, a divergence, a lost record) took more runs from a recipe than from its
reference. Otherwise the runs that are left may be the lucky ones. Runs that a machine or a person
stopped are mentioned only: the stop seldom depends on the recipe.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from scipy import stats

from analysis import losses
from analysis.agreement import SpeedUp, speed_up
from analysis.alike import Differences, differences, set_in_file
from analysis.break_even import BreakEven, break_even
from analysis.losses import HIGHER, SAME, Verdict
from analysis.proof import FLOAT8, broken
from analysis.runs import (
    DIVERGED,
    INTERRUPTED,
    KILLED,
    NO_RECORD,
    SHORT_LOG,
    UNREADABLE,
    Run,
)
from analysis.speed import SMALL
from analysis.study import OTHER_TRAINING, Study, StudyError

BASELINE, COMPILED = "baseline", "baseline_compiled"
# Causes of lost runs, besides endings.
CRASH = "a crash"
BY_MACHINE = "the machine"
CHANCE = 0.05  # that a recipe lost so many more runs to machines than its reference
# What an error says of a GPU, a network, a disk or a node, none of which knows the recipe ...
MACHINE_ERROR = re.compile(
    r"(?i)\becc\b|uncorrectable|\bxid\b|\bgpu is lost|off the bus|busy or unavailable|"
    r"nccl|network|connection|socket|unreachable|broken pipe|node fail|"
    r"no space left|quota|stale file|input/output error|read-only file|bus error|\berrno\b"
)
# ... and what it says of a program all the same.
PROGRAM_ERROR = re.compile(r"(?i)invalid (usage|argument)|illegal|misaligned|assert|out of memory")


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
class Finding:
    """A recipe beside its reference.

    Args:
        reasons: what limits the answer, the weightiest first.
        remarks: differences between the runs that limit nothing.
    """

    recipe: str = ""
    outcome: Outcome = Outcome.NO_REFERENCE
    speed: SpeedUp = SpeedUp()
    loss: Verdict = Verdict()
    break_even: BreakEven = BreakEven()
    reasons: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Comparison:
    """All recipes of a study beside one reference.

    Args:
        fp8: the recipes in FP8.
        findings: of all recipes but the reference; empty without a completed run of it.
    """

    study: Study
    reference: str
    fp8: list[str]
    findings: dict[str, Finding]

    @property
    def best(self) -> Finding:
        """The FP8 recipe with the best outcome, of several the fastest; one without a name if there
        is none."""
        found = [self.findings[recipe] for recipe in self.fp8 if recipe in self.findings]
        order = [*Outcome]
        return min(
            found,
            key=lambda each: (
                order.index(each.outcome),
                not each.speed.runs,
                -each.speed.ratio.mean,
            ),
            default=Finding(),
        )

    @property
    def undecided(self) -> list[Finding]:
        """The FP8 recipes that are faster than one with a plain yes, with an undecided loss."""
        best = self.best
        if best.outcome != Outcome.YES:
            return []
        return [
            each
            for each in self.findings.values()
            if each.recipe in self.fp8
            and each.outcome == Outcome.FOR_SPEED
            and each.speed.ratio.mean > best.speed.ratio.mean
        ]


def compare(study: Study, reference: str | None = None) -> Comparison:
    """Compare all recipes of a study with compiled bf16, or with the named reference.

    Raises:
        StudyError: there is no completed run of that reference.
    """
    fp8 = [recipe for recipe in study.recipes if is_fp8(recipe, study.started(recipe))]
    if reference and not study.completed[reference]:
        raise StudyError(
            f"--reference {reference}: no run of it was completed; the recipes are "
            f"{', '.join(study.recipes)}"
        )
    reference = reference or choose_reference(study, fp8)
    findings = {}
    for recipe in study.recipes:
        if recipe != reference and study.completed[reference]:
            recipes_judged = len(fp8) if recipe in fp8 else 1
            findings[recipe] = find(study, recipe, reference, recipes_judged)
    return Comparison(study, reference, fp8, findings)


def is_fp8(recipe: str, runs: list[Run]) -> bool:
    """Tell if a recipe is in FP8, by the records of its runs, else by its file."""
    recorded = [run.facts[FLOAT8] for run in runs if FLOAT8 in run.facts]
    return any(recorded or [set_in_file(recipe).get(FLOAT8)])


def choose_reference(study: Study, fp8: list[str]) -> str:
    """Choose the study's reference, but compiled bf16 in place of eager bf16 where FP8 is compiled:
    anything else would be unfair."""
    fair = study.started(COMPILED) or any(
        run.facts.get("compiled") for run in study.runs if run.recipe in fp8
    )
    return COMPILED if fair and study.file.reference == BASELINE else study.file.reference


def find(study: Study, recipe: str, reference: str, recipes_judged: int) -> Finding:
    """Compare a recipe with its reference by all rules.

    Args:
        recipes_judged: how many recipes are judged together.
    """
    runs = study.completed[recipe]
    reference_runs = study.completed[reference]
    started = study.started(recipe)
    reference_started = study.started(reference)
    recorded = runs or [run for run in started if run.record]
    records = differences(recorded, reference_runs) if recorded else Differences()
    breaches = records.forbidden
    if runs:
        breaches = broken(runs) + broken(reference_runs) + breaches
    speed = speed_up(runs, reference_runs, recipes_judged, records.mixed)
    loss = losses.verdict(runs, reference_runs, recipes_judged)
    unpaired = list(losses.no_pairs(started, reference_started))
    strange = list(losses.strange_parts(runs, reference_runs))
    doubts = unpaired or list(losses.anomalies(runs, reference_runs, loss, strange))
    lost_runs = compare_lost_runs(study, recipe, reference, are_paired=not unpaired)
    doubts += lost_runs.reasons
    if study.on_cpu:
        outcome = Outcome.CPU
    elif breaches and (lost_runs.diverges or speed.runs > 1):
        outcome = Outcome.NO_VERDICT
    elif lost_runs.diverges:
        outcome = Outcome.DIVERGED
    elif not runs or is_fp8(reference, reference_started):
        outcome = Outcome.NO_REFERENCE
    else:
        outcome = speed_outcome(speed)
    if outcome == Outcome.YES:
        outcome = loss_outcome(loss, are_paired=not unpaired + strange, has_doubts=bool(doubts))
    return Finding(
        recipe=recipe,
        outcome=outcome,
        speed=speed,
        loss=loss,
        break_even=break_even(runs, reference_runs, speed),
        # Speeds of a CPU say nothing, and neither does what contradicts them.
        reasons=breaches + ([] if study.on_cpu else speed.caveats) + doubts,
        remarks=records.remarks + lost_runs.remarks,
    )


def speed_outcome(speed: SpeedUp) -> Outcome:
    """Judge the speed alone: `YES` if the recipe is faster.

    An honest way to count that contradicts the ratio forbids a plain answer, yes or no. So does a
    difference below 1 %, because two GPUs of one model differ as much.
    """
    ratio = speed.ratio
    slower = ratio.mean < 1 - SMALL
    faster = ratio.mean > 1 + SMALL
    if not speed.runs:
        return Outcome.TOO_SHORT
    if speed.runs == 1:
        return Outcome.SINGLE_RUN
    if speed.caveats:
        return Outcome.NO_VERDICT if slower else Outcome.NO_PLAIN_YES
    if ratio.as_fast:
        return Outcome.NO_GAIN
    if ratio.clear and slower:
        return Outcome.SLOWER
    if ratio.clear and faster:
        return Outcome.YES
    return Outcome.CANNOT_TELL


def loss_outcome(loss: Verdict, are_paired: bool, has_doubts: bool) -> Outcome:
    """Judge the loss of a recipe that is faster.

    Args:
        are_paired: whether runs of one seed read the same batches.
        has_doubts: whether something forbids a plain yes.
    """
    if loss.word == HIGHER and are_paired:
        return Outcome.HIGHER_LOSS
    if has_doubts:
        return Outcome.NO_PLAIN_YES
    return Outcome.YES if loss.word == SAME else Outcome.FOR_SPEED


# ---- rule 6 ----


@dataclass(frozen=True)
class LostRuns:
    """What it says of a recipe that it lost more runs than its reference.

    Args:
        diverges: it diverged more often.
        reasons: other losses that forbid a plain yes.
        remarks: losses that may be chance: the machine lost the run.
    """

    diverges: bool
    reasons: list[str]
    remarks: list[str]


def compare_lost_runs(study: Study, recipe: str, reference: str, are_paired: bool) -> LostRuns:
    """Compare the runs that two recipes lost, cause by cause.

    Args:
        are_paired: whether losses of the two recipes compare.
    """
    runs = study.started(recipe)
    reference_runs = study.started(reference)
    causes = count_lost(runs, reference_runs if are_paired else [])
    reference_causes = count_lost(reference_runs, runs if are_paired else [])
    reasons = []
    remarks = []
    for cause in causes - reference_causes:
        sentence = (
            f"it lost {causes[cause]} of {len(runs)} runs, or an attempt of them "
            f"({example(runs, cause)}), and the reference {reference_causes[cause]}"
        )
        table = [
            [causes[cause], len(runs) - causes[cause]],
            [reference_causes[cause], len(reference_runs) - reference_causes[cause]],
        ]
        if cause == OTHER_TRAINING:
            remarks.append(sentence)
        elif cause == BY_MACHINE and may_be_chance(table):
            remarks.append(f"{sentence}, which may be chance")
        else:
            reasons.append(sentence)
    return LostRuns(causes[DIVERGED] > reference_causes[DIVERGED], reasons, remarks)


def count_lost(runs: list[Run], reference_runs: list[Run]) -> Counter:
    """Count the lost runs and failed attempts of a recipe by cause.

    Args:
        reference_runs: the other recipe's; none if losses of the two recipes do not compare.
    """
    causes = Counter()
    for run in runs:
        causes.update(causes_of(run))
    causes[DIVERGED] += losses.count_diverged(runs, reference_runs)
    return causes


def causes_of(run: Run) -> set[str]:
    """Collect why a run was lost, and why attempts of it were whose steps were thrown away.

    Divergence is left out: the loss of a completed run may show it too.
    """
    causes = set()
    if not run.completed and run.ending != DIVERGED:
        causes.add(cause_of(run.ending))
    for ending in run.earlier:
        causes.add(f"an earlier attempt {ending}" if ending == DIVERGED else cause_of(ending))
    return causes


def cause_of(ending: str) -> str:
    """Name the cause of an ending: all crashes are one, and so are all lost records, and all that
    machines and people stop."""
    if ending in (UNREADABLE, SHORT_LOG):
        return NO_RECORD
    if ending in (INTERRUPTED, KILLED):
        return BY_MACHINE
    if not ending.startswith("failed"):
        return ending
    if MACHINE_ERROR.search(ending) and not PROGRAM_ERROR.search(ending):
        return BY_MACHINE
    return CRASH


def example(runs: list[Run], cause: str) -> str:
    """Write the ending of the first run or attempt with a cause."""
    for run in runs:
        for ending in (run.ending, *run.earlier):
            if cause_of(ending) == cause:
                return ending
    return cause


def may_be_chance(table: list[list[int]]) -> bool:
    """Tell if one recipe may have lost more runs than the other by chance (Fisher's exact test).

    Args:
        table: lost and other runs of the recipe, then of its reference.
    """
    return stats.fisher_exact(table, "greater").pvalue > CHANCE
