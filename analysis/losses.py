"""Compare the losses of two recipes, and the runs that they lost.

Final losses are compared by seed. Two seeds differ far more than two recipes do, and the difference
of a pair leaves the seed out.

Rule 4: runs of one seed begin at one loss, because they share weights and batches.
Rule 5: the losses of a pair stay near one another.
Rule 6: no cause (a crash, a divergence, a lost record) took more runs from a recipe than from its
reference. Otherwise the completed runs may be the lucky ones. If the machine or a person stopped
more runs of the recipe, that is a remark unless chance does not explain it: a stop seldom depends
on the recipe.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from scipy import stats
from scipy.spatial.distance import pdist

from analysis.runs import (
    DIVERGED,
    INTERRUPTED,
    KILLED,
    MIN_SEEDS,
    MIN_STEPS,
    NO_RECORD,
    SHORT_LOG,
    UNREADABLE,
    PlannedRun,
    Run,
)
from analysis.speed import count_runs_needed, estimate_mean
from analysis.study import OTHER_TRAINING

LOSS_CONFIDENCE = 0.90  # of the interval: two one-sided tests at 5 % each
# The margin, as a share of the reference's final loss. DeepSeek-V3 (arXiv 2412.19437, section 3.3)
# reports FP8 within 0.25 % of bf16, and takes that for well within what is random in training.
MARGIN_SHARE = 0.0025
# The share of compute that makes up for the margin in a compute-optimal model of 8.05 B parameters,
# by the scaling law of Hoffmann et al. 2022 (arXiv 2203.15556), equation 10.
EQUIVALENT_COMPUTE = 0.092
# The largest distance of partners, the two runs of a pair, as a share of the distance of two seeds.
PARTNER_DISTANCE = 0.5
PARTS = 5  # into which the steps are divided: partners must be near in each part
LEARNED_MARGINS = 4  # (1 % of the loss) by which a loss must fall before losses can be the same
DIVERGED_ABOVE = 0.10  # the share by which a loss is far above another: rounding moves none as far
MAX_FAR_SHARE = 0.02  # the share of a run's steps that may be far above: a bad batch takes fewer
# The share of the steps in FP8 that may, by chance, have the partner's loss to the last bit.
MAX_EQUAL_SHARE = 0.10
# How far a run may end from its partner by chance. Rounding harms a loss, but never lowers it.
MAX_MARGINS_ABOVE = 8  # (2 % of the loss)
MAX_MARGINS_BELOW = 16

# What digests are of, and the records on which they depend.
DIGESTS = {"first_weights": "weights", "first_batch": "batch"}
DIGESTED_ON = ("hardware.name", "hardware.cpu_instruction_sets", "training.dtype", "packages.torch")

SAME = "the same"
LOWER = "lower"
HIGHER = "higher"
CANNOT_TELL = "cannot tell"
TOO_FEW = f"it takes {MIN_SEEDS} seeds to tell"
TOO_SHORT = f"it takes {MIN_STEPS} steps to tell"

# Causes of lost runs, besides endings.
CRASH = "a crash"
MACHINE = "the machine"
MAX_P_VALUE_OF_MACHINE = 0.05  # if machines took so many more runs of a recipe not by chance
# An error with these words is the machine's (a GPU, a network, a disk, a node) ...
MACHINE_ERROR = re.compile(
    r"(?i)\becc\b|uncorrectable|\bxid\b|\bgpu is lost|off the bus|busy or unavailable|"
    r"nccl|network|connection|socket|unreachable|broken pipe|node fail|"
    r"no space left|quota|stale file|input/output error|read-only file|bus error|\berrno\b"
)
# ... except if it also has these words, which tell of a fault of the program.
PROGRAM_ERROR = re.compile(r"(?i)invalid (usage|argument)|illegal|misaligned|assert|out of memory")


# ---- the final loss ----


def last_tenth(steps: pd.DataFrame | pd.Series) -> pd.DataFrame | pd.Series:
    """Choose the last tenth of the steps. The final loss is their mean loss: they are enough steps
    to average batches out, and few enough to be the end of the run."""
    return steps.tail(max(1, len(steps) // 10))


def first_tenth(steps: pd.DataFrame | pd.Series) -> pd.DataFrame | pd.Series:
    """Choose the first tenth of the steps."""
    return steps.head(max(1, len(steps) // 10))


def final_loss(run: PlannedRun) -> float:
    """Average the loss over the last tenth of the steps; NaN without a step."""
    return last_tenth(run.steps["loss"]).mean()


@dataclass(frozen=True)
class LossVerdict:
    """How far a recipe's final loss is from its reference's.

    Args:
        word: `SAME`, `LOWER`, `HIGHER`, `CANNOT_TELL`, `TOO_FEW` or `TOO_SHORT`.
        difference_by_seed: of each pair of runs, in nats per token.
        difference, low, high, confidence: their mean and its interval.
        margin: losses are the same within this difference.
        step: the last step of all pairs.
        runs_needed: how many runs of each recipe would tell whether it is the same, lower or
            higher; None if unknown.
    """

    word: str = TOO_FEW
    difference_by_seed: tuple[float, ...] = ()
    difference: float = math.nan
    low: float = math.nan
    high: float = math.nan
    confidence: float = LOSS_CONFIDENCE
    margin: float = math.nan
    step: int = 0
    runs_needed: int | None = None


def tabulate_by_seed(runs: Sequence[PlannedRun], column: str = "loss") -> pd.DataFrame:
    """Put the losses of some runs, or another column of `Run.steps`, side by side: a row for each
    step, a column for each seed."""
    return pd.DataFrame({run.seed: run.steps[column] for run in runs})


def subtract_losses(runs: list[Run], reference_runs: list[Run]) -> pd.DataFrame:
    """Subtract the reference's losses from a recipe's: a row for each step that all pairs have, a
    column for the seed of each pair with enough steps."""
    differences = tabulate_by_seed(runs) - tabulate_by_seed(reference_runs)
    return differences.dropna(axis="columns", thresh=MIN_STEPS).dropna()


def compare_final_losses(
    runs: list[Run], reference_runs: list[Run], recipes_judged: int = 1
) -> LossVerdict:
    """Test equivalence by two one-sided t-tests (Schuirmann 1987): losses are the same if the
    interval of their mean difference lies within the margin.

    Runs that have not begun to learn cannot tell.

    Args:
        recipes_judged: how many recipes are judged together: the interval is wider (Bonferroni).
    """
    differences = last_tenth(subtract_losses(runs, reference_runs))  # (steps, seeds)
    reference_losses = tabulate_by_seed(reference_runs)
    if differences.empty:
        has_pair = any(run.seed in reference_losses for run in runs)
        return LossVerdict(TOO_SHORT if has_pair else TOO_FEW)
    difference_by_seed = differences.mean()
    reference_by_seed = reference_losses.loc[differences.index, differences.columns].mean()
    margin = MARGIN_SHARE * reference_by_seed.mean()
    confidence = 1 - (1 - LOSS_CONFIDENCE) / recipes_judged
    difference, low, high = estimate_mean(difference_by_seed, confidence)
    if len(difference_by_seed) < MIN_SEEDS:
        word = TOO_FEW
    elif (difference_by_seed > DIVERGED_ABOVE * reference_by_seed).all():
        word = HIGHER  # far above in each seed, however much the seeds vary
    elif not has_learned(runs + reference_runs, reference_runs, margin):
        word = CANNOT_TELL
    elif low > margin:
        word = HIGHER
    elif high < -margin:
        word = LOWER
    elif -margin < low and high < margin:
        word = SAME
    else:
        word = CANNOT_TELL
    # An interval this narrow lies on one side of the nearer end of the margin.
    sufficient_width = 2 * abs(abs(difference) - margin)
    pairs = len(difference_by_seed)
    return LossVerdict(
        word=word,
        difference_by_seed=tuple(difference_by_seed),
        difference=difference,
        low=low,
        high=high,
        confidence=confidence,
        margin=margin,
        step=differences.index[-1],
        runs_needed=count_runs_needed(pairs, high - low, sufficient_width, 1, confidence),
    )


def has_learned(runs: list[Run], reference_runs: list[Run], margin: float) -> bool:
    """Tell if runs have begun to learn: the learning rate has stopped growing, and the reference's
    loss has fallen by a few margins."""
    for run in runs:
        last_lrs = run.steps["lr"].dropna().tail(2)
        still_grows = last_lrs.is_monotonic_increasing and last_lrs.nunique() > 1
        if still_grows:
            return False
    falls = [first_tenth(run.steps["loss"]).mean() - final_loss(run) for run in reference_runs]
    return bool(np.mean(falls) > LEARNED_MARGINS * margin)


# ---- rule 4 ----


def check_beginnings(runs: list[Run], reference_runs: list[Run]) -> list[str]:
    """Say if runs of one seed do not begin with one model and batch, or runs of two seeds do.

    Digests of weights and batch tell, if the records of all pairs have comparable digests.
    Otherwise the first losses tell.
    """
    reference_by_seed = {run.seed: run for run in reference_runs if run.length}
    pairs = []
    for run in runs:
        if run.length and run.seed in reference_by_seed:
            pairs.append((run, reference_by_seed[run.seed]))
    if not pairs or not all(have_comparable_digests(*pair) for pair in pairs):
        return check_first_losses(runs, reference_runs)
    beginnings = set()
    for run, reference_run in pairs:
        for key, words in DIGESTS.items():
            if run.facts[key] != reference_run.facts[key]:
                return [f"{run.name} and {reference_run.name} did not begin with the same {words}"]
        beginnings.add((run.facts["first_weights"], run.facts["first_batch"]))
    if len(beginnings) < len(pairs):
        return ["two seeds begin with the same weights and batch, so they may be one run"]
    return []


def have_comparable_digests(run: Run, reference_run: Run) -> bool:
    """Tell if two runs have digests of weights and batch, made by one kind of machine in one dtype.

    Another kind of machine, with another instruction set, draws other weights from the same seed.
    """
    recorded_keys = run.facts.keys() & reference_run.facts.keys()
    if not DIGESTS.keys() <= recorded_keys:
        return False
    return all(run.facts.get(key) == reference_run.facts.get(key) for key in DIGESTED_ON)


def check_first_losses(runs: list[Run], reference_runs: list[Run]) -> list[str]:
    """Say if runs of one seed do not begin at one loss, or runs of two seeds do.

    The first losses of runs of one seed (partners) differ by rounding alone, those of two seeds by
    far more.
    """
    sentences = []
    losses = tabulate_by_seed(runs).head(1).mean()
    reference_losses = tabulate_by_seed(reference_runs).head(1).mean()
    if losses.dropna().duplicated().any() or reference_losses.dropna().duplicated().any():
        sentences.append("two seeds of a recipe begin with the same loss, so they may be one run")
    of_partners = (losses - reference_losses).abs().median()
    of_seeds = pd.Series(pdist(reference_losses.to_frame())).median()
    if of_partners > PARTNER_DISTANCE * of_seeds:
        sentences.append(
            f"runs of one seed begin {of_partners:.2g} apart, and two seeds {of_seeds:.2g}: the "
            "recipes do not share weights and batches, or log different losses"
        )
    return sentences


def check_batches(runs: list[Run], reference_runs: list[Run]) -> list[str]:
    """Say in which fifth of the steps a pair did not read the same batches.

    A jump is the change of a loss from one step to the next: most of it comes from the batch. The
    jumps of partners, which read the same batches, are nearer than those of two seeds.
    """
    jumps = tabulate_by_seed(runs).diff()
    reference_jumps = tabulate_by_seed(reference_runs).diff()
    distances_of_pairs = (jumps - reference_jumps).dropna(axis="columns", thresh=MIN_STEPS).abs()
    jumps_of_seeds = reference_jumps if len(reference_jumps.columns) > 1 else jumps
    distances_of_seeds = pd.DataFrame()  # a row for each step, a column for each two seeds
    for seed, other_seed in combinations(jumps_of_seeds, 2):
        distance = jumps_of_seeds[seed] - jumps_of_seeds[other_seed]
        distances_of_seeds[seed, other_seed] = distance.abs()
    for seed, distances in distances_of_pairs.items():
        for steps in np.array_split(distances.dropna().index, PARTS):
            of_partners = distances[steps].median()
            of_seeds = distances_of_seeds.reindex(steps).median().median()
            if of_partners > PARTNER_DISTANCE * of_seeds:
                return [
                    f"from step {steps[0]} to {steps[-1]} the losses of seed {seed} jump "
                    f"{of_partners:.2g} apart from step to step, and those of two seeds "
                    f"{of_seeds:.2g}: the pair did not read the same batches, or did not learn "
                    "alike"
                ]
    return []


# ---- rule 5 ----


def find_far_runs(runs: list[Run], reference_runs: list[Run]) -> list[str]:
    """Name the runs whose loss is far above their partner's in too many steps."""
    sentences = []
    for run in runs:
        share = mark_far_steps(run, reference_runs).mean()
        if share > MAX_FAR_SHARE:
            above = f"{DIVERGED_ABOVE:.0%} above its partner's loss"
            sentences.append(f"{run.name} is {above} in {share:.0%} of its steps")
    return sentences


def find_equal_losses(runs: list[Run], reference_runs: list[Run]) -> list[str]:
    """Say if the losses of a pair are equal, in steps in FP8, more often than chance gives."""
    differences = subtract_losses(runs, reference_runs)
    is_equal = differences.where(tabulate_by_seed(runs, "in_fp8")).eq(0)
    share = is_equal.mean().max()
    if share > MAX_EQUAL_SHARE:
        return [f"in {share:.0%} of a run's steps both recipes have one loss, to the last bit"]
    return []


def describe_gap(verdict: LossVerdict) -> list[str]:
    """Say if final losses are further apart than rounding explains."""
    highest = max(verdict.difference_by_seed, default=0.0)
    lowest = min(verdict.difference_by_seed, default=0.0)
    margin = verdict.margin
    if not margin > 0:  # unknown, or all losses are 0
        return []
    if verdict.high < -margin:
        return [
            f"its loss is {-verdict.difference:.3g} lower, more than the margin of {margin:.2g}, "
            "and rounding to FP8 explains no such gain"
        ]
    if verdict.word == HIGHER:
        return []
    if verdict.low > margin:
        return [
            f"its loss is {verdict.difference:.3g} higher, more than the margin of {margin:.2g}"
        ]
    if highest > MAX_MARGINS_ABOVE * margin:
        margins = highest / margin
        return [f"one of its runs ends {highest:.3g} above its partner, {margins:.0f} margins"]
    if -lowest > MAX_MARGINS_BELOW * margin:
        margins = -lowest / margin
        return [f"one of its runs ends {-lowest:.3g} below its partner, {margins:.0f} margins"]
    return []


def mark_far_steps(run: PlannedRun, reference_runs: Sequence[PlannedRun]) -> pd.Series:
    """Mark the steps at which a run's loss is not finite, or far above its partner's.

    Empty without a partner: the losses of two seeds differ too much from step to step.

    Args:
        reference_runs: of the recipe that the run is compared with.

    Returns:
        True or false, by step: for the steps at which the partner's loss is finite.
    """
    losses_by_seed = tabulate_by_seed(reference_runs)
    partner_losses = losses_by_seed.get(run.seed, pd.Series(dtype=float)).dropna()
    common_steps = run.steps.index.intersection(partner_losses.index)
    losses = run.steps["loss"].reindex(common_steps)
    return losses.isna() | (losses > (1 + DIVERGED_ABOVE) * partner_losses.reindex(common_steps))


def is_far_at_end(run: PlannedRun, reference_runs: Sequence[PlannedRun]) -> bool:
    """Tell if a run ends far above its partner: in most steps of its last tenth.

    A run without a partner ends far above if its mean loss there is far above each reference run's.
    """
    if run.length < MIN_STEPS:
        return False
    is_far = mark_far_steps(run, reference_runs)
    if len(is_far):
        return last_tenth(is_far).mean() > 0.5
    last_losses = last_tenth(run.steps["loss"])
    reference_losses = tabulate_by_seed(reference_runs).reindex(last_losses.index).mean().dropna()
    if reference_losses.empty:
        return False
    is_near = last_losses.mean() <= (1 + DIVERGED_ABOVE) * reference_losses.max()
    return not is_near  # a mean loss of NaN is not near


# ---- rule 6 ----


@dataclass(frozen=True)
class LostRuns:
    """What the runs that a recipe lost say of the recipe.

    Args:
        diverges: it diverged more often than its reference.
        reasons: sentences on causes that forbid a plain yes.
        remarks: sentences on causes that may be chance, such as the machine.
    """

    diverges: bool
    reasons: list[str]
    remarks: list[str]


def compare_lost_runs(
    runs: list[PlannedRun], reference_runs: list[PlannedRun], are_paired: bool
) -> LostRuns:
    """Compare the runs that two recipes lost, cause by cause.

    Args:
        runs, reference_runs: all runs of the recipes, completed or not.
        are_paired: whether the losses of the two recipes can be compared.
    """
    causes = count_causes(runs, reference_runs if are_paired else [])
    reference_causes = count_causes(reference_runs, runs if are_paired else [])
    reasons = []
    remarks = []
    for cause in causes - reference_causes:  # the causes that took more from the recipe
        sentence = (
            f"it lost {causes[cause]} of {len(runs)} runs, or an attempt of them "
            f"({find_example(runs, cause)}), and the reference {reference_causes[cause]}"
        )
        table = [
            [causes[cause], len(runs) - causes[cause]],
            [reference_causes[cause], len(reference_runs) - reference_causes[cause]],
        ]
        if cause == OTHER_TRAINING:
            remarks.append(sentence)
        elif cause == MACHINE and may_be_chance(table):
            remarks.append(f"{sentence}, which may be chance")
        else:
            reasons.append(sentence)
    return LostRuns(causes[DIVERGED] > reference_causes[DIVERGED], reasons, remarks)


def count_causes(runs: list[PlannedRun], other_runs: list[PlannedRun]) -> Counter[str]:
    """Count the runs that each cause took, or took an attempt of.

    Divergence shows in the ending of a run, or in its loss at the end of the run.

    Args:
        other_runs: the other recipe's; empty if the losses of the two recipes cannot be compared.
    """
    completed = [run for run in other_runs if run.completed]
    causes: Counter[str] = Counter()
    for run in runs:
        causes.update(collect_causes(run))
        if run.ending == DIVERGED or is_far_at_end(run, completed):
            causes[DIVERGED] += 1
    return causes


def collect_causes(run: PlannedRun) -> set[str]:
    """Collect the causes that took a run or one of its attempts, except the run's divergence."""
    causes = set()
    if not run.completed and run.ending != DIVERGED:
        causes.add(find_cause(run.ending))
    for ending in run.lost_endings:
        if ending == DIVERGED:
            causes.add(f"an earlier attempt {ending}")
        else:
            causes.add(find_cause(ending))
    return causes


def find_cause(ending: str) -> str:
    """Name the cause of an ending. All crashes are one cause, all lost records are another, and so
    is all that machines and people stop."""
    if ending in (UNREADABLE, SHORT_LOG):
        return NO_RECORD
    if ending in (INTERRUPTED, KILLED):
        return MACHINE
    if not ending.startswith("failed"):
        return ending
    if MACHINE_ERROR.search(ending) and not PROGRAM_ERROR.search(ending):
        return MACHINE
    return CRASH


def find_example(runs: list[PlannedRun], cause: str) -> str:
    """Return the ending of the first run or attempt with a cause."""
    for run in runs:
        for ending in (run.ending, *run.lost_endings):
            if find_cause(ending) == cause:
                return ending
    return cause


def may_be_chance(table: list[list[int]]) -> bool:
    """Tell if one recipe may have lost more runs than the other by chance (Fisher's exact test).

    Args:
        table: lost and other runs of the recipe, then of its reference.
    """
    return stats.fisher_exact(table, "greater").pvalue > MAX_P_VALUE_OF_MACHINE
