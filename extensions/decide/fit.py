"""Fit the estimate to published pairs, and say how wrong it is on unseen sources.

    python -m extensions.decide.fit    # writes fitted.json, left_out.png, and README's counts

Exit code: 0.
"""

import json

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.plots.style import GREY, finding, plot, to_png
from analysis.readme import with_section
from extensions.decide.answer import FITTED, beyond
from extensions.decide.pairs import HERE, Pair, read
from extensions.decide.step import work

INSIDE = 0.8  # of the errors on unseen sources, to lie within the range
# Stated before this fit's errors were seen: a factor begins at what its kernels need by count, and
# may be wrong by as much again (`rowwise`: by a whole matmul); a pair may be wrong by 5 %.
PRIOR, SPREAD, NOISE = {"rowwise": 0, "cast": 5, "rest": 1}, np.array([1, 5, 1]), 0.05
PAGE = HERE / "README.md"


def fit(pairs: list[Pair]) -> dict[str, float]:
    """Fit by least squares: the seconds of an FP8 step are linear in all factors.

    A source's pairs weigh as the root of their number.
    """
    left, right = [*np.diag(1 / SPREAD)], [*[*PRIOR.values()] / SPREAD]
    origins = [pair.origin for pair in pairs]
    for pair in pairs:
        parts, ratio = work(pair), pair.speed_up
        half, less = parts.fp8_able / 2, 1 - 1 / ratio
        within = NOISE * parts.seconds(**PRIOR)["bf16"] / ratio * origins.count(pair.origin) ** 0.5
        terms = [half * (pair.scaling == "rowwise"), parts.cast, parts.rest * less]
        left.append(np.array(terms) / within)
        right.append((half - parts.fp8_able * less) / within)
    fitted = np.linalg.lstsq(left, right)[0].round(3)
    return dict(zip(PRIOR, fitted.tolist(), strict=True))


def left_out(pairs: list[Pair]) -> pd.DataFrame:
    """Predict each source's pairs from all others', and whether they are within their range."""
    rows = []
    for pair in pairs:
        others = [other for other in pairs if other.origin != pair.origin]
        seconds = work(pair).seconds(**fit(others))
        predicted = seconds["bf16"] / seconds[pair.scaling]
        wide = 1 + bool(beyond(pair, others))
        rows.append([pair.origin, pair.scaling, pair.speed_up, predicted, wide])
    found = pd.DataFrame(rows, columns=["origin", "scaling", "measured", "predicted", "wide"])
    found["error"] = np.log(found.predicted / found.measured).abs()
    widths = [half_width(found[found.origin != origin]) for origin in found.origin]
    return found.assign(inside=found.error <= widths * found.wide)


def half_width(unseen: pd.DataFrame) -> float:
    """Give the half of the range, a logarithm, that holds `INSIDE` of the errors."""
    return round(unseen.error.quantile(INSIDE, "higher"), 4)


def fitted(pairs: list[Pair]) -> tuple[dict, pd.DataFrame]:
    """Fit to all pairs; returns what fitted.json holds, and the left-out pairs."""
    factors, unseen = fit(pairs), left_out(pairs)
    paces = [
        work(pair).seconds(**factors)["bf16"] * pair.bf16 / (pair.batch * pair.sequence)
        for pair in pairs
        if pair.unit == "tok/s/gpu"
    ]
    facts = {
        "factors": factors,
        "half_width": half_width(unseen),
        # the part of its roofline's speed that bf16 reached: in the middle, at best, at worst
        "pace": np.quantile(paces, [0.5, 0.9, 0.1]).round(3).tolist(),
        "pairs": len(pairs),
        "sources": unseen.origin.nunique(),
        "mean_error": round(unseen.error.mean(), 4),
        "inside": int(unseen.inside.sum()),
    }
    return facts, unseen


# ---- what is shown of it ----


def page(facts: dict) -> str:
    """Write README.md with its counts."""
    counts = (
        "Fitted to {pairs} pairs of {sources} sources. Predicted from the other sources, a pair is "
        "off by {mean_error:.1%} in the mean, and {inside} of {pairs} lie in the range, which is "
        "{half_width:.1%} up and down."
    ).format(**facts)
    return with_section(PAGE.read_text(encoding="utf-8"), "counts", counts)


@plot
def drawn(axes: Axes, unseen: pd.DataFrame) -> None:
    """Draw each pair beside its prediction from all other sources."""
    finding(axes, "Each pair is predicted from other sources alone: on the line, it is right")
    for scaling, of in unseen.groupby("scaling"):
        axes.plot(of.predicted, of.measured, "o", label=scaling)
    axes.axline((1, 1), slope=1, color=GREY)
    axes.set(xlabel="predicted speed of FP8 over bf16", ylabel="measured")
    axes.legend()


def main() -> None:
    """Write what is fitted, the figure, and the page."""
    facts, unseen = fitted([pair for pair in read() if pair.calibrates])
    FITTED.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(facts), encoding="utf-8")
    (HERE / "left_out.png").write_bytes(to_png(drawn(unseen)))


if __name__ == "__main__":
    main()
