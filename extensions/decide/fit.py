"""Fit the estimate to published pairs, and say how wrong it is on unseen sources.

    python -m extensions.decide.fit    # writes fitted.json, left_out.png, and README's counts

An answer takes all that is fitted from fitted.json. Exit code: 0.
"""

import json
from collections import Counter

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.plots.style import GREY, finding, panels, plot, to_png
from analysis.readme import with_section
from experiments.config.recipes import ROOT
from extensions.decide.answer import FITTED, beyond
from extensions.decide.pairs import HERE, Pair, read
from extensions.decide.step import Factors, bf16_s, speed_up, work

INSIDE = 0.8  # of the errors on unseen sources, to lie within the range
# Stated before any error was seen: a factor begins at what its kernels need by count, and may be
# wrong by as much again (`rowwise`: by a whole matmul); a pair may be wrong by 5 %.
PRIOR, SPREAD, NOISE = np.array([0, 5, 1]), np.array([1, 5, 1]), 0.05
PAGE = HERE / "README.md"
SIZE = (8.4, 5.2)  # inches


def fit(pairs: list[Pair]) -> Factors:
    """Fit by least squares: the seconds of an FP8 step are linear in all factors.

    A source's pairs weigh as the root of their number.
    """
    many = Counter(pair.origin for pair in pairs)
    left, right = [np.diag(1 / SPREAD)], [PRIOR / SPREAD]
    for pair in pairs:
        parts, ratio = work(pair.sizes, pair), pair.speed_up
        matmuls, half = parts.fp8_able + parts.head, parts.fp8_able / 2
        seconds = bf16_s(Factors(*PRIOR), parts) / ratio
        weight = many[pair.origin] ** -0.5 / (NOISE * seconds)
        terms = [half * (pair.scaling == "rowwise"), parts.cast, parts.rest * (1 - 1 / ratio)]
        left.append(weight * np.array([terms]))
        right.append([weight * (matmuls / ratio - matmuls + half)])
    found = np.linalg.lstsq(np.vstack(left), np.concatenate(right))[0]
    return Factors(*found.round(3).tolist())


def left_out(pairs: list[Pair]) -> pd.DataFrame:
    """Predict each source's pairs from all others', and whether they are within their range."""
    rows = []
    for pair in pairs:
        others = [other for other in pairs if other.origin != pair.origin]
        predicted = speed_up(fit(others), work(pair.sizes, pair), pair.scaling == "rowwise")
        wide = 2 if beyond(pair.sizes, pair, others) else 1
        rows.append([pair.origin, pair.scaling, pair.speed_up, predicted, wide])
    found = pd.DataFrame(rows, columns=["origin", "scaling", "measured", "predicted", "wide"])
    found["error"] = np.log(found.predicted / found.measured).abs()
    found["half_width"] = [half_width(found.error[found.origin != own]) for own in found.origin]
    found["inside"] = found.error <= found.half_width * found.wide
    return found


def half_width(errors: pd.Series) -> float:
    """Give the half of the range, a logarithm, that holds `INSIDE` of the errors."""
    return round(errors.quantile(INSIDE, "higher"), 4)


def fitted() -> tuple[dict, pd.DataFrame]:
    """Fit to all pairs; returns what fitted.json holds, and the left-out pairs."""
    pairs = [pair for pair in read() if pair.calibrates]
    factors, unseen, paces = fit(pairs), left_out(pairs), []
    for pair in pairs:
        if pair.unit == "tok/s/gpu":
            measured = pair.batch * pair.sequence / pair.bf16
            paces.append(bf16_s(factors, work(pair.sizes, pair)) / measured)
    facts = {
        "factors": factors._asdict(),
        "half_width": half_width(unseen.error),
        "pace": np.quantile(paces, [0.5, 0.1, 0.9])[[0, 2, 1]].round(3).tolist(),
        "pairs": len(pairs),
        "sources": unseen.origin.nunique(),
        "mean_error": round(unseen.error.mean(), 4),
        "inside": int(unseen.inside.sum()),
    }
    return facts, unseen


@plot
def published(axes: Axes, pairs: list[Pair]) -> None:
    """Draw the fair pairs over the sizes of their models, in their stacks' colours."""
    fair = [pair for pair in pairs if pair.fairness != "doubtful" and pair.billions]
    finding(axes, "Speeds that others measured: FP8 gains more the larger the model")
    axes.axhline(1, color=GREY)
    for stack in sorted({pair.stack for pair in fair}):
        sizes, ratios = zip(
            *[(p.billions, p.speed_up) for p in fair if p.stack == stack], strict=True
        )
        axes.plot(sizes, ratios, "o", label=stack)
    axes.set(xlabel="parameters, billions", ylabel="speed of FP8 over bf16", xscale="log")
    axes.legend()


@plot
def drawn(axes: Axes, unseen: pd.DataFrame) -> None:
    """Draw each pair beside its prediction from all other sources."""
    finding(axes, "Each pair is predicted from other sources alone: on the line, it is right")
    axes.plot([0.85, 1.6], [0.85, 1.6], color=GREY)
    for scaling, pairs in unseen.groupby("scaling"):
        axes.plot(pairs.predicted, pairs.measured, "o", label=scaling)
    axes.set(xlabel="predicted speed of FP8 over bf16", ylabel="measured")
    axes.legend()


def page(facts: dict) -> str:
    """Write README.md with its counts."""
    counts = (
        "Fitted to {pairs} pairs of {sources} sources. Predicted from the other sources, a pair is "
        "off by {mean_error:.1%} in the mean, and {inside} of {pairs} lie in the range, which is "
        "{half_width:.1%} up and down."
    ).format(**facts)
    return with_section(PAGE.read_text(encoding="utf-8"), "counts", counts)


def main() -> None:
    """Write what is fitted, the figure, and the page."""
    facts, unseen = fitted()
    FITTED.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(facts), encoding="utf-8")
    (HERE / "left_out.png").write_bytes(to_png(panels([(drawn, unseen)], SIZE)))
    (ROOT / "docs/figures/speedups_published.png").write_bytes(
        to_png(panels([(published, read())], SIZE))
    )


if __name__ == "__main__":
    main()
