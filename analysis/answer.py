"""Should this Llama be trained in FP8? The outcome in sentences: the answer, what it rests on, and
what limits it."""

from collections.abc import Iterator
from shlex import join

from analysis import losses, speed
from analysis.comparison import Comparison, Finding, Outcome
from analysis.losses import CANNOT_TELL, HIGHER, LOWER, SAME
from analysis.runs import Run

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
    said = headline(comparison)
    return [*said, *limits(comparison, said[0]), *next_steps(comparison), *worth(comparison)]


def headline(comparison: Comparison) -> list[str]:
    """Write the answer, what it rests on (speed, loss, FP8), and what was trained."""
    best, facts = comparison.best, {"reference": comparison.reference}
    if best:
        facts["recipe"] = best.recipe
        facts["reason"] = best.reasons[0] if best.reasons else ""
        facts["same"] = "a lower" if best.loss.word == LOWER else "the same"
        facts["diverged"] = " and ".join(f"{of} {how}" for of, how in best.diverged.items())
    rests_on = evidence(comparison, best) if best else []
    return [SENTENCES[outcome(comparison)].format_map(facts), *rests_on, trained(comparison)]


def evidence(comparison: Comparison, finding: Finding) -> list[str]:
    """Write of a recipe its speed and break-even step, its loss, and the share of FP8."""
    recipe, said = finding.recipe, [f"Loss: {about_loss(comparison, finding)}"]
    if not comparison.on_cpu:
        pays = finding.break_even.sentence(recipe, comparison.reference)
        said = [f"Speed: {claim(comparison, finding)}. {pays}", *said]
    if recipe in comparison.fp8:
        share = share_word(comparison.study.completed(recipe))
        said.append(
            f"FP8 of {recipe}: {share} of the linear layers' matmul FLOPs, by each run's proof."
        )
    return said


def claim(comparison: Comparison, finding: Finding) -> str:
    """Say how many times as fast a recipe is, and in how many of its steps it is in FP8."""
    if not finding.speed.runs:
        return f"it takes {speed.MIN_STEPS} steps to tell how fast {finding.recipe} is"
    said = finding.recipe
    in_fp8 = min(run.steps["in_fp8"].mean() for run in comparison.study.completed(said))
    if 0 < in_fp8 < 1:
        said += f" (in FP8 in {in_fp8:.0%} of its steps)"
    ratio = finding.speed.ratio
    return (
        f"{said} has {ratio.mean:.2f} times the tokens/s of {comparison.reference}{ratio.interval}"
    )


def share_word(runs: list[Run]) -> str:
    """Write the share of the linear layers' matmul FLOPs that ran in FP8."""
    proven = [run for run in runs if run.proof]
    if any(run.proof.emulated for run in proven):
        return "emulated"
    shares = [f"{run.fp8_share:.0%}" for run in sorted(proven, key=lambda run: run.fp8_share)]
    return " to ".join(dict.fromkeys(shares[:1] + shares[-1:])) or "unknown"


def about_loss(comparison: Comparison, finding: Finding) -> str:
    """Write the verdict on a recipe's loss, with the numbers that it rests on."""
    verdict = finding.loss
    said = LOSSES.get(verdict.word, TOO_FEW)
    said = said.format(recipe=finding.recipe, reference=comparison.reference)
    seeds = len(verdict.by_seed)
    if not seeds:
        return f"{said}."
    said += f" after {verdict.step:,} steps: {seeds} seed{'s' * (seeds > 1)}, "
    said += f"difference {verdict.difference:+.4f}"
    if seeds > 1:
        said += f", {100 * verdict.level:.3g} % interval {verdict.low:+.4f} to {verdict.high:+.4f}"
    return f"{said}, margin {verdict.margin:.4f}."


def trained(comparison: Comparison) -> str:
    """Say what was trained, with what, when and where, by the first completed run."""
    runs = [run for of in comparison.completed.values() for run in of]
    if not runs:
        return "Trained: no run was completed."
    first, steps = runs[0].manifest, runs[0].steps
    facts = {
        "model": first.flavor,
        "parameters": short(first.parameters),
        "steps": f"{len(steps):,} of {steps['tokens'].median():,.0f} tokens",
        "rows": f"{first.seq_len:,} tokens",
        "data": first.dataset,
        "overlays": ", ".join(first.overlays),
        "seeds": len({run.seed for run in runs}),
        "from": f"{first.start:%Y-%m-%d}",
        "commit": (first.git.commit or "")[:9],
        **first.packages,
        "on": first.hardware.name,
        "driver": first.hardware.driver,
        "power limit": first.hardware.power_limit_w,
        "processes": first.world_size,
    }
    return f"Trained: {'; '.join(f'{key} {value}' for key, value in facts.items() if value)}."


def short(number: float) -> str:
    """Write three digits with k, M or B."""
    for unit, name in (1e9, "B"), (1e6, "M"), (1e3, "k"):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:.3g}"


# ---- what limits the answer ----


def limits(comparison: Comparison, said: str = "") -> Iterator[str]:
    """Say what limits the findings, unless it was `said`."""
    for recipe, finding in comparison.findings.items():
        found = [f"{name} {words}" for name, words in finding.diverged.items()]
        if recipe in comparison.fp8 and not comparison.on_cpu:
            found += [f"{recipe}: {words}" for words in finding.reasons]
        yield from (f"{words}." for words in found if words.removeprefix(f"{recipe}: ") not in said)


def next_steps(comparison: Comparison) -> Iterator[str]:
    """Say what it would take to tell what these runs cannot."""
    best = comparison.best
    if best and best.outcome == Outcome.SINGLE_RUN:
        file = comparison.study.file
        overlays = [f"--overlay={name}" for name in file.overlays]
        words = join([*comparison.recipes, *overlays, "--seeds=0,1,2", *file.overrides])
        command = f".venv/bin/python -m experiments.study {words}"
        yield f"To get a verdict, repeat the runs with more seeds: {command}"
    if best and best.outcome == Outcome.CANNOT_TELL:
        yield more_runs("speed", best.recipe, best.speed.runs_needed)
    yield from more_seeds(comparison)


def more_seeds(comparison: Comparison) -> list[str]:
    """Say what more seeds would show of losses that these cannot tell."""
    return [
        more_runs("loss", recipe, finding.loss.runs_needed)
        for recipe, finding in comparison.findings.items()
        if finding.loss.word == CANNOT_TELL and not finding.diverged
    ]


def more_runs(what: str, recipe: str, runs: int | None) -> str:
    """Say how many runs would give a verdict."""
    return f"The {what} of {recipe}: {runs or 'far more'} runs of each recipe may give a verdict."


def worth(comparison: Comparison) -> Iterator[str]:
    """Say what a difference of one margin is worth; nothing where no verdict uses the margin."""
    if any(finding.loss.word in LOSSES for finding in comparison.findings.values()):
        parameters, more = losses.EQUIVALENT_COMPUTE
        yield WORTH.format(
            tolerance=100 * losses.TOLERANCE,
            reference=comparison.reference,
            compute=100 * more,
            billions=parameters / 1e9,
        )


# ---- what else was found ----


def details(comparison: Comparison) -> list[str]:
    """Write the evidence on the other recipes, and remarks that limit nothing."""
    sentences, best = [], comparison.best
    for recipe, finding in comparison.findings.items():
        sentences += evidence(comparison, finding) if finding != best else []
        if recipe in comparison.fp8:
            sentences += [f"{recipe}: {words}." for words in finding.remarks]
    return sentences


def loss_verdicts(comparison: Comparison) -> list[str]:
    """Write the verdict on each recipe's loss, and what it takes where these runs cannot tell."""
    verdicts = [about_loss(comparison, finding) for finding in comparison.findings.values()]
    return verdicts + more_seeds(comparison)


def left_out(comparison: Comparison) -> list[str]:
    """Name the runs that are not compared, and why, and the records that could not be read."""
    lines = []
    for recipe in comparison.recipes:
        named = [
            f"seed {run.seed} ({run.ending}, step {run.length:,})"
            for run in comparison.study.started(recipe)
            if not run.completed
        ]
        if named:
            lines.append(f"Not compared of {recipe}: {', '.join(named)}.")
    return lines + comparison.study.problems
