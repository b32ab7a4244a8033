"""Fit the estimate to published pairs, and say how wrong it is on unseen sources.

    python -m extensions.decide.tests.fit    # writes fitted.yaml and left_out.png

A pair has training speeds in bf16 and FP8 that others measured side by side: speedups.yaml.

Exit code: 0.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from matplotlib.axes import Axes

from analysis.plots.style import GREY, finding, plot, to_png
from extensions.decide import read
from extensions.decide.answer import parts
from models.flops import Sizes
from models.gpus import GPUS, chip, find

HERE = Path(__file__).parents[1]
SPEEDUPS = read("speedups.yaml")  # its fields are explained there


class NineDigits(yaml.SafeDumper):
    """Writes nine digits of a number, which are the same on every machine."""


NineDigits.add_representer(float, lambda to, value: to.represent_float(float(f"{value:.9g}")))

OUTSIDE, REFUSED = 2, 8  # times beyond what pairs cover: a range twice as wide; no estimate
INSIDE = 0.8  # of the errors on unseen sources, to lie within the range
# Of three factors: how much longer an FP8 matmul takes with scales of rows, the bytes moved for
# each element that is cast, and how far from its roofline all is that stays in bf16. Stated before
# this fit's errors were seen: a factor begins at what its kernels need by count, and may be wrong
# by as much again (the first: by a whole matmul); a pair may be wrong by 5 %.
PRIOR, SPREAD, NOISE = np.array([0, 5, 1]), np.array([1, 5, 1]), 0.05
PARTS = ["fp8_able", "rest", "cast"]
EXTENTS = ["parameters", "seq_len", "step_tokens"]
# What an answer says of a pair, or sorts pairs by
SHOWN = ["name", "model", "stack", "scaling", "gpu", "parameters", "speed_up", "source"]


def published() -> pd.DataFrame:
    """List all pairs, with FP8's speed over bf16's as `speed_up`.

    `gpu` is a key of `GPUS`; it and `chip` are NaN where they are not known.
    """
    table = pd.DataFrame([SPEEDUPS["absent"] | pair for pair in SPEEDUPS["pairs"]])
    table["gpu"] = [find(gpu) for gpu in table.gpu]
    ratio = table.ratio.fillna(table.fp8 / table.bf16)
    return table.assign(
        chip=table.gpu.map(chip, na_action="ignore"),
        parameters=table.billions * 1e9,
        step_tokens=table.batch * table.seq_len,
        speed_up=ratio.where(~table.lower_is_better, 1 / ratio),
    )


def fair() -> pd.DataFrame:
    """List the fair pairs of dense models whose size and GPU are known."""
    table = published()
    known = table.gpu.notna() & (table.parameters > 0)
    return table[known & (table.kind == "dense") & (table.fairness != "doubtful")]


def calibrating() -> pd.DataFrame:
    """List the pairs that calibrate, with the rooflines of their `PARTS`, and origins.

    They are as the recipes are, and not split by tensor parallelism. What is left out together has
    one origin: a repository, or a site's page.
    """
    table, models = fair(), SPEEDUPS["models"]
    alike = (table["stack"] == "torchao") & table.scaling.isin(["tensorwise", "rowwise"])
    known = table.model.isin(models) & (table.step_tokens > 0)
    table = table[alike & known & (table.tensor_parallel == 1)].assign(frozen=0)
    table["sizes"] = [Sizes(**models[model]) for model in table.model]
    table[PARTS] = [parts(pair) for pair in table.itertuples()]
    origin = table.source.str.extract(r"(github\.com/[^/, ]+/[^/, ]+|[^, ]+)", expand=False)
    return table.assign(origin=origin)


def fit(pairs: pd.DataFrame) -> list[list[float]]:
    """Fit three factors by least squares: the seconds of an FP8 step are linear in all of them.

    A source's pairs weigh as the root of their number. Returns the factors of `PARTS` in steps of
    tensorwise and rowwise FP8, and of bf16.
    """
    alike = pairs.groupby("origin").origin.transform("size")
    within = NOISE * (pairs.fp8_able + pairs.rest) / pairs.speed_up * alike**0.5
    half, less = pairs.fp8_able / 2, 1 - 1 / pairs.speed_up
    terms = [half * (pairs.scaling == "rowwise"), pairs.cast, pairs.rest * less]
    left = np.hstack([np.diag(1 / SPREAD), terms / within.to_numpy()])
    right = np.concatenate([PRIOR / SPREAD, (half - pairs.fp8_able * less) / within])
    rowwise, cast, rest = np.linalg.lstsq(left.T, right)[0].round(3).tolist()
    return [[0.5, rest, cast], [0.5 + rowwise / 2, rest, cast], [1, rest, 0]]


def predict(pairs: pd.DataFrame, factors: list[list[float]]) -> pd.Series:
    """Predict the speed-up of each pair."""
    tensorwise, rowwise, bf16 = (pairs[PARTS] @ factors_of for factors_of in factors)
    return bf16 / tensorwise.where(pairs.scaling == "tensorwise", rowwise)


def limits(pairs: pd.DataFrame, times: float) -> dict[str, list[float]]:
    """Say from where to where a training may be, so many times outside of the pairs."""
    ends = pairs[EXTENTS].agg(["min", "max"])
    return ends.mul([1 / times, times], axis=0).to_dict("list")


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
    return round(float(unseen.error.quantile(INSIDE, "higher")), 4)


def ranges(factors: list[list[float]], rate: list[float], half_width: float) -> list:
    """Give the factors of ranges, [value, low, high]: of a speed-up, and of the seconds that each
    of `PARTS` adds to a step, by recipe."""
    within = np.exp([0, -half_width, half_width])
    step_s = np.array(factors)[:, None] / np.array(rate)[:, None]
    step_s[:2] *= within[:, None]  # bf16 has no speed-up
    return [within.tolist(), step_s.tolist()]


def fitted(pairs: pd.DataFrame, unseen: pd.DataFrame) -> str:
    """Write fitted.yaml.

    `left_out` has the errors on unseen sources, the others are kinds of GPU. Of each kind:
    `ranges` as of that function, inside of what the pairs cover and outside; `covered` and
    `answered`, [least, most] of a training for the first and for any range; what a size of model
    gained with tensorwise torchao, `told`; and the `pairs` that may be shown: torchao's where there
    are any, else those of other stacks, else those of other kinds.
    """
    factors, told = fit(pairs), pairs[pairs.unit == "tok/s/gpu"]
    # the part of its roofline's speed that bf16 reached: in the middle, at best, at worst
    rate = told[PARTS] @ factors[2] * told.bf16 / told.step_tokens
    rates, width = rate.quantile([0.5, 0.9, 0.1]).round(3).tolist(), half_width(unseen)
    narrow, wide = (ranges(factors, rates, times * width) for times in (1, 2))
    covered = limits(pairs, OUTSIDE) | {"frozen": [0, 0]}
    answered, every, shown = limits(pairs, REFUSED), len(published()), fair()
    errors = {
        "sources": unseen.origin.nunique(),
        "pairs": len(pairs),
        "half_width": width,
        "mean_error": float(unseen.error.mean()),
        "inside": int(unseen.inside.sum()),
    }
    found = {"left_out": errors}
    for kind in sorted({gpu.chip for gpu in GPUS.values()}):
        count = sum(pairs.chip == kind)
        unlike = 2 * (shown.chip != kind) + (shown["stack"] != "torchao")
        near = shown[unlike == unlike.min()]
        alike = near[(near["stack"] == "torchao") & (near.scaling == "tensorwise")]
        found[kind] = {
            "fitted_to": f"{len(pairs)} torchao pairs of {every}, {count} on {kind}",
            "ranges": [narrow if count else wide, wide],
            "covered": covered,
            "answered": answered,
            "told": alike[["parameters", "speed_up"]].to_numpy().tolist(),
            "pairs": near[SHOWN].to_dict("records"),
        }
    return yaml.dump(found, Dumper=NineDigits, default_flow_style=None, sort_keys=False, width=999)


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
    (HERE / "fitted.yaml").write_text(fitted(pairs, unseen), encoding="utf-8")
    (HERE / "left_out.png").write_bytes(to_png(drawn(unseen)))
