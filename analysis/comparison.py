"""Each recipe beside its reference: one outcome, and the reasons that limit it.

Rule 6: of no cause a recipe lost more of its runs than its reference; those that are left may be
the lucky ones.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from analysis import losses
from analysis.agreement import SpeedUp, speed_up
from analysis.alike import differences, said_by
from analysis.break_even import BreakEven, break_even
from analysis.losses import HIGHER, LOWER, SAME, Verdict
from analysis.proof import FLOAT8, broken
from analysis.runs import Run
from analysis.speed import SMALL
from analysis.study import Study, StudyError

BASELINE, COMPILED = "baseline", "baseline_compiled"
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
    DIVERGED = "diverged"  # in more of its runs than the reference
    CPU = "cpu"  # its speed says nothing
    NO_REFERENCE = "no_reference"  # no completed run of the recipe or of its reference


@dataclass(frozen=True)
class Finding:
    """A recipe beside its reference.

    Args:
        reasons: what limits the answer, the weightiest first.
        remarks: what a reader should know, and limits nothing.
        diverged: of the recipe and the reference, if some of its runs did, in how many.
    """

    recipe: str
    outcome: Outcome
    speed: SpeedUp
    loss: Verdict
    break_even: BreakEven
    reasons: list[str]
    remarks: list[str]
    diverged: dict[str, str]


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
    def best(self) -> Finding | None:
        """The FP8 recipe that the answer is about."""
        found = [self.findings[recipe] for recipe in self.fp8 if recipe in self.findings]
        found.sort(key=lambda each: -each.speed.ratio.mean)
        return min(found, key=lambda each: [*Outcome].index(each.outcome), default=None)

    @property
    def completed(self) -> dict[str, list[Run]]:
        """The completed runs of each recipe that has some."""
        made = {run.recipe for run in self.study.runs if run.completed}
        return {recipe: self.study.completed(recipe) for recipe in self.recipes if recipe in made}

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
    """Tell by what runs resolved, else by the recipe's file, else by its name."""
    resolved = [run.facts[FLOAT8] for run in runs if FLOAT8 in run.facts]
    if resolved:
        return any(resolved)
    said = said_by(recipe)
    return "fp8" in recipe if said is None else said.get(FLOAT8) is not None


def choose_reference(study: Study, fp8: list[str]) -> str:
    """Choose the study's baseline; but compiled bf16 if FP8 is compiled too, which alone is
    fair."""
    compiled = any(
        run.manifest.compiled for run in study.runs if run.manifest and run.recipe in fp8
    )
    fair = compiled or study.started(COMPILED)
    return COMPILED if study.file.baseline == BASELINE and fair else study.file.baseline


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
    of_loss = unpaired or list(losses.odd(own, others, judged))
    of_loss += lost_runs(started, beside)
    diverged = losses.diverged(started, beside, bool(unpaired))
    others_diverged = losses.diverged(beside, started, bool(unpaired))
    slower = gain.ratio.mean < 1 - SMALL
    cases = {
        Outcome.CPU: study.on_cpu,
        Outcome.DIVERGED: diverged * len(beside) > others_diverged * len(started),
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
    counts = {recipe: (diverged, started), reference: (others_diverged, beside)}
    return Finding(
        recipe=recipe,
        outcome=next((case for case, holds in cases.items() if holds), otherwise),
        speed=gain,
        loss=judged,
        break_even=break_even(own, others, gain),
        reasons=contradictions + gain.caveats + of_loss,
        remarks=remarks,
        diverged={
            name: f"diverged in {count} of {len(runs)} runs"
            for name, (count, runs) in counts.items()
            if count
        },
    )


def lost_runs(own: list[Run], others: list[Run]) -> Iterator[str]:
    """Say what kept more of a recipe's runs than of its reference's from ending well.

    Each recipe should have the seeds of both.
    """
    seeds = len({run.seed for run in own + others})
    mine, theirs = lost(own, seeds), lost(others, seeds)
    for cause in mine - theirs:
        yield (
            f"{mine[cause]} of its {seeds} runs did not end well ({cause}), beside "
            f"{theirs[cause]} of the reference's"
        )


def lost(runs: list[Run], asked: int) -> Counter:
    """Count by cause the runs that did not end well; those that diverged are counted as such."""
    ended = [run.ending for run in runs if not (run.completed or run.ending == "diverged")]
    earlier = [f"an earlier attempt {how}" for run in runs for how in run.earlier]
    absent = ["left no record"] * (asked - len(runs))
    return Counter(ended + earlier + absent)
