"""Write the outcome in sentences: the answer, what it rests on, and what limits it."""

import numpy as np

from analysis import losses, speed
from analysis.agreement import SpeedUp
from analysis.comparison import Comparison, Finding, Outcome
from analysis.losses import CANNOT_TELL
from analysis.runs import Run, mask_numbers
from models.flops import format_parameters

QUESTION = "Should this Llama be trained in FP8?"
SENTENCES = {
    Outcome.YES: "Yes: {best.recipe} is faster, and its final loss is {best.loss.word}.",
    Outcome.FOR_SPEED: "For speed, yes: {best.recipe} is faster. Whether its loss is the same, "
    "these runs cannot tell.",
    Outcome.NO_PLAIN_YES: "No plain yes: {best.recipe} has {best.speed.ratio} times the tokens/s "
    "of {reference}, but {best.reasons[0]}.",
    Outcome.NO_VERDICT: "No verdict: {best.reasons[0]}.",
    Outcome.SINGLE_RUN: "No verdict from a single run: runs of one recipe differ. "
    f"It takes {losses.MIN_SEEDS} seeds of each.",
    Outcome.CANNOT_TELL: "Cannot tell: {best.recipe} may be faster or slower.",
    Outcome.NO_GAIN: "No gain: {best.recipe} is as fast as {reference}.",
    Outcome.SLOWER: "No: {best.recipe} is slower.",
    Outcome.HIGHER_LOSS: "No: {best.recipe} is faster, but ends at a higher loss.",
    Outcome.TOO_SHORT: "Too short to answer: speed takes completed runs of {best.recipe} and of "
    f"{{reference}} with {speed.MIN_STEPS} steps or more.",
    Outcome.DIVERGED: "No: {best.recipe} diverges more often than {reference} (its loss is not "
    "finite, or stays far above).",
    Outcome.CPU: "No answer about speed: these runs are from a CPU, which has no FP8 units. They "
    "show the method, and what FP8 does to the loss of a small model.",
    Outcome.NO_REFERENCE: "No answer: it needs completed runs in FP8, and of {reference} in bf16.",
}


def answer(comparison: Comparison) -> list[str]:
    """Write the answer, what it rests on (speed, loss, FP8), and what was trained."""
    best = comparison.best
    first = SENTENCES[best.outcome].format(best=best, reference=comparison.reference)
    undecided = [about_undecided(finding) for finding in comparison.undecided]
    return [first, *undecided, *evidence(comparison, best), trained(comparison)]


def about_undecided(finding: Finding) -> str:
    """Write how fast a recipe is whose loss is undecided, and how many runs would decide."""
    needed = more_runs(finding.loss) or f"; it takes {losses.MIN_SEEDS} seeds or more"
    return (
        f"Undecided: {finding.recipe} is faster still, {finding.speed.ratio} times the tokens/s. "
        f"Whether its loss is the same, these runs cannot tell{needed}."
    )


def evidence(comparison: Comparison, finding: Finding) -> list[str]:
    """Write a recipe's speed, loss and share of FP8; nothing without a completed run."""
    runs = comparison.study.completed[finding.recipe]
    if not runs:
        return []
    said = [f"Loss: {about_loss(comparison, finding)}"]
    if not comparison.study.on_cpu:
        said.insert(0, f"Speed: {about_speed(comparison, finding)}")
    if finding.recipe in comparison.fp8:
        said.append(f"FP8 share of {finding.recipe}'s matmul FLOPs: {share_word(runs)}.")
    return said


def about_speed(comparison: Comparison, finding: Finding) -> str:
    """Write a recipe's speed over the reference's, and its break-even step."""
    recipe, reference, gain = finding.recipe, comparison.reference, finding.speed
    if not gain.runs:
        return f"it takes {speed.MIN_STEPS} steps to tell how fast {recipe} is."
    more = "" if gain.ratio.clear or gain.ratio.as_fast else more_runs(gain)
    return (
        f"{recipe} has {gain.ratio} times the tokens/s of {reference}{more}. In wall time, first "
        f"step (compile) included, it is ahead: {finding.break_even}."
    )


def about_loss(comparison: Comparison, finding: Finding) -> str:
    """Write the verdict on a recipe's final loss, with its numbers."""
    verdict = finding.loss
    seeds = len(verdict.by_seed)
    said = f"{finding.recipe}'s final loss beside {comparison.reference}'s: {verdict.word}"
    if not seeds:
        return f"{said}."
    ends = f"{100 * verdict.level:.3g} % interval {verdict.low:+.4f} to {verdict.high:+.4f}, "
    more = more_runs(verdict) if verdict.word == CANNOT_TELL else ""
    return (
        f"{said}; after {verdict.step:,} steps the difference is {verdict.difference:+.4f}, "
        f"{ends if seeds > 1 else ''}margin {verdict.margin:.4f}, seeds {seeds}{more}."
    )


def more_runs(found: SpeedUp | losses.Verdict) -> str:
    """Write how many runs of each recipe would tell what these cannot."""
    return f"; about {found.runs_needed} runs of each would tell" if found.runs_needed else ""


def share_word(runs: list[Run]) -> str:
    """Write the FP8 share of the linear layers' matmul FLOPs, by the runs' proofs."""
    proven = [run for run in runs if run.proof]
    if any(run.proof.emulated for run in proven):
        return "emulated"
    return f"{np.mean([run.fp8_share for run in proven]):.0%}" if proven else "unknown"


def trained(comparison: Comparison) -> str:
    """Describe the first completed run: model, data, hardware, date, versions."""
    run = next((run for run in comparison.study.runs if run.completed), None)
    if not run:
        return "Trained: no run was completed."
    record, attempt = run.record, run.record.last_attempt
    tokens = run.steps["tokens"].median()
    versions = [f"{name} {version}" for name, version in attempt.packages.items()]
    commit = (attempt.git.commit or "unknown")[:9]
    return (
        f"Trained: {record.flavor}, {format_parameters(record.parameters)} parameters; "
        f"{run.length:,} steps of {tokens:,.0f} tokens in rows of {record.seq_len:,}; "
        f"data {record.dataset}; on {record.world_size} {attempt.hardware.name}, "
        f"{attempt.start:%Y-%m-%d}; {', '.join(versions)}, commit {commit}."
    )


# ---- what limits the answer ----


def limits(comparison: Comparison, said: str = "") -> list[str]:
    """Write what limits the answer, except for reasons already `said`; remarks; runs left out."""
    sentences = []
    for recipe, finding in comparison.findings.items():
        if recipe in comparison.fp8:
            reasons = [reason for reason in finding.reasons if reason not in said]
            sentences += [f"{recipe}: {reason}." for reason in reasons + finding.remarks]
    return sentences + left_out(comparison)


def left_out(comparison: Comparison) -> list[str]:
    """Name the runs left out of the comparison, a line for each reason, and unreadable records."""
    runs_by_reason: dict[str, list[Run]] = {}
    for run in comparison.study.runs:
        if not run.completed:
            reason = mask_numbers(f"{run.ending}, step {run.length:,}")
            runs_by_reason.setdefault(reason, []).append(run)
    sentences = []
    for runs in runs_by_reason.values():
        names = ", ".join(run.name for run in runs)
        steps = ", ".join(dict.fromkeys(f"{run.length:,}" for run in runs))
        sentences.append(f"Not compared: {names} ({runs[0].ending}, step {steps}).")
    return sentences + comparison.study.problems


# ---- what else was found ----


def details(comparison: Comparison) -> list[str]:
    """Write the evidence on the other recipes."""
    sentences = []
    for finding in comparison.findings.values():
        if finding != comparison.best:
            sentences += evidence(comparison, finding)
    return sentences


def loss_verdicts(comparison: Comparison) -> list[str]:
    """Write the verdict on each recipe's loss."""
    return [about_loss(comparison, finding) for finding in comparison.findings.values()]
