"""Fit the estimate to published pairs, and say how wrong it is on unseen sources.

    python -m extensions.decide.tests.fit    # writes fitted.json and left_out.png

Exit code: 0.
"""

import json

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.plots.style import GREY, finding, plot, to_png
from extensions.decide.answer import FITTED
from extensions.decide.pairs import HERE, read
from extensions.decide.step import Training, parts

OUTSIDE, REFUSED = 2, 8  # times beyond what pairs cover: a range twice as wide; no estimate
INSIDE = 0.8  # of the errors on unseen sources, to lie within the range
# Of three factors: how much longer an FP8 matmul takes with scales of rows, the bytes moved for
# each element that is cast, and how far from its roofline all is that stays in bf16. Stated before
# this fit's errors were seen: a factor begins at what its kernels need by count, and may be wrong
# by as much again (the first: by a whole matmul); a pair may be wrong by 5 %.
PRIOR, SPREAD, NOISE = np.array([0, 5, 1]), np.array([1, 5, 1]), 0.05
PARTS = ["fp8_able", "rest", "cast"]
EXTENTS = ["parameters", "sequence", "tokens"]


def calibrates(pair: Training) -> bool:
    """Whether it is fair, and as the recipes are; these are not split by tensor parallelism."""
    alike = (pair.stack, pair.kind, pair.tensor_parallel) == ("torchao", "dense", 1)
    known = pair.sizes and pair.batch and pair.sequence and pair.gpu
    converts = pair.scaling in ("tensorwise", "rowwise")
    return alike and known and converts and pair.fairness != "doubtful"


def calibrating() -> pd.DataFrame:
    """List the pairs that calibrate, with the rooflines of their `PARTS`, and origins.

    What is left out together has one origin: a repository, or a site's page.
    """
    pairs = [pair for pair in read() if calibrates(pair)]
    table = pd.DataFrame(map(vars, pairs))
    table[PARTS] = list(map(parts, pairs))
    table[EXTENTS] = [[getattr(pair, name) for name in EXTENTS] for pair in pairs]
    table["chip"] = [pair.chip for pair in pairs]
    origin = table.source.str.extract(r"(github\.com/[^/, ]+/[^/, ]+|[^, ]+)", expand=False)
    return table.assign(origin=origin)


def fit(pairs: pd.DataFrame) -> dict[str, list[float]]:
    """Fit three factors by least squares: the seconds of an FP8 step are linear in all of them.

    A source's pairs weigh as the root of their number. Returns the factors of `PARTS` by scaling.
    """
    alike = pairs.groupby("origin").origin.transform("size")
    within = NOISE * (pairs.fp8_able + pairs.rest) / pairs.speed_up * alike**0.5
    half, less = pairs.fp8_able / 2, 1 - 1 / pairs.speed_up
    terms = [half * (pairs.scaling == "rowwise"), pairs.cast, pairs.rest * less]
    left = np.hstack([np.diag(1 / SPREAD), terms / within.to_numpy()])
    right = np.concatenate([PRIOR / SPREAD, (half - pairs.fp8_able * less) / within])
    rowwise, cast, rest = np.linalg.lstsq(left.T, right)[0].round(3).tolist()
    return {
        "bf16": [1, rest, 0],
        "tensorwise": [0.5, rest, cast],
        "rowwise": [0.5 + rowwise / 2, rest, cast],
    }


def predict(pairs: pd.DataFrame, factors: dict) -> pd.Series:
    """Predict the speed-up of each pair."""
    step = pairs[PARTS] @ pd.DataFrame(factors, index=PARTS)
    return step.bf16 / step.rowwise.where(pairs.scaling == "rowwise", step.tensorwise)


def limits(pairs: pd.DataFrame, times: float) -> dict[str, list[float]]:
    """Say from where to where a training may be, so many times outside of the pairs."""
    ends = pairs[EXTENTS].agg(["min", "max"]).T * [1 / times, times]
    return ends.T.to_dict("list")


def left_out(pairs: pd.DataFrame) -> pd.DataFrame:
    """Predict each source's pairs from all others', and whether they are within their range."""
    found = []
    for origin, own in pairs.groupby("origin"):
        others = pairs[pairs.origin != origin]
        covered = own.chip.isin(others.chip)
        for name, (least, most) in limits(others, OUTSIDE).items():
            covered &= own[name].between(least, most)
        found.append(own.assign(predicted=predict(own, fit(others)), wide=2 - covered))
    unseen = pd.concat(found).sort_index()
    unseen["error"] = np.log(unseen.predicted / unseen.speed_up).abs()
    widths = [half_width(unseen[unseen.origin != origin]) for origin in unseen.origin]
    return unseen.assign(inside=unseen.error <= widths * unseen.wide)


def half_width(unseen: pd.DataFrame) -> float:
    """Give the half of the range, a logarithm, that holds `INSIDE` of the errors."""
    return round(unseen.error.quantile(INSIDE, "higher"), 4)


def fitted(pairs: pd.DataFrame, unseen: pd.DataFrame) -> dict:
    """Give what fitted.json holds."""
    factors, told = fit(pairs), pairs[pairs.unit == "tok/s/gpu"]
    pace = told[PARTS] @ factors["bf16"] * told.bf16 / told.tokens
    return {
        "factors": factors,
        "half_width": half_width(unseen),
        # the part of its roofline's speed that bf16 reached: in the middle, at best, at worst
        "pace": pace.quantile([0.5, 0.9, 0.1]).round(3).tolist(),
        "chips": sorted(set(pairs.chip)),
        "covered": limits(pairs, OUTSIDE) | {"frozen": [0, 0]},
        "answered": limits(pairs, REFUSED),
        "pairs": len(pairs),
        "sources": unseen.origin.nunique(),
        "mean_error": round(unseen.error.mean(), 4),
        "inside": int(unseen.inside.sum()),
    }


@plot
def drawn(axes: Axes, unseen: pd.DataFrame) -> None:
    """Draw each pair beside its prediction from all other sources."""
    finding(axes, "Each pair is predicted from other sources alone: on the line, it is right")
    for scaling, of in unseen.groupby("scaling"):
        axes.plot(of.predicted, of.speed_up, "o", label=scaling)
    axes.axline((1, 1), slope=1, color=GREY)
    axes.set(xlabel="predicted speed of FP8 over bf16", ylabel="measured")
    axes.legend()


if __name__ == "__main__":
    pairs = calibrating()
    unseen = left_out(pairs)
    FITTED.write_text(json.dumps(fitted(pairs, unseen), indent=1) + "\n", encoding="utf-8")
    (HERE / "left_out.png").write_bytes(to_png(drawn(unseen)))
