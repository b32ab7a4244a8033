"""Should this Llama be trained in FP8? A comparison in words: the answer first, then what it rests
on."""

from shlex import join

from analysis.comparison import COMPILED, OWN, Comparison, in_order
from analysis.losses import CANNOT_TELL, SAME, TOLERANCE, compute_for_margin
from analysis.rates import AHEAD, FROM, MIN_STEPS, MOST_NEEDED, SpeedUp, completed

QUESTION = "Should this Llama be trained in FP8?"
# A ratio that is this far from the ratio by the mean step is given beside it.
ANSWERS_DIFFER = 0.02


def answer(comparison: Comparison) -> list[str]:
    """The answer, and what limits it: at most five sentences."""
    lost = _lost(comparison)
    fp8 = {*comparison.fp8, *comparison.diverged}
    bf16 = [recipe for recipe in comparison.recipes if recipe not in fp8]
    if not fp8 or comparison.opponent not in bf16 or comparison.baseline in fp8:
        needs = "No answer: it needs completed runs in FP8, and in bf16 those of the baseline."
        return [needs, *(f"{words}." for words in lost)]
    first, best = _headline(comparison)
    all_lost = "; ".join(lost)
    sentences = [first, "" if all_lost in first else f"{all_lost}."]
    sentences += [_remedy(comparison, best), _worth(comparison)]
    return list(filter(None, sentences))


def details(comparison: Comparison) -> list[str]:
    """What the answer rests on, a sentence each: of every recipe its speed, its break-even, and its
    loss."""
    facts = []
    for recipe in dict.fromkeys([*comparison.fp8, *comparison.recipes]):
        gain = comparison.speed_ups.get((recipe, comparison.opponent))
        if gain and gain.runs:
            claim = _claim(comparison, recipe, gain)
            facts.append(f"{claim}{_certainty(comparison, recipe, gain)}.")
        facts += [
            paid.sentence()
            for paid in comparison.break_evens.values()
            if paid.a == recipe and recipe in comparison.fp8
        ]
        if recipe in comparison.verdicts:
            facts.append(comparison.verdicts[recipe].sentence())
    return facts


def about_loss(comparison: Comparison) -> list[str]:
    """Of each recipe that has one, the verdict on its loss; where it diverged; and what it would
    take to tell."""
    sentences = [f"{words}." for words in _lost(comparison)]
    sentences += [judged.sentence() for judged in comparison.verdicts.values()]
    return list(filter(None, [*sentences, _remedy(comparison, None)]))


def _headline(comparison: Comparison) -> tuple[str, str | None]:
    """The answer's first sentence, and the FP8 recipe that it is about, None if it is about
    none."""
    runs = comparison.frames.runs
    if (runs.loc[runs["status"] == "completed", "device_type"] == "cpu").any():
        return (
            "No answer about speed: these runs are from a CPU, which has no FP8 units. "
            "They show the method, and what FP8 does to the loss of a small model.",
            None,
        )
    whole = [recipe for recipe in comparison.fp8 if recipe not in comparison.spoilt]
    if not whole:
        return f"No: {'; '.join(_lost(comparison))}.", None
    gains = {recipe: comparison.speed_ups[recipe, comparison.opponent] for recipe in whole}
    measured = [recipe for recipe in whole if gains[recipe].runs]
    if not measured:
        return f"Too short to answer: a rate takes runs of {MIN_STEPS} steps or more.", None

    def merits(recipe: str) -> tuple:
        """What speaks for a recipe, most important first."""
        gain, judged = gains[recipe], comparison.verdicts.get(recipe)
        faster = gain.low > 1
        told = judged is not None and judged.conclusive
        proven = comparison.proof[recipe] > 0
        return recipe not in comparison.worse, faster, proven, faster and told, gain.ratio

    best = max(measured, key=merits)
    return _about(comparison, best, gains[best]), best


def _about(comparison: Comparison, recipe: str, gain: SpeedUp) -> str:
    """The headline about one FP8 recipe."""
    runs, opponent, worse = comparison.frames.runs, comparison.opponent, comparison.worse
    claim = _claim(comparison, recipe, gain)
    compiled = {COMPILED, *runs.loc[runs["compiled"].eq(True), "recipe"]}
    if recipe in compiled and opponent not in compiled:
        return (
            f"No answer on FP8 alone: {claim}, but it is compiled too; it needs a completed run of "
            f"{COMPILED}."
        )
    paid = claim + _pays_back(comparison, recipe)
    if gain.runs == 1:
        if recipe in worse:
            paid += f", and it ends at a far higher loss than {comparison.baseline}"
        return f"No verdict from {_single(comparison, recipe)}: {paid}."
    if gain.unclear or (gain.ratio - 1) * (_by_clock(comparison, recipe) - 1) < 0:
        return f"Cannot tell: {claim}{_certainty(comparison, recipe, gain)}."
    if gain.ratio < 1:
        chosen = comparison.spoilt | worse and recipe not in worse
        among = " of those that kept the loss" if chosen else ""
        return f"No: {claim}, and is the fastest in FP8{among}."
    if not comparison.proof[recipe]:
        return (
            f"No answer: {claim}, but nothing proves that it ran in FP8: it has no proof, or its "
            "proof.json says 0 %, says that the matmuls were emulated, or differs between the "
            "runs."
        )
    if recipe in worse:
        return f"No: {paid}, but it ends at a higher loss than {comparison.baseline}."
    judged = comparison.verdicts.get(recipe)
    if judged and judged.conclusive:
        loss = "the same" if judged.outcome == SAME else "a lower"
        return f"Yes: {paid}. It ends at {loss} loss after {judged.step:,} steps."
    return f"For speed, yes: {paid}. Whether the loss is the same, these runs cannot tell."


def _claim(comparison: Comparison, recipe: str, gain: SpeedUp) -> str:
    ratios = {
        "the median step, which leaves out slow ones": gain.by_median,
        "the clock, which also has steps that are not steady": _by_clock(comparison, recipe),
    }
    others = [
        f"{ratio:.2f} times by {name}"
        for name, ratio in ratios.items()
        if abs(ratio / gain.ratio - 1) > ANSWERS_DIFFER
    ]
    aside = f" ({'; '.join(others)})" if others else ""
    runs = completed(comparison.frames.runs, comparison.frames.runs, recipe)
    share = runs["fp8_share_of_steps"].mean()
    part = f" (in FP8 in {share:.0%} of its steps)" if 0 < share < 1 else ""
    return f"{recipe}{part} has {gain.ratio:.2f} times the tokens/s of {comparison.opponent}{aside}"


def _by_clock(comparison: Comparison, recipe: str) -> float:
    """The recipe's tokens/s over the opponent's by the clock, NaN where that is not known."""
    return comparison.clock[recipe] / comparison.clock[comparison.opponent]


def _certainty(comparison: Comparison, recipe: str, gain: SpeedUp) -> str:
    if gain.runs == 1:
        return f", {_single(comparison, recipe)}"
    return f", 95 % interval {gain.low:.2f} to {gain.high:.2f}"


def _single(comparison: Comparison, recipe: str) -> str:
    """Which of a recipe and its opponent has a single run."""
    names = [name for name in (recipe, comparison.opponent) if comparison.rates[name].runs == 1]
    return "one run each" if len(names) == 2 else f"a single run of {names[0]}"


def _pays_back(comparison: Comparison, recipe: str) -> str:
    """When the warm-up is earned back, as the end of a sentence."""
    paid = comparison.break_evens.get((recipe, comparison.opponent))
    if not paid or paid.outcome not in (AHEAD, FROM):
        return ""
    runs = comparison.frames.runs
    both = runs[runs["recipe"].isin([recipe, comparison.opponent])]
    included = "warm-up included"
    if both["compile_cache"].eq("warm").any():
        included += " (of some runs without compilation)"
    if paid.beyond:
        return f", and would be ahead {paid.word}, {included}, beyond these runs"
    return f", and is ahead {paid.word}, {included}"


def _lost(comparison: Comparison) -> list[str]:
    """Where a recipe diverged, or a seed of it left the others."""
    words = []
    alone = "" if comparison.bf16_diverged else ", where bf16 did not"
    for recipe in in_order([*comparison.recipes, *comparison.all_diverged]):
        if recipe in comparison.all_diverged:
            lost, ended = comparison.all_diverged[recipe]
            words.append(f"{recipe} diverged in {lost} of {ended} seeds{alone}")
        for seed, (loss, highest) in comparison.left.get(recipe, {}).items():
            words.append(
                f"{recipe} seed {seed} left the recipe's other seeds: it ends at a loss of "
                f"{loss:.2f}, they at {highest:.2f} or less"
            )
    return words


def _remedy(comparison: Comparison, best: str | None) -> str:
    """What it would take to tell what these runs cannot."""
    gain = comparison.speed_ups.get((best, comparison.opponent))
    if gain and gain.runs == 1:
        return f"To get one, repeat the runs with more seeds: {_repeat_command(comparison)}"
    needs = []
    if gain and gain.unclear:
        count = f"about {gain.needed}" if gain.needed else f"more than {MOST_NEEDED}"
        needs.append(f"{count} runs of each recipe for a ratio of {gain.ratio:.3f}")
    needs += [v.remedy() for v in comparison.verdicts.values() if v.outcome == CANNOT_TELL]
    if not needs:
        return ""
    chance = "for a chance of 80 %, by the spread seen here"
    return f"To tell would take {', '.join(needs)} ({chance})."


def _repeat_command(comparison: Comparison) -> str:
    """The command that trains the same recipes with three seeds each."""
    runs, plan = comparison.frames.runs, comparison.plan
    if (runs["source"] != OWN).any():
        return "each recipe with three or more."
    words = ["python", "-m", "experiments.study", *in_order(runs["recipe"])]
    for overlay in plan.get("overlays") or runs["overlays"].iloc[0]:
        words += ["--overlay", overlay]
    return join([*words, "--seeds", "0,1,2", *plan.get("overrides", [])])


def _worth(comparison: Comparison) -> str:
    """What a difference of one margin is worth; empty where no verdict uses the margin."""
    if not any(v.conclusive or v.outcome == CANNOT_TELL for v in comparison.verdicts.values()):
        return ""
    n, more = compute_for_margin(comparison.frames.runs["parameters"].max())
    return (
        f'"The same loss" means within {TOLERANCE * 100:g} % of the baseline\'s (as in '
        f"DeepSeek-V3, arXiv 2412.19437), which is worth {more * 100:.0f} % of the compute of a "
        f"compute-optimal model of {n / 1e9:.3g} B parameters by the scaling law of Hoffmann et "
        "al. 2022 (arXiv 2203.15556)."
    )
