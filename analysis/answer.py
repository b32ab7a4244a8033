"""Should this Llama be trained in FP8? A comparison in words: the answer first, then what it rests
on.

All answers that there are stand in the tables of this page; tests/analysis/test_planted.py has a
study for each.
"""

import math
from shlex import join

from analysis.comparison import COMPILED, OWN, Comparison, in_order
from analysis.losses import CANNOT_TELL, HIGHER, LOWER, SAME, TOLERANCE, compute_for_margin
from analysis.rates import AHEAD, FROM, MIN_STEADY, MIN_STEPS

QUESTION = "Should this Llama be trained in FP8?"

# The first sentence of the answer where no FP8 recipe can have one.
NO_ANSWERS = {
    "no opponents": "No answer: it needs completed runs in FP8, and of {opponent}.",
    "none ended": "No answer: {unended}. It needs completed runs in FP8, and of {opponent}.",
    "cpu": "No answer about speed: these runs are from a CPU, which has no FP8 units. They show "
    "the method, and what FP8 does to the loss of a small model.",
    "all spoilt": "No: {lost}.",
}
# The first sentence of the answer otherwise. Each FP8 recipe has one of these outcomes. The answer
# is about the recipe whose outcome stands first, of several about the fastest.
OUTCOMES = {
    SAME: "Yes: {claim}{pays}. It ends at the same loss after {steps:,} steps.",
    LOWER: "Yes: {claim}{pays}. It ends at a lower loss after {steps:,} steps.",
    "loss unclear": "For speed, yes: {claim}{pays}. Whether the loss is the same, these runs "
    "cannot tell{distance}.",
    "doubtful": "No plain yes: {claim}{pays}, but {doubt}.",
    "doubtful speed": "No verdict: {claim}, but {doubt}.",
    "single run": "No verdict from a single run: {claim}{pays}.",
    "unclear": "Cannot tell: {claim}, {certainty}.",
    "as fast": "No gain: {claim}, which is as fast.",
    "slower": "No: {claim}; no FP8 recipe that kept the loss does better.",
    "compiled alone": "No answer on FP8 alone: {claim}, but it is compiled too; it needs a "
    f"completed run of {COMPILED}.",
    HIGHER: "No: {claim}{pays}, but it ends at a higher loss than {opponent}.",
    "no rate": f"Too short to answer: a rate takes {MIN_STEADY} steady steps, in runs of "
    f"{MIN_STEPS} steps or more.",
}
SPOILT = "spoilt"  # the loss, see `Comparison.spoilt`: an FP8 recipe without an outcome
# What forbids a plain yes, see analysis/doubts.py. Those of the first kind forbid any verdict on
# the speed, those of the second a yes.
DOUBTS_OF_SPEED = {
    "run": "of {runs} it is on record that {doubt}",
    "proof": "nothing proves that it ran in FP8",
    "proofs": "its proofs differ between its runs",
    "compiled": "less of it was compiled than of {opponent}",
    "settings": "they differ in more than their recipes say: {keys}",
    "machine": "what they ran on differs: {what}",
    "padding": "{own:.0%} of its tokens are padding, beside {others:.0%}",
    "no clock": "the wall clock of {runs} cannot be used, so that time outside of steps is unknown",
    "clock": "by the wall clock, over all steps after the first ten, it has {ratio:.2f} times",
    "slow steps": "without the steps that take three times the median it has {ratio:.2f} times",
    "stall": "step {stall:.0f} of {run} took {stall_s:,.3g} s, and without such steps it has "
    "{without}",
    "drift": "it has {first:.2f} times in the first third of the steps and {last:.2f} times in the "
    "{part}",
    "uneven": "the steps of {run} take {times:.2f} times as long in its {part} as in its first "
    "third, and those of the other recipe do not",
    "recipe": "the recipe of {runs} is not on record, so that their settings are unknown",
}
DOUBTS = DOUBTS_OF_SPEED | {
    "shrinks": "its lead shrinks: {first:.2f} times in the first third of the steps, {last:.2f} "
    "times in the {part}",
    "unfinished": "{own} of its {asked} runs did not end ({cause}), beside {others} of {of}",
    "resumed": "earlier attempts of its runs did not end ({cause}): {own} in {asked} runs, beside "
    "{others} in {of}",
    "missing": "{own} of its {asked} planned runs left no record, beside {others} of {of}",
    "fewer seeds": "it lacks {lacking} of {opponent}'s {of} seeds",
    "not finite": "the {what} of {run} is not finite in {share:.0%} of its log, beside "
    "{others:.0%}",
    "spikes": "its loss is more than {percent:.0f} % {side} {opponent}'s in {share:.0%} of the "
    "steps of a seed",
    "data": "it is unknown which data {runs} read",
    "alike": "its losses are those of {opponent} to the last bit in {steps} of {of} steps, in "
    "{seeds} of {all} seeds",
    "seeds": "seeds of {recipe} begin with the same loss, so they are no other runs",
    "later": "after step {step}, to which all are cut, the loss of {run} is {excess:+.4f} from "
    "{opponent}'s",
    "below": "{words}, which FP8 does not explain",
}
# Of no interest where the answer is not about speed.
DOUBTS_OF_PACE = {"no clock", "clock", "slow steps", "stall", "drift", "uneven", "shrinks"}
PAYS_BACK = ", and is ahead {}, first step (compile) included"
WOULD_PAY_BACK = ", and would be ahead {}, first step (compile) included, beyond these runs"
DISTANCE = ": it ends {percent:.2g} % {side} {opponent} ({seeds})"
ABOVE = ", {count} of them {span} % above"
WARM = " (some runs have no compilation in it)"
MORE = "{what}: with {runs} runs of each the interval would reach {widths} to each side."
WORTH = (
    '"The same loss" means within {tolerance:g} % of {opponent}\'s (as in DeepSeek-V3, arXiv '
    "2412.19437), which is worth {compute:.0f} % of the compute of a compute-optimal model of "
    "{billions:.3g} B parameters by the scaling law of Hoffmann et al. 2022 (arXiv 2203.15556)."
)


def answer(comparison: Comparison) -> list[str]:
    """Write the answer, a sentence, and then what limits it."""
    lost, unended = lost_runs(comparison), unended_runs(comparison)
    case, best = choose(comparison)
    facts = {"lost": "; ".join(lost), "unended": "; ".join(unended)}
    facts["opponent"] = comparison.opponent
    if best:
        facts |= _facts(comparison, best)
        tries = comparison.speed_ups[best, comparison.opponent].tries
        if tries > 1:
            facts["claim"] = f"of {tries} FP8 recipes {facts['claim']}"
    first = (NO_ANSWERS | OUTCOMES)[case].format(**facts)
    told = [f"{words}." for words in lost + unended if words not in first]
    for recipe, doubts in comparison.doubts.items():
        told += [
            f"{recipe}: {words}." for words in worded(comparison, doubts) if words not in first
        ]
        judged = comparison.verdicts[recipe]
        distance = _facts(comparison, recipe)["distance"]
        if judged.outcome == CANNOT_TELL and judged.above and distance not in first:
            told.append(f"{recipe}{distance}.")
    if case in ("no opponents", "none ended"):
        return [first, *told]
    return [first, *told, *_remedy(comparison, best), *_worth(comparison)]


def details(comparison: Comparison) -> list[str]:
    """Write what the answer rests on: of every recipe its speed, its break-even, and its loss."""
    sentences = []
    for recipe in in_order([*comparison.fp8, *comparison.recipes]):
        gain = comparison.speed_ups.get((recipe, comparison.opponent))
        if gain and gain.runs:
            sentences.append("{claim}, {certainty}.".format(**_facts(comparison, recipe)))
        if recipe in comparison.fp8:
            paid = [of for of in comparison.break_evens.values() if of.a == recipe]
            sentences += [of.sentence() for of in paid]
        if recipe in comparison.verdicts:
            sentences.append(comparison.verdicts[recipe].sentence())
    return sentences


def about_loss(comparison: Comparison) -> list[str]:
    """Write where recipes diverged, the verdicts on their losses, and what it takes to tell."""
    sentences = [f"{words}." for words in lost_runs(comparison)]
    sentences += [judged.sentence() for judged in comparison.verdicts.values()]
    return sentences + _remedy(comparison, None)


def choose(comparison: Comparison) -> tuple[str, str | None]:
    """Find the case of `NO_ANSWERS` or `OUTCOMES`, and the FP8 recipe that it is about."""
    fp8, opponent = comparison.fp8, comparison.opponent
    if not (fp8 or comparison.spoilt) or opponent in fp8 or opponent not in comparison.recipes:
        return "none ended" if comparison.unended else "no opponents", None
    if on_cpu(comparison):
        return "cpu", None
    outcomes = {recipe: outcome(comparison, recipe) for recipe in fp8}
    places = list(OUTCOMES)

    def rank(recipe: str) -> tuple[int, float]:
        ratio = comparison.speed_ups[recipe, opponent].ratio
        return places.index(outcomes[recipe]), -ratio

    kept = [recipe for recipe in fp8 if outcomes[recipe] != SPOILT]
    if not kept:
        return "all spoilt", None
    best = min(kept, key=rank)
    return outcomes[best], best


def on_cpu(comparison: Comparison) -> bool:
    """Whether the completed runs are from a CPU."""
    runs = comparison.frames.runs
    return runs.loc[runs["status"] == "completed", "device_type"].eq("cpu").any()


def outcome(comparison: Comparison, recipe: str) -> str:
    """Find the key of `OUTCOMES` for an FP8 recipe, or `SPOILT`."""
    gain = comparison.speed_ups[recipe, comparison.opponent]
    loss = comparison.verdicts[recipe].word
    doubts = {doubt.kind for doubt in comparison.doubts[recipe]}
    compiled = [comparison.completed[r].runs["compiled"] for r in (recipe, comparison.opponent)]
    cases = {
        SPOILT: recipe in comparison.spoilt,
        "no rate": gain.runs == 0,
        "compiled alone": compiled[0].eq(True).any() and compiled[1].eq(False).any(),
        "single run": gain.runs == 1,
        "doubtful speed": not doubts.isdisjoint(DOUBTS_OF_SPEED),
        "as fast": gain.as_fast,
        "unclear": gain.unclear,
        "slower": gain.ratio < 1,
        HIGHER: loss == HIGHER,
        "doubtful": bool(doubts),
        "loss unclear": loss not in (SAME, LOWER),
    }
    return next((case for case, is_so in cases.items() if is_so), loss)


def _facts(comparison: Comparison, recipe: str) -> dict[str, str]:
    """Word what is known of a recipe beside the opponent, for the templates."""
    opponent = comparison.opponent
    gain = comparison.speed_ups[recipe, opponent]
    share = comparison.completed[recipe].runs["fp8_share_of_steps"].mean()
    part = f" (in FP8 in {share:.0%} of its steps)" if 0 < share < 1 else ""
    certainty = "no interval from a single run"
    if gain.runs > 1:
        certainty = "95 % interval {1:.2f} to {2:.2f}".format(*gain.by["step_s"])
        if gain.tries > 1:
            certainty += f" for {gain.tries} FP8 recipes together"
    paid, pays = comparison.break_evens.get((recipe, opponent)), ""
    if paid and paid.outcome in (AHEAD, FROM):
        pays = (WOULD_PAY_BACK if paid.beyond else PAYS_BACK).format(paid.word)
        if comparison.frames.runs["compile_cache"].eq("warm").any():
            pays += WARM
    judged, distance = comparison.verdicts[recipe], ""
    if math.isfinite(judged.share):
        side = "below" if judged.share < 0 else "above"
        seeds = f"mean of {judged.seeds} seeds" if judged.seeds > 1 else "1 seed"
        percent = 100 * abs(judged.share)
        if judged.seeds > 1 and judged.above:
            ends = (f"{100 * judged.above[end]:.2g}" for end in (0, -1))
            span = " to ".join(dict.fromkeys(ends))
            seeds += ABOVE.format(count=len(judged.above), span=span)
        distance = DISTANCE.format(percent=percent, side=side, opponent=opponent, seeds=seeds)
    doubts = worded(comparison, comparison.doubts.get(recipe, []))
    return {
        "claim": f"{recipe}{part} has {gain.ratio:.2f} times the tokens/s of {opponent}",
        "certainty": certainty,
        "pays": pays,
        "doubt": doubts[0] if doubts else "",
        "steps": judged.step,
        "distance": distance,
    }


def worded(comparison: Comparison, doubts: list) -> list[str]:
    """Word doubts, those that forbid any verdict on the speed first; on a CPU none of paces."""
    if on_cpu(comparison):
        doubts = [doubt for doubt in doubts if doubt.kind not in DOUBTS_OF_PACE]
    ordered = sorted(doubts, key=lambda doubt: list(DOUBTS).index(doubt.kind))
    return [DOUBTS[d.kind].format(**d.facts, opponent=comparison.opponent) for d in ordered]


def lost_runs(comparison: Comparison) -> list[str]:
    """Say where a recipe diverged, or ended far from the opponent."""
    words = []
    for recipe in in_order([*comparison.recipes, *comparison.diverged, *comparison.far_off]):
        if recipe in comparison.diverged:
            words.append(f"{recipe} diverged in {of_runs(*comparison.diverged[recipe])}")
        if recipe in comparison.far_off:
            words += comparison.far_off[recipe].sentences()
    return words


def of_runs(count: int, of: int, what: str = "run") -> str:
    """Write how many there are, of how many."""
    return f"{count} of {of} {what}{'s' * (of > 1)}"


def unended_runs(comparison: Comparison) -> list[str]:
    """Say of which recipes no run was completed, and why."""
    words = []
    for recipe in in_order(comparison.unended):
        count, causes = comparison.unended[recipe]
        runs = "completed none of its {} runs" if count > 1 else "did not complete its only run"
        words.append(f"{recipe} {runs.format(count)} ({'; '.join(causes)})")
    return words


def _remedy(comparison: Comparison, best: str | None) -> list[str]:
    """Say what it would take to tell what these runs cannot; nothing where they tell all."""
    gain = comparison.speed_ups.get((best, comparison.opponent))
    if gain and gain.runs == 1:
        return [f"To get one, repeat the runs with more seeds: {_repeat_command(comparison)}"]
    sentences = []
    if gain and gain.unclear and gain.half_widths:
        percent = [f"{width:.1%}" for width in gain.half_widths.values()]
        sentences.append(_more(f"The speed of {best}", gain.half_widths, percent))
    for judged in comparison.verdicts.values():
        if judged.outcome == CANNOT_TELL and judged.recipe not in comparison.spoilt:
            nats = [f"{width:.4f}" for width in judged.half_widths.values()]
            sentences.append(_more(f"The loss of {judged.recipe}", judged.half_widths, nats))
    return sentences


def _more(what: str, runs: dict[int, float], widths: list[str]) -> str:
    counts, reach = ", ".join(map(str, runs)), ", ".join(widths)
    return MORE.format(what=what, runs=counts, widths=reach)


def _repeat_command(comparison: Comparison) -> str:
    """Write the command that trains the same recipes with three seeds each."""
    runs, plan = comparison.frames.runs, comparison.plan
    if (runs["source"] != OWN).any():
        return "each recipe with three or more."
    words = ["python", "-m", "experiments.study", *in_order(runs.dropna(subset="seed")["recipe"])]
    for overlay in plan.overlays or runs["overlays"].iloc[0]:
        words += ["--overlay", overlay]
    return join([*words, "--seeds", "0,1,2", *plan.overrides])


def _worth(comparison: Comparison) -> list[str]:
    """Say what a difference of one margin is worth; nothing where no verdict uses the margin."""
    words = {judged.word for judged in comparison.verdicts.values()}
    if words.isdisjoint([SAME, LOWER, HIGHER, CANNOT_TELL]):
        return []
    parameters, more = compute_for_margin(comparison.frames.runs["parameters"].max())
    facts = {"tolerance": 100 * TOLERANCE, "compute": 100 * more, "billions": parameters / 1e9}
    return [WORTH.format(**facts, opponent=comparison.opponent)]
