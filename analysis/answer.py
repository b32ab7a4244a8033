"""Write the outcome in sentences: the answer, what it rests on, and what limits it."""

from statistics import fmean

from analysis.comparison import Comparison, ComparisonResult, Outcome
from analysis.losses import CANNOT_TELL
from analysis.runs import MIN_SEEDS, MIN_STEPS, PlannedRun, Run, mask_numbers
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
    f"It takes {MIN_SEEDS} seeds of each.",
    Outcome.CANNOT_TELL: "Cannot tell: {best.recipe} may be faster or slower.",
    Outcome.NO_GAIN: "No gain: {best.recipe} is as fast as {reference}.",
    Outcome.SLOWER: "No: {best.recipe} is slower.",
    Outcome.HIGHER_LOSS: "No: {best.recipe} is faster, but ends at a higher loss.",
    Outcome.TOO_SHORT: "Too short to answer: speed takes completed runs of {best.recipe} and of "
    f"{{reference}} with {MIN_STEPS} steps or more.",
    Outcome.DIVERGED: "No: {best.recipe} diverges more often than {reference} (its loss is not "
    "finite, or stays far above).",
    Outcome.CPU: "No answer about speed: these runs are from a CPU, which has no FP8 units. They "
    "show the method, and what FP8 does to the loss of a small model.",
    Outcome.NO_REFERENCE: "No answer: it needs completed runs in FP8, and of {reference} in bf16.",
}


def write_answer(comparison: Comparison) -> list[str]:
    """Write the answer, what it rests on (speed, loss, FP8), and what was trained."""
    best = comparison.best
    sentences = [SENTENCES[best.outcome].format(best=best, reference=comparison.reference)]
    sentences += [describe_undecided(result) for result in comparison.undecided]
    sentences += describe_evidence(comparison, best)
    return [*sentences, describe_training(comparison)]


def describe_undecided(result: ComparisonResult) -> str:
    """Write how fast a recipe with an undecided loss is, and how many runs would decide."""
    remedy = suggest_runs(result.loss.runs_needed) or f"; it takes {MIN_SEEDS} seeds or more"
    return (
        f"Undecided: {result.recipe} is faster still, {result.speed.ratio} times the tokens/s. "
        f"Whether its loss is the same, these runs cannot tell{remedy}."
    )


def describe_evidence(comparison: Comparison, result: ComparisonResult) -> list[str]:
    """Write a recipe's speed, loss and share of FP8; nothing without a completed run."""
    runs = comparison.study.completed_by_recipe.get(result.recipe, [])
    if not runs:
        return []
    sentences = []
    if not comparison.study.on_cpu:
        sentences.append(f"Speed: {describe_speed(comparison, result)}")
    sentences.append(f"Loss: {describe_loss(comparison, result)}")
    if result.recipe in comparison.fp8:
        share = describe_fp8_share(runs)
        sentences.append(f"FP8 share of {result.recipe}'s matmul FLOPs: {share}.")
    return sentences


def describe_speed(comparison: Comparison, result: ComparisonResult) -> str:
    """Write a recipe's speed over the reference's, and its break-even step."""
    speed = result.speed
    if not speed.runs:
        return f"it takes {MIN_STEPS} steps to tell how fast {result.recipe} is."
    is_decided = speed.ratio.is_clear or speed.ratio.is_equal
    remedy = "" if is_decided else suggest_runs(speed.runs_needed)
    return (
        f"{result.recipe} has {speed.ratio} times the tokens/s of {comparison.reference}{remedy}. "
        f"In wall time, first step (compile) included, it is ahead: {result.break_even}."
    )


def describe_loss(comparison: Comparison, result: ComparisonResult) -> str:
    """Write the verdict on a recipe's final loss, with its numbers."""
    verdict = result.loss
    seeds = len(verdict.difference_by_seed)
    sentence = f"{result.recipe}'s final loss beside {comparison.reference}'s: {verdict.word}"
    if not seeds:
        return f"{sentence}."
    interval = ""
    if seeds > 1:
        confidence = f"{100 * verdict.confidence:.3g} %"
        interval = f"{confidence} interval {verdict.low:+.4f} to {verdict.high:+.4f}, "
    remedy = suggest_runs(verdict.runs_needed) if verdict.word == CANNOT_TELL else ""
    plural = "s" if seeds > 1 else ""
    return (
        f"{sentence}; after {verdict.step:,} steps the difference is {verdict.difference:+.4f}, "
        f"{interval}margin {verdict.margin:.4f}, {seeds} seed{plural}{remedy}."
    )


def suggest_runs(runs_needed: int | None) -> str:
    """End a sentence with how many runs of each recipe would tell; empty if that is unknown."""
    return f"; about {runs_needed} runs of each would tell" if runs_needed else ""


def describe_fp8_share(runs: list[Run]) -> str:
    """Write the FP8 share of the linear layers' matmul FLOPs, by the runs' proofs."""
    shares = []
    for run in runs:
        if run.record.proof and run.record.proof.emulated:
            return "emulated"
        if run.record.proof:
            shares.append(run.fp8_share)
    return f"{fmean(shares):.0%}" if shares else "not proven"


def describe_training(comparison: Comparison) -> str:
    """Describe the first completed run: model, data, hardware, date, versions."""
    if not comparison.study.completed:
        return "Trained: no run was completed."
    run = comparison.study.completed[0]
    record = run.record
    attempt = record.last_attempt
    tokens = run.steps["tokens"].median()
    versions = [f"{name} {version}" for name, version in attempt.packages.items()]
    versions = versions or ["versions unknown"]
    commit = (attempt.git.commit or "unknown")[:9]
    return (
        f"Trained: {record.flavor}, {format_parameters(record.parameters)} parameters; "
        f"{run.length:,} steps of {tokens:,.0f} tokens in rows of {record.seq_len:,}; "
        f"data {record.dataset}; on {record.world_size} {attempt.hardware.name}, "
        f"{attempt.start:%Y-%m-%d}; {', '.join(versions)}, commit {commit}."
    )


# ---- what limits the answer ----


def write_limits(comparison: Comparison, answer: str = "") -> list[str]:
    """Write the reasons and remarks on each FP8 recipe, and the runs that were left out.

    Args:
        answer: a sentence. The reasons that it names are not written again.
    """
    sentences = []
    for recipe, result in comparison.results.items():
        if recipe in comparison.fp8:
            for reason in result.reasons:
                if reason not in answer:
                    sentences.append(f"{recipe}: {reason}.")
            for remark in result.remarks:
                sentences.append(f"{recipe}: {remark}.")
    return sentences + list_left_out(comparison)


def list_left_out(comparison: Comparison) -> list[str]:
    """Name the runs left out of the comparison, a sentence for each kind of ending; then the
    study's problems."""
    runs_by_ending: dict[str, list[PlannedRun]] = {}
    for run in comparison.study.runs:
        if not run.completed:
            # Endings that differ only in a number, such as a port or an address, are one kind.
            ending = mask_numbers(f"{run.ending}, step {run.length:,}")
            runs_by_ending.setdefault(ending, []).append(run)
    sentences = []
    for runs in runs_by_ending.values():
        names = ", ".join(run.name for run in runs)
        steps = ", ".join(dict.fromkeys(f"{run.length:,}" for run in runs))
        sentences.append(f"Not compared: {names} ({runs[0].ending}, step {steps}).")
    return sentences + comparison.study.problems


# ---- the other recipes ----


def write_details(comparison: Comparison) -> list[str]:
    """Write the evidence on the other recipes."""
    sentences = []
    for result in comparison.results.values():
        if result != comparison.best:
            sentences += describe_evidence(comparison, result)
    return sentences


def list_loss_verdicts(comparison: Comparison) -> list[str]:
    """Write the verdict on each recipe's loss."""
    return [describe_loss(comparison, result) for result in comparison.results.values()]
