"""Should this Llama be trained in FP8? A comparison in words: the answer first, then what it rests
on."""

from shlex import join

from analysis.comparison import COMPILED, OWN, Comparison, in_order
from analysis.losses import (
    CANNOT_TELL,
    HIGHER,
    LOWER,
    SAME,
    TOLERANCE,
    compute_for_margin,
)
from analysis.rates import AHEAD, FROM, MIN_STEPS, MOST_NEEDED, SpeedUp

QUESTION = "Should this Llama be trained in FP8?"
# A ratio that is this far from the ratio by the mean step is given beside it.
ANSWERS_DIFFER = 0.02

# The first sentence of the answer: the first of these cases that is true of the runs.
ANSWERS = {
    "no opponents": "No answer: it needs completed runs in FP8, and in bf16 those of the baseline.",
    "cpu": "No answer about speed: these runs are from a CPU, which has no FP8 units. They show "
    "the method, and what FP8 does to the loss of a small model.",
    "all spoilt": "No: {lost}.",
    "no rate": f"Too short to answer: a rate takes runs of {MIN_STEPS} steps or more.",
    # The others are about the FP8 recipe for which most speaks.
    "compiled alone": "No answer on FP8 alone: {claim}, but it is compiled too; it needs a "
    f"completed run of {COMPILED}.",
    "single run, higher": "No verdict from a single run: {claim}{pays}, and it ends at a far "
    "higher loss than {baseline}.",
    "single run": "No verdict from a single run: {claim}{pays}.",
    "unclear": "Cannot tell: {claim}, {certainty}.",
    "slower": "No: {claim}; no FP8 recipe that kept the loss does better.",
    "unproven": "No answer: {claim}, but nothing proves that it ran in FP8: it has no proof, or "
    "its proof.json says 0 %, says that the matmuls were emulated, or differs between the runs.",
    HIGHER: "No: {claim}{pays}, but it ends at a higher loss than {baseline}.",
    SAME: "Yes: {claim}{pays}. It ends at the same loss after {steps:,} steps.",
    LOWER: "Yes: {claim}{pays}. It ends at a lower loss after {steps:,} steps.",
    "loss unclear": "For speed, yes: {claim}{pays}. Whether the loss is the same, these runs "
    "cannot tell.",
}
PAYS_BACK = ", and is ahead {}, warm-up included"
WOULD_PAY_BACK = ", and would be ahead {}, warm-up included, beyond these runs"
WARM = " (some runs have no compilation in it)"
TOLD = (SAME, LOWER, HIGHER)
WORTH = (
    '"The same loss" means within {tolerance:g} % of the baseline\'s (as in DeepSeek-V3, arXiv '
    "2412.19437), which is worth {compute:.0f} % of the compute of a compute-optimal model of "
    "{billions:.3g} B parameters by the scaling law of Hoffmann et al. 2022 (arXiv 2203.15556)."
)


def answer(comparison: Comparison) -> list[str]:
    """Write the answer, and what limits it: at most five sentences."""
    lost = "; ".join(_lost(comparison))
    case, best = _choose(comparison)
    steps = max((judged.step for judged in comparison.verdicts.values()), default=0)
    facts = {"lost": lost, "baseline": comparison.baseline, "steps": steps}
    if best:
        facts |= _facts(comparison, best)
    sentences = [ANSWERS[case].format(**facts)]
    if lost and case != "all spoilt":
        sentences.append(f"{lost}.")
    if case != "no opponents":
        sentences += _remedy(comparison, best) + _worth(comparison)
    return sentences


def details(comparison: Comparison) -> list[str]:
    """Write what the answer rests on: of every recipe its speed, its break-even, and its loss."""
    sentences = []
    for recipe in dict.fromkeys([*comparison.fp8, *comparison.recipes]):
        gain = comparison.speed_ups.get((recipe, comparison.opponent))
        if gain and gain.runs:
            sentences.append("{claim}, {certainty}.".format(**_facts(comparison, recipe)))
        paid = [of for of in comparison.break_evens.values() if of.a == recipe]
        if recipe in comparison.fp8:
            sentences += [of.sentence() for of in paid]
        if recipe in comparison.verdicts:
            sentences.append(comparison.verdicts[recipe].sentence())
    return sentences


def about_loss(comparison: Comparison) -> list[str]:
    """Write where recipes diverged, the verdicts on their losses, and what it takes to tell."""
    sentences = [f"{words}." for words in _lost(comparison)]
    sentences += [judged.sentence() for judged in comparison.verdicts.values()]
    return sentences + _remedy(comparison, None)


def _choose(comparison: Comparison) -> tuple[str, str | None]:
    """Find the case of `ANSWERS`, and the FP8 recipe that it is about: that for which most
    speaks."""
    fp8, opponent, spoilt = comparison.fp8, comparison.opponent, comparison.spoilt
    runs, verdicts = comparison.frames.runs, comparison.verdicts
    losses = {recipe: judged.word for recipe, judged in verdicts.items()}
    if not (fp8 or spoilt) or comparison.baseline in fp8 or opponent not in comparison.recipes:
        return "no opponents", None
    if runs["device_type"].eq("cpu").any():
        return "cpu", None
    gains = {r: comparison.speed_ups[r, opponent] for r in fp8 if r not in spoilt}
    if not gains:
        return "all spoilt", None
    measured = [recipe for recipe, gain in gains.items() if gain.runs]
    if not measured:
        return "no rate", None

    def merits(recipe: str) -> tuple:
        """What speaks for a recipe, most important first."""
        gain, loss = gains[recipe], losses.get(recipe)
        faster, proven = gain.low > 1, comparison.proof[recipe] > 0
        return loss != HIGHER, faster, proven, faster and loss in TOLD, gain.ratio

    best = max(measured, key=merits)
    compiled = {COMPILED, *runs.loc[runs["compiled"].eq(True), "recipe"]}
    if best in compiled and opponent not in compiled:
        return "compiled alone", best
    return _case(gains[best], losses.get(best), comparison.proof[best]), best


def _case(gain: SpeedUp, loss: str | None, proof: float) -> str:
    """Find the case of `ANSWERS` for a recipe's speed, the word for its loss, and its proof."""
    if gain.runs == 1:
        return "single run, higher" if loss == HIGHER else "single run"
    if gain.unclear or (gain.ratio - 1) * (gain.by_clock - 1) < 0:
        return "unclear"
    if gain.ratio < 1:
        return "slower"
    if not proof:
        return "unproven"
    return loss if loss in TOLD else "loss unclear"


def _facts(comparison: Comparison, recipe: str) -> dict[str, str]:
    """Word what is known of a recipe beside its opponent, for the templates."""
    opponent = comparison.opponent
    gain = comparison.speed_ups[recipe, opponent]
    share = comparison.completed[recipe].runs["fp8_share_of_steps"].mean()
    part = f" (in FP8 in {share:.0%} of its steps)" if 0 < share < 1 else ""
    claim = f"{recipe}{part} has {gain.ratio:.2f} times the tokens/s of {opponent}"
    for way, ratio in ("median step", gain.by_median), ("clock", gain.by_clock):
        if abs(ratio / gain.ratio - 1) > ANSWERS_DIFFER:
            claim += f" ({ratio:.2f} times by the {way})"
    certainty = f"95 % interval {gain.low:.2f} to {gain.high:.2f}"
    if gain.runs == 1:
        certainty = "no interval from a single run"
    paid, pays = comparison.break_evens.get((recipe, opponent)), ""
    if paid and paid.outcome in (AHEAD, FROM):
        pays = (WOULD_PAY_BACK if paid.beyond else PAYS_BACK).format(paid.word)
        if comparison.frames.runs["compile_cache"].eq("warm").any():
            pays += WARM
    return {"claim": claim, "certainty": certainty, "pays": pays}


def _lost(comparison: Comparison) -> list[str]:
    """Say where a recipe diverged, or a seed of it left the others."""
    words = []
    for recipe in in_order([*comparison.recipes, *comparison.diverged]):
        if recipe in comparison.diverged:
            lost, finished = comparison.diverged[recipe]
            words.append(f"{recipe} diverged in {lost} of {finished} seeds")
        for seed, (loss, highest) in comparison.left.get(recipe, {}).items():
            words.append(
                f"{recipe} seed {seed} left the recipe's other seeds: it ends at a loss of "
                f"{loss:.2f}, they at {highest:.2f} or less"
            )
    return words


def _remedy(comparison: Comparison, best: str | None) -> list[str]:
    """Say what it would take to tell what these runs cannot; nothing where they tell all."""
    gain = comparison.speed_ups.get((best, comparison.opponent))
    if gain and gain.runs == 1:
        return [f"To get one, repeat the runs with more seeds: {_repeat_command(comparison)}"]
    needs = []
    if gain and gain.unclear:
        count = _count(gain.needed)
        needs.append(f"{count} runs of each recipe for a ratio of {gain.ratio:.3f}")
    unclear = [of for of in comparison.verdicts.values() if of.outcome == CANNOT_TELL]
    needs += [f"{_count(of.needed)} seeds for the loss of {of.recipe}" for of in unclear]
    chance = "for a chance of 80 %, by the spread seen here"
    return [f"To tell would take {', '.join(needs)} ({chance})."] if needs else []


def _count(needed: int | None) -> str:
    return f"about {needed}" if needed else f"more than {MOST_NEEDED}"


def _repeat_command(comparison: Comparison) -> str:
    """Write the command that trains the same recipes with three seeds each."""
    runs, plan = comparison.frames.runs, comparison.plan
    if (runs["source"] != OWN).any():
        return "each recipe with three or more."
    words = ["python", "-m", "experiments.study", *in_order(runs["recipe"])]
    for overlay in plan.get("overlays") or runs["overlays"].iloc[0]:
        words += ["--overlay", overlay]
    return join([*words, "--seeds", "0,1,2", *plan.get("overrides", [])])


def _worth(comparison: Comparison) -> list[str]:
    """Say what a difference of one margin is worth; nothing where no verdict uses the margin."""
    words = {judged.word for judged in comparison.verdicts.values()}
    if words.isdisjoint([*TOLD, CANNOT_TELL]):
        return []
    parameters, more = compute_for_margin(comparison.frames.runs["parameters"].max())
    facts = {"tolerance": 100 * TOLERANCE, "compute": 100 * more, "billions": parameters / 1e9}
    return [WORTH.format(**facts)]
