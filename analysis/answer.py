"""Should this Llama be trained in FP8? A comparison in words: the answer first, then what it rests
on."""

from math import isnan
from shlex import quote

from analysis.comparison import COMPILED, OWN, Comparison, in_order
from analysis.losses import CANNOT_TELL, SAME, TOLERANCE, compute_for_margin
from analysis.rates import AHEAD, FROM, MIN_STEPS, MOST_NEEDED, SpeedUp, completed

QUESTION = "Should this Llama be trained in FP8?"
ANSWERS_DIFFER = 0.02  # a ratio by the median step that is this far from the ratio by the mean step is given beside it


def answer(comparison: Comparison) -> list[str]:
    """The answer, and what limits it: at most five sentences."""
    fp8 = in_order([*comparison.fp8, *comparison.diverged])
    bf16 = [r for r in comparison.recipes if r not in fp8]
    if not fp8 or comparison.opponent not in bf16 or comparison.baseline in fp8:
        needs = "No answer: it needs completed runs in FP8, and in bf16 those of the baseline."
        return [needs, *(f"{words}." for words in _lost(comparison))]
    first, best = _headline(comparison)
    lost = "; ".join(_lost(comparison))
    lost = "" if lost in first else f"{lost}."
    return [
        sentence
        for sentence in (first, lost, _remedy(comparison, best), _worth(comparison))
        if sentence
    ]


def details(comparison: Comparison) -> list[str]:
    """What the answer rests on, a sentence each: of every recipe its speed, its break-even, and its
    loss."""
    facts = []
    for recipe in dict.fromkeys([*comparison.fp8, *comparison.recipes]):
        gain = comparison.speed_ups.get((recipe, comparison.opponent))
        if gain and not isnan(gain.ratio):
            facts.append(
                f"{_claim(comparison, recipe, gain)}{_certainty(comparison, recipe, gain)}."
            )
        facts += [
            b.sentence()
            for b in comparison.break_evens.values()
            if b.a == recipe and recipe in comparison.fp8
        ]
        if judged := comparison.verdicts.get(recipe):
            facts.append(judged.sentence())
    return facts


def about_loss(comparison: Comparison) -> list[str]:
    """Of each recipe that has one, the verdict on its loss; where it diverged; and what it would
    take to tell."""
    sentences = [f"{words}." for words in _lost(comparison)]
    sentences += [judged.sentence() for judged in comparison.verdicts.values()]
    return [sentence for sentence in (*sentences, _remedy(comparison, None)) if sentence]


def _headline(comparison: Comparison) -> tuple[str, str | None]:
    """The answer's first sentence, and the FP8 recipe that it is about, None if it is about
    none."""
    runs, opponent = comparison.frames.runs, comparison.opponent
    if (runs.loc[runs["status"] == "completed", "device_type"] == "cpu").any():
        return (
            "No answer about speed: these runs are from a CPU, which has no FP8 units. "
            "They show the method, and what FP8 does to the loss of a small model.",
            None,
        )
    whole = [r for r in comparison.fp8 if r not in comparison.spoilt]
    if not whole:
        return f"No: {'; '.join(_lost(comparison))}.", None
    gains = {r: g for r in whole if not isnan((g := comparison.speed_ups[r, opponent]).ratio)}
    if not gains:
        return f"Too short to answer: a rate takes runs of {MIN_STEPS} steps or more.", None
    best = max(gains, key=lambda recipe: _rank(comparison, recipe, gains[recipe]))
    return _about(comparison, best, gains[best]), best


def _rank(comparison: Comparison, recipe: str, gain: SpeedUp) -> tuple:
    """What speaks for a recipe, most important first: the headline is about the one with most."""
    judged, faster = comparison.verdicts.get(recipe), gain.low > 1
    conclusive = judged is not None and judged.conclusive
    worse = judged is not None and judged.worse
    return not worse, faster, comparison.proof[recipe] > 0, faster and conclusive, gain.ratio


def _about(comparison: Comparison, recipe: str, gain: SpeedUp) -> str:
    """The headline about one FP8 recipe."""
    opponent, judged, runs = (
        comparison.opponent,
        comparison.verdicts.get(recipe),
        comparison.frames.runs,
    )
    worse = {r for r, v in comparison.verdicts.items() if v.worse}
    claim = _claim(comparison, recipe, gain)
    compiled = {COMPILED, *runs.loc[runs["compiled"].eq(True), "recipe"]}
    if recipe in compiled and opponent not in compiled:
        return f"No answer on FP8 alone: {claim}, but it is compiled too; it needs a completed run of {COMPILED}."
    if gain.runs == 1:
        loss = (
            f", and it ends at a far higher loss than {comparison.baseline}"
            if recipe in worse
            else ""
        )
        return f"No verdict from {_single(comparison, recipe)}: {claim}{_pays_back(comparison, recipe)}{loss}."
    if gain.unclear or (gain.ratio - 1) * (_by_clock(comparison, recipe) - 1) < 0:
        return f"Cannot tell: {claim}{_certainty(comparison, recipe, gain)}."
    if gain.ratio < 1:
        among = (
            " of those that kept the loss"
            if comparison.spoilt | worse and recipe not in worse
            else ""
        )
        return f"No: {claim}, and is the fastest in FP8{among}."
    if not comparison.proof[recipe]:
        return (
            f"No answer: {claim}, but nothing proves that it ran in FP8: its proof.json is missing, says 0 %, says "
            "that the products were emulated, or differs between the runs."
        )
    claim += _pays_back(comparison, recipe)
    if recipe in worse:
        return f"No: {claim}, but it ends at a higher loss than {comparison.baseline}."
    if judged and judged.conclusive:
        loss = "the same" if judged.outcome == SAME else "a lower"
        return f"Yes: {claim}. It ends at {loss} loss after {judged.step:,} steps."
    return f"For speed, yes: {claim}. Whether the loss is the same, these runs cannot tell."


def _claim(comparison: Comparison, recipe: str, gain: SpeedUp) -> str:
    others = [
        f"{ratio:.2f} times by {name}"
        for name, ratio in (
            ("the median step, which leaves out slow ones", gain.by_median),
            ("the clock, which also has steps that are not steady", _by_clock(comparison, recipe)),
        )
        if abs(ratio / gain.ratio - 1) > ANSWERS_DIFFER
    ]
    aside = f" ({'; '.join(others)})" if others else ""
    share = completed(runs := comparison.frames.runs, runs, recipe)["fp8_share_of_steps"].mean()
    part = f" (in FP8 in {share:.0%} of its steps)" if 0 < share < 1 else ""
    return f"{recipe}{part} has {gain.ratio:.2f} times the tokens/s of {comparison.opponent}{aside}"


def _by_clock(comparison: Comparison, recipe: str) -> float:
    """The recipe's tokens/s over the opponent's by the clock, NaN where that is not known."""
    return comparison.clock[recipe] / comparison.clock[comparison.opponent]


def _certainty(comparison: Comparison, recipe: str, gain: SpeedUp) -> str:
    interval = f", 95 % interval {gain.low:.2f} to {gain.high:.2f}"
    return f", {_single(comparison, recipe)}" if gain.runs == 1 else interval


def _single(comparison: Comparison, recipe: str) -> str:
    """Which of a recipe and its opponent has a single run."""
    names = [name for name in (recipe, comparison.opponent) if comparison.rates[name].runs == 1]
    return "one run each" if len(names) == 2 else f"a single run of {names[0]}"


def _pays_back(comparison: Comparison, recipe: str) -> str:
    """When the warm-up is earned back, as the end of a sentence."""
    paid = comparison.break_evens.get((recipe, comparison.opponent))
    if paid and paid.outcome in (AHEAD, FROM):
        verb, runs = ("would be", ", beyond these runs") if paid.beyond else ("is", "")
        ran = comparison.frames.runs
        warm = (
            ran.loc[ran["recipe"].isin([recipe, comparison.opponent]), "compile_cache"]
            .eq("warm")
            .any()
        )
        compilation = " (of some runs without compilation)" if warm else ""
        return f", and {verb} ahead {paid.word}, warm-up included{compilation}{runs}"
    return ""


def _lost(comparison: Comparison) -> list[str]:
    """Where a recipe diverged, or a seed of it left the others."""
    words = []
    diverged = comparison.diverged | comparison.bf16_diverged
    for recipe in in_order([*comparison.recipes, *diverged]):
        if recipe in diverged:
            lost, ended = diverged[recipe]
            alone = "" if comparison.bf16_diverged else ", where bf16 did not"
            words.append(f"{recipe} diverged in {lost} of {ended} seeds{alone}")
        for seed, (loss, highest) in comparison.left.get(recipe, {}).items():
            others = f"they at {highest:.2f} or less"
            words.append(
                f"{recipe} seed {seed} left the recipe's other seeds: it ends at a loss of {loss:.2f}, {others}"
            )
    return words


def _remedy(comparison: Comparison, best: str | None) -> str:
    """What it would take to tell what these runs cannot."""
    gain = comparison.speed_ups.get((best, comparison.opponent))
    if gain and gain.runs == 1:
        return f"To get one, repeat the runs with more seeds: {repeat_command(comparison)}"
    needs = []
    if gain and gain.unclear:
        runs = f"about {gain.needed}" if gain.needed else f"more than {MOST_NEEDED}"
        needs.append(f"{runs} runs of each recipe for a ratio of {gain.ratio:.3f}")
    needs += [v.remedy() for v in comparison.verdicts.values() if v.outcome == CANNOT_TELL]
    return (
        f"To tell would take {', '.join(needs)} (for a chance of 80 %, by the spread seen here)."
        if needs
        else ""
    )


def repeat_command(comparison: Comparison) -> str:
    """The command that trains the same recipes with three seeds each."""
    runs, plan = comparison.frames.runs, comparison.plan
    if (runs["source"] != OWN).any():
        return "each recipe with three or more."
    overlays = plan.get("overlays") or next((names for names in runs["overlays"] if names), [])
    words = [
        *map(quote, in_order(runs["recipe"])),
        *(f"--overlay {quote(o)}" for o in overlays),
        "--seeds 0,1,2",
    ]
    return " ".join(
        ["python -m experiments.study", *words, *map(quote, plan.get("overrides") or [])]
    )


def _worth(comparison: Comparison) -> str:
    """What a difference of one margin is worth; empty where no verdict uses the margin."""
    if not any(v.conclusive or v.outcome == CANNOT_TELL for v in comparison.verdicts.values()):
        return ""
    n, more = compute_for_margin(comparison.frames.runs["parameters"].max())
    return (
        f'"The same loss" means within {TOLERANCE * 100:g} % of the baseline\'s (as in DeepSeek-V3, arXiv 2412.19437), '
        f"which is worth {more * 100:.0f} % of the compute of a compute-optimal model of {n / 1e9:.3g} B parameters "
        "by the scaling law of Hoffmann et al. 2022 (arXiv 2203.15556)."
    )
