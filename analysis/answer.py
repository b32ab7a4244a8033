"""Should this Llama be trained in FP8? The outcome in sentences: the answer, what limits it, and
what it rests on."""

import math
from collections.abc import Iterator
from shlex import join

from analysis import losses, speed
from analysis.break_even import When
from analysis.comparison import Comparison, Finding, Outcome
from analysis.losses import CANNOT_TELL, HIGHER, LOWER, SAME

QUESTION = "Should this Llama be trained in FP8?"
SENTENCES = {
    Outcome.YES: "Yes: {recipe} is faster, and ends at {same} loss.",
    Outcome.FOR_SPEED: "For speed, yes: {recipe} is faster. Whether its loss is the same, these "
    "runs cannot tell.",
    Outcome.NO_PLAIN_YES: "No plain yes: {recipe} is faster, but {reason}.",
    Outcome.NO_VERDICT: "No verdict: {reason}.",
    Outcome.SINGLE_RUN: "No verdict from a single run: runs of one recipe differ. "
    f"{losses.MIN_SEEDS} seeds of each recipe give a verdict.",
    Outcome.CANNOT_TELL: "Cannot tell: {recipe} may be faster or slower.",
    Outcome.NO_GAIN: "No gain: {recipe} is as fast as {reference}.",
    Outcome.SLOWER: "No: {recipe} is slower.",
    Outcome.HIGHER_LOSS: "No: {recipe} is faster, but ends at a higher loss.",
    Outcome.TOO_SHORT: f"Too short to answer: a rate takes runs of {speed.MIN_STEPS} steps, of "
    "{recipe} and of {reference}.",
    Outcome.DIVERGED: "No: {diverged} (its loss is not finite, or stays far above).",
    Outcome.CPU: "No answer about speed: these runs are from a CPU, which has no FP8 units. They "
    "show the method, and what FP8 does to the loss of a small model.",
    Outcome.NO_REFERENCE: "No answer: it needs completed runs in FP8, and of {reference}.",
}
LOSSES = {
    SAME: "{recipe} ends at the same loss as {reference}",
    LOWER: "{recipe} ends at a lower loss than {reference}",
    HIGHER: "{recipe} ends at a higher loss than {reference}",
    CANNOT_TELL: "These runs cannot tell whether {recipe} ends at the same loss as {reference}",
}
TOO_FEW = (
    f"It takes {losses.MIN_SEEDS} seeds of {losses.MIN_STEPS} steps or more to say whether "
    "{recipe} ends at the same loss as {reference}"
)
MORE = "{what}: with {runs} runs of each the interval would reach {widths} to each side."
WORTH = (
    '"The same loss" means within {tolerance:g} % of {reference}\'s (as in DeepSeek-V3, arXiv '
    "2412.19437), which is worth {compute:.0f} % of the compute of a compute-optimal model of "
    "{billions:.3g} B parameters by the scaling law of Hoffmann et al. 2022 (arXiv 2203.15556)."
)


def outcome(comparison: Comparison) -> Outcome:
    """Find the outcome of the FP8 recipe that the answer is about."""
    return comparison.best.outcome if comparison.best else Outcome.NO_REFERENCE


def answer(comparison: Comparison) -> list[str]:
    """Write the answer with its evidence, and then all that limits it."""
    first, *evidence = headline(comparison)
    further = [*limits(comparison, first), *next_steps(comparison), *worth(comparison)]
    return [first, *evidence, *further]


def headline(comparison: Comparison) -> list[str]:
    """Write the answer, what it rests on (speed, loss, FP8), and what was trained."""
    best, reference = comparison.best, comparison.reference
    if not best:
        first = SENTENCES[Outcome.NO_REFERENCE].format(reference=reference)
        return [first, setting(comparison)]
    first = SENTENCES[best.outcome].format(
        recipe=best.recipe,
        reference=reference,
        reason=best.reasons[0] if best.reasons else "",
        same="a lower" if best.loss.word == LOWER else "the same",
        diverged=" and ".join(best.diverged),
    )
    evidence = [
        f"Speed: {rate(comparison, best)}",
        f"Loss: {about_loss(comparison, best)}",
        f"FP8: {in_fp8(comparison, best)}",
    ]
    return [first, *evidence, setting(comparison)]


def rate(comparison: Comparison, finding: Finding) -> str:
    """Write how fast a recipe is, and from which step on it is ahead."""
    if comparison.on_cpu:
        return "nothing to compare on a CPU."
    if not finding.speed.runs:
        return f"it takes {speed.MIN_STEPS} steps to tell."
    return f"{claim(comparison, finding)}.{pays(finding)}"


def in_fp8(comparison: Comparison, finding: Finding) -> str:
    """Write which share of a recipe's matmuls ran in FP8, by the proof of each run."""
    runs = comparison.study.completed(finding.recipe)
    if any(run.proof and run.proof.emulated for run in runs):
        return "emulated: numbers are rounded to FP8, and multiplied in float32."
    shares = [run.fp8_share for run in runs if not math.isnan(run.fp8_share)]
    if not shares:
        return "no run has a proof."
    share = f"{100 * min(shares):.0f} %"
    return f"{share} of the matmul FLOPs of linear layers ran in FP8, by the proof of each run."


def setting(comparison: Comparison) -> str:
    """Say what was trained, by the first completed run: the model's size, its rows, the device."""
    runs = [run for of in comparison.completed.values() for run in of]
    if not runs:
        return "Trained: no run was completed."
    manifest, steps = runs[0].manifest, runs[0].steps
    return (f"Trained: {short(manifest.parameters)} parameters ({manifest.flavor}), rows of "
            f"{manifest.seq_len:,} tokens, {len(steps):,} steps of {steps['tokens'].median():,.0f} "
            f"tokens, on {manifest.hardware.name}.")  # fmt: skip


def short(number: float) -> str:
    """Write three digits with k, M or B."""
    for unit, name in (1e9, "B"), (1e6, "M"), (1e3, "k"):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:.3g}"


def claim(comparison: Comparison, finding: Finding) -> str:
    """Say how many times as fast a recipe is, and in how many of its steps it is in FP8."""
    said = finding.recipe
    runs = comparison.study.completed(finding.recipe)
    in_fp8 = min((run.steps["in_fp8"].mean() for run in runs), default=1)
    if 0 < in_fp8 < 1:
        said += f" (in FP8 in {in_fp8:.0%} of its steps)"
    ratio = finding.speed.ratio
    beside = comparison.reference
    return f"{said} has {ratio.mean:.2f} times the tokens/s of {beside}{ratio.interval}"


def pays(finding: Finding) -> str:
    """Say from which step on a recipe has taken less time; nothing where it never has."""
    found = finding.break_even
    if found.when == When.START:
        return " It is ahead from the start, first step (compile) included."
    if found.when != When.FROM or not math.isfinite(found.step):
        return ""
    verb = "would be" if found.beyond else "is"
    return f" It {verb} ahead from step {found} on, first step (compile) included."


def limits(comparison: Comparison, said: str = "") -> Iterator[str]:
    """Say what limits the findings, unless it was `said`."""
    for recipe, finding in comparison.findings.items():
        yield from (f"{words}." for words in finding.diverged if words not in said)
        if recipe in comparison.fp8 and not comparison.on_cpu:
            yield from (f"{recipe}: {words}." for words in finding.reasons if words not in said)


def next_steps(comparison: Comparison) -> Iterator[str]:
    """Say what it would take to tell what these runs cannot."""
    best = comparison.best
    if best and best.outcome == Outcome.SINGLE_RUN:
        yield f"To get a verdict, repeat the runs with more seeds: {repeat_command(comparison)}"
    if best and best.outcome == Outcome.CANNOT_TELL:
        yield more_runs(f"The speed of {best.recipe}", best.speed.half_widths, "{:.1%}")
    yield from more_seeds(comparison)


def more_seeds(comparison: Comparison) -> list[str]:
    """Say what more seeds would show of losses that these cannot tell."""
    return [
        more_runs(f"The loss of {recipe}", finding.loss.half_widths, "{:.4f}")
        for recipe, finding in comparison.findings.items()
        if finding.loss.word == CANNOT_TELL and not finding.diverged
    ]


def more_runs(what: str, widths: dict[int, float], form: str) -> str:
    """Say how wide the interval would be with more runs."""
    reach = ", ".join(map(form.format, widths.values()))
    return MORE.format(what=what, runs=", ".join(map(str, widths)), widths=reach)


def repeat_command(comparison: Comparison) -> str:
    """Write the command that trains the same recipes with three seeds each."""
    file = comparison.study.file
    words = ["python", "-m", "experiments.study", *comparison.recipes]
    for overlay in file.overlays:
        words += ["--overlay", overlay]
    return join([*words, "--seeds", "0,1,2", *file.overrides])


def worth(comparison: Comparison) -> Iterator[str]:
    """Say what a difference of one margin is worth; nothing where no verdict uses the margin."""
    if any(finding.loss.word in LOSSES for finding in comparison.findings.values()):
        runs = comparison.study.completed(comparison.reference)
        parameters, more = losses.equivalent_compute(runs[0].manifest.parameters)
        yield WORTH.format(tolerance=100 * losses.TOLERANCE, reference=comparison.reference,
                           compute=100 * more, billions=parameters / 1e9)  # fmt: skip


# ---- what the answer rests on ----


def details(comparison: Comparison) -> list[str]:
    """Write of every recipe its speed, its break-even step, its loss, and what is only told."""
    sentences = []
    for recipe, finding in comparison.findings.items():
        if finding.speed.runs:
            sentences.append(f"{claim(comparison, finding)}.")
        sentences.append(about_loss(comparison, finding))
        if recipe in comparison.fp8:
            sentences.append(finding.break_even.sentence(recipe, comparison.reference))
            sentences += [f"{recipe}: {words}." for words in finding.told]
    return sentences


def loss_verdicts(comparison: Comparison) -> list[str]:
    """Write the verdict on each recipe's loss, and what it takes where these runs cannot tell."""
    verdicts = [about_loss(comparison, finding) for finding in comparison.findings.values()]
    return verdicts + more_seeds(comparison)


def about_loss(comparison: Comparison, finding: Finding) -> str:
    """Write the verdict on a recipe's loss, with the numbers that it rests on."""
    verdict = finding.loss
    said = LOSSES.get(verdict.word, TOO_FEW)
    said = said.format(recipe=finding.recipe, reference=comparison.reference)
    if not verdict.by_seed:
        return f"{said}."
    seeds = f"{len(verdict.by_seed)} seed{'s' * (len(verdict.by_seed) > 1)}"
    said += f" after {verdict.step:,} steps: {seeds}, difference {figure(verdict.difference)}"
    if len(verdict.by_seed) > 1:
        interval = f"{figure(verdict.low)} to {figure(verdict.high)}"
        said += f", {100 * verdict.level:.3g} % interval {interval}"
    return f"{said}, margin {verdict.margin:.4f}."


def figure(loss: float) -> str:
    """Write a loss with its sign; one that is large by its first digits."""
    return f"{loss:+.4g}" if abs(loss) >= 1000 else f"{loss:+.4f}"


def left_out(comparison: Comparison) -> list[str]:
    """Name the runs that are not compared, and why, and the records that could not be read."""
    lines = []
    for recipe in comparison.recipes:
        runs = [run for run in comparison.study.started(recipe) if not run.completed]
        if runs:
            named = [f"seed {run.seed} ({run.ending}, step {run.length:,})" for run in runs]
            lines.append(f"Not compared of {recipe}: {', '.join(named)}.")
    return lines + comparison.study.problems
