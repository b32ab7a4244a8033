"""Each recipe beside its reference: one outcome, and the reasons that limit it.

Rule 6: of no cause a recipe lost more of its runs than its reference; those that are left may be
the lucky ones.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from analysis import losses
from analysis.agreement import SpeedUp, speed_up
from analysis.alike import differences
from analysis.break_even import BreakEven, break_even
from analysis.losses import HIGHER, LOWER, SAME, Verdict
from analysis.proof import FLOAT8, broken
from analysis.runs import Run
from analysis.speed import SMALL
from analysis.study import Study, StudyError

BASELINE, COMPILED = "baseline", "baseline_compiled"
DIVERGED = "diverged"  # the ending of a run
# Recipes that are listed first, in this order; others follow as their study started them.
FIRST = (BASELINE, COMPILED, "rowwise_fp8_compiled", "tensorwise_fp8_compiled")


class Outcome(StrEnum):
    """What can be said of a recipe, the best answer first."""

    YES = "yes"
    FOR_SPEED = "yes_for_speed"  # faster, and the loss is undecided
    NO_PLAIN_YES = "no_plain_yes"  # faster, and something forbids a yes
    NO_VERDICT = "no_verdict"  # something forbids any verdict on the speed
    SINGLE_RUN = "single_run"
    CANNOT_TELL = "cannot_tell"
    NO_GAIN = "no_gain"
    SLOWER = "slower"
    HIGHER_LOSS = "higher_loss"
    TOO_SHORT = "too_short"
    DIVERGED = "diverged"  # more of its runs than the reference's
    CPU = "cpu"  # its speed says nothing
    NO_REFERENCE = "no_reference"  # no completed run of the recipe or of its reference


@dataclass(frozen=True)
class Finding:
    """A recipe beside its reference.

    Args:
        reasons: what limits the answer, the weightiest first.
        remarks: what a reader should know, and limits nothing.
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
        recipes: those with a run, in the order in which they are shown.
        fp8: those of them in FP8.
        findings: of all recipes but the reference; empty if none of its runs was completed.
    """

    study: Study
    reference: str
    recipes: list[str]
    fp8: list[str]
    findings: dict[str, Finding]

    @property
    def best(self) -> Finding:
        """The FP8 recipe that the answer is about; without a name if there is none."""
        found = [self.findings[recipe] for recipe in self.fp8 if recipe in self.findings]
        order = [*Outcome]
        return min(
            found,
            key=lambda each: (order.index(each.outcome), -each.speed.ratio.mean),
            default=Finding(),
        )

    @property
    def completed(self) -> dict[str, list[Run]]:
        """The completed runs of each recipe that has some."""
        runs = {recipe: self.study.completed(recipe) for recipe in self.recipes}
        return {recipe: of_recipe for recipe, of_recipe in runs.items() if of_recipe}

    @property
    def on_cpu(self) -> bool:
        return self.study.on_cpu


def compare(study: Study, reference: str | None = None) -> Comparison:
    """Compare all recipes of a study with compiled bf16, or with the reference that is named.

    Raises:
        StudyError: there is no completed run of that reference.
    """
    names = study.recipes
    recipes = sorted(names, key=[*FIRST, *names].index)
    fp8 = [recipe for recipe in recipes if is_fp8(recipe, study.started(recipe))]
    if reference and not study.completed(reference):
        raise StudyError(
            f"--reference {reference}: no run of it was completed; the recipes are "
            f"{', '.join(recipes)}"
        )
    reference = reference or choose_reference(study, fp8)
    findings = {}
    for recipe in recipes:
        if recipe != reference and study.completed(reference):
            tries = len(fp8) if recipe in fp8 else 1
            findings[recipe] = find(study, recipe, reference, tries)
    return Comparison(study, reference, recipes, fp8, findings)


def is_fp8(recipe: str, runs: list[Run]) -> bool:
    """Tell by what runs resolved, else by the recipe's name."""
    resolved = [run.facts[FLOAT8] for run in runs if FLOAT8 in run.facts]
    return any(resolved) if resolved else "fp8" in recipe


def choose_reference(study: Study, fp8: list[str]) -> str:
    """Choose the study's baseline; but compiled bf16 if FP8 is compiled too, which alone is
    fair."""
    fair = study.started(COMPILED) or any(
        run.facts.get("compiled") for run in study.runs if run.recipe in fp8
    )
    return COMPILED if fair and study.file.baseline == BASELINE else study.file.baseline


def find(study: Study, recipe: str, reference: str, tries: int) -> Finding:
    """Hold the runs of a recipe against its reference's, by all rules.

    Args:
        tries: recipes that are judged together.
    """
    own, others = study.completed(recipe), study.completed(reference)
    started, beside = study.started(recipe), study.started(reference)
    gain, judged = speed_up(own, others, tries), losses.verdict(own, others, tries)
    contradictions, remarks = [], []
    if own:
        differing, remarks = differences(own, others)
        contradictions = broken(own) + broken(others) + differing
    unpaired = list(losses.no_pairs(started, beside))
    seeds = len({run.seed for run in started + beside})
    lost = lost_runs(started, beside, seeds, bool(unpaired))
    others_lost = lost_runs(beside, started, seeds, bool(unpaired))
    of_loss = unpaired or list(losses.odd(own, others, judged))
    of_loss += [
        f"{lost[cause]} of its {seeds} runs did not end well ({cause}), beside "
        f"{others_lost[cause]} of the reference's"
        for cause in lost - others_lost
    ]
    slower = gain.ratio.mean < 1 - SMALL
    cases = {
        Outcome.CPU: study.on_cpu,
        Outcome.DIVERGED: lost[DIVERGED] > others_lost[DIVERGED],
        Outcome.NO_REFERENCE: not own,
        Outcome.TOO_SHORT: gain.runs == 0,
        Outcome.SINGLE_RUN: gain.runs == 1,
        Outcome.NO_VERDICT: bool(contradictions or (slower and gain.caveats)),
        Outcome.NO_PLAIN_YES: bool(gain.caveats) and not gain.ratio.as_fast,
        Outcome.NO_GAIN: gain.ratio.as_fast,
        Outcome.CANNOT_TELL: not gain.ratio.clear,
        Outcome.SLOWER: slower,
        Outcome.HIGHER_LOSS: judged.word == HIGHER and not unpaired,
        Outcome.FOR_SPEED: judged.word not in (SAME, LOWER) and not of_loss,
    }
    otherwise = Outcome.NO_PLAIN_YES if of_loss else Outcome.YES
    return Finding(
        recipe=recipe,
        outcome=next((case for case, holds in cases.items() if holds), otherwise),
        speed=gain,
        loss=judged,
        break_even=break_even(own, others, gain),
        reasons=contradictions + gain.caveats + of_loss,
        remarks=remarks,
    )


def lost_runs(runs: list[Run], beside: list[Run], seeds: int, unpaired: bool) -> Counter:
    """Count by cause the runs of a recipe that did not end well.

    Args:
        seeds: runs that there should be: the recipe should have the seeds of both.
        unpaired: losses of the two recipes do not compare.
    """
    causes = [run.ending for run in runs if not run.completed and run.ending != DIVERGED]
    for run in runs:
        causes += [f"an earlier attempt {how}" for how in run.earlier]
    causes += ["left no record"] * (seeds - len(runs))
    causes += [DIVERGED] * losses.diverged(runs, beside, unpaired)
    return Counter(causes)
