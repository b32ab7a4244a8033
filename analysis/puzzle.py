"""The one-GPU puzzle: which parameters the optimizer of each run owned, and whose loss each run's
loss follows.

A recipe whose optimizer owns every parameter should follow the baseline, one with orphans the run
that has them frozen.
"""

from pathlib import Path

import pandas as pd

from analysis.comparison import BASELINE, in_order
from analysis.losses import NOT_ENOUGH, Verdict, verdict
from analysis.rates import completed
from experiments.records.files import read
from experiments.records.run import PROOF, Proof

STUDY = "one_gpu_puzzle"
FROZEN = "puzzle_bf16_frozen"
NEAR = 0.1  # a loss follows a reference if it is nearer to it than this part of its distance to the other one


def ownership(runs: pd.DataFrame) -> pd.DataFrame:
    """One row a recipe: what the proof of its first completed run says of parameter tensors
    (numbers, or names).

    And owned: the optimizer's share of all elements.
    """
    rows = {}
    for recipe in in_order(runs["recipe"]):
        for run in completed(runs, runs, recipe).head(1).itertuples():
            proof = read(Path(run.path) / PROOF, Proof).parameters.model_dump(
                exclude={"bytes_per_parameter"}
            )
            rows[recipe] = proof | {"owned": proof.pop("elements_in_optimizer") / run.parameters}
    return pd.DataFrame.from_dict(rows, orient="index")


def counts(owned: pd.DataFrame) -> pd.DataFrame:
    """`ownership` with names counted, to look at."""
    return owned.map(lambda value: len(value) if isinstance(value, list) else value).round(3)


def nearest(runs: pd.DataFrame, steps: pd.DataFrame, recipe: str) -> tuple[Verdict, Verdict] | None:
    """The verdict on the reference whose final loss `recipe` follows, and that on the other; None
    if on neither."""
    verdicts = (verdict(runs, steps, recipe, reference) for reference in (BASELINE, FROZEN))
    near, far = sorted(verdicts, key=lambda against: abs(against.difference))
    return (near, far) if abs(near.difference) < NEAR * abs(far.difference) else None


def conclusion(runs: pd.DataFrame, steps: pd.DataFrame) -> list[str]:
    """What the runs say, the answer first, a sentence each."""
    owned, facts, explained = ownership(runs), [], True
    if missing := [recipe for recipe in (BASELINE, FROZEN) if recipe not in owned.index]:
        return [f"No answer: it needs a completed run of {' and of '.join(missing)}."]
    for recipe in owned.index.drop([BASELINE, FROZEN]):
        pair = nearest(runs, steps, recipe)
        explained &= pair is not None and pair[0].baseline == (
            FROZEN if owned["orphans"][recipe] else BASELINE
        )
        facts += _facts(recipe, pair)
    orphans = [names for names in owned["orphans"] if names]
    if not explained or orphans != [owned["frozen"][FROZEN]]:
        return ["These runs do not explain the report. Whose loss follows which:", *facts]
    return [
        "At batch 1 on one device FP8 learns as bf16 does: its final loss is at least ten times nearer to that of bf16 "
        "than to that of bf16 with frozen weights.",
        "It does not where the optimizer was built before a conversion that replaces the weights: then "
        f"{len(orphans[0])} of them, {1 - owned['owned'][FROZEN]:.0%} of all parameters, are never stepped, and the "
        "loss is that of bf16 with them frozen.",
        *facts,
    ]


def _facts(recipe: str, pair: tuple[Verdict, Verdict] | None) -> list[str]:
    """Whose loss a recipe's follows, in words."""
    if pair is None:
        return [f"{recipe} follows neither {BASELINE} nor {FROZEN}."]
    near, far = pair
    follows = (
        f"{recipe} follows {near.baseline}: its final loss differs by {near.difference:+.4f} from that, and by "
        f"{far.difference:+.4f} from that of {far.baseline}."
    )
    return [follows] if near.outcome == NOT_ENOUGH else [follows, near.sentence()]
