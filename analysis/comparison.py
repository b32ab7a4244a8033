"""Compare each recipe with its reference: one outcome, and the reasons limiting it.

Rule 6: no cause (a crash, a divergence, a missing record) took more runs from a recipe than from
its reference. Otherwise the runs that are left may be the lucky ones.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from analysis import losses
from analysis.agreement import SpeedUp, speed_up
from analysis.alike import differences, set_in_file
from analysis.break_even import BreakEven, break_even
from analysis.losses import HIGHER, LOWER, SAME, Verdict
from analysis.proof import FLOAT8, broken
from analysis.runs import Run
from analysis.speed import SMALL
from analysis.study import Study, StudyError

BASELINE, COMPILED = "baseline", "baseline_compiled"
DIVERGED = "diverged"  # the ending of a run


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
            tries = len(fp8) if recipe in fp8 else 1
            findings[recipe] = find(study, recipe, reference, tries)
    return Comparison(study, reference, fp8, findings)


def is_fp8(recipe: str, runs: list[Run]) -> bool:
    """Tell if a recipe is in FP8, by the records of its runs, else by its file."""
    recorded = [run.facts["float8"] for run in runs if "float8" in run.facts]
    return any(recorded or [set_in_file(recipe).get(FLOAT8)])


def choose_reference(study: Study, fp8: list[str]) -> str:
    """Choose the study's reference, but compiled bf16 in place of eager bf16 where FP8 is compiled:
    anything else would be unfair."""
    fair = study.started(COMPILED) or any(
        run.facts.get("compiled") for run in study.runs if run.recipe in fp8
    )
    return COMPILED if fair and study.file.reference == BASELINE else study.file.reference


def find(study: Study, recipe: str, reference: str, tries: int) -> Finding:
    """Compare a recipe with its reference by all rules.

    Args:
        tries: how many recipes are judged together.
    """
    own = study.completed[recipe]
    others = study.completed[reference]
    started = study.started(recipe)
    beside = study.started(reference)
    gain = speed_up(own, others, tries)
    judged = losses.verdict(own, others, tries)
    breaches = []
    remarks = []
    if own:
        differing, remarks = differences(own, others)
        breaches = broken(own) + broken(others) + differing
    unpaired = list(losses.no_pairs(started, beside))
    seeds = len(study.file.seeds or {run.seed for run in started + beside})
    lost = lost_runs(started, [] if unpaired else beside, seeds)
    others_lost = lost_runs(beside, [] if unpaired else started, seeds)
    of_loss = unpaired or list(losses.odd(own, others, judged))
    of_loss += [
        f"{lost[cause]} of its {seeds} runs were lost, or an attempt of them ({cause}), beside "
        f"{others_lost[cause]} of the reference's"
        for cause in lost - others_lost
    ]
    slower = gain.ratio.mean < 1 - SMALL
    cases = {  # the first one that holds
        Outcome.CPU: study.on_cpu,
        Outcome.DIVERGED: lost[DIVERGED] > others_lost[DIVERGED],
        Outcome.NO_REFERENCE: not own or is_fp8(reference, beside),
        Outcome.TOO_SHORT: not gain.runs,
        Outcome.SINGLE_RUN: gain.runs == 1,
        Outcome.NO_VERDICT: bool(breaches or (slower and gain.caveats)),
        Outcome.NO_GAIN: gain.ratio.as_fast,
        Outcome.NO_PLAIN_YES: bool(gain.caveats),
        Outcome.CANNOT_TELL: not gain.ratio.clear,
        Outcome.SLOWER: slower,
        Outcome.HIGHER_LOSS: judged.word == HIGHER and not unpaired,
        Outcome.FOR_SPEED: judged.word not in (SAME, LOWER) and not of_loss,
        Outcome.YES: not of_loss,
    }
    return Finding(
        recipe=recipe,
        outcome=next((case for case, holds in cases.items() if holds), Outcome.NO_PLAIN_YES),
        speed=gain,
        loss=judged,
        break_even=break_even(own, others, gain),
        # Speeds of a CPU say nothing, and neither does what contradicts them.
        reasons=breaches + ([] if study.on_cpu else gain.caveats) + of_loss,
        remarks=remarks,
    )


def lost_runs(runs: list[Run], beside: list[Run], seeds: int) -> Counter:
    """Count the lost runs and failed attempts of a recipe by cause.

    Args:
        beside: the other recipe's runs; none if losses of the two recipes do not compare.
        seeds: how many runs there should be: one of each seed that either recipe has.
    """
    causes = [run.ending for run in runs if not run.completed and run.ending != DIVERGED]
    for run in runs:
        causes += {f"an earlier attempt {how}" for how in run.earlier}
    causes += ["left no record"] * (seeds - len(runs))
    causes += [DIVERGED] * losses.diverged(runs, beside)
    return Counter(causes)
