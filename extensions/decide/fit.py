"""Fit the estimate to published pairs, and say how wrong it is on unseen sources.

    python -m extensions.decide.fit    # writes fitted.yaml and left_out.png

A pair has training speeds in bf16 and FP8 that others measured side by side: speedups.yaml.

Exit code: 0.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from matplotlib.axes import Axes

from analysis.plots.style import GREY, PanelDrawing, draw_panels, find_look, to_png, write_headline
from extensions.decide import read
from extensions.decide.model import HEAD
from extensions.decide.training import parts, share_of
from models.flops import Sizes
from models.gpus import GPUS, find, get_chip

HERE = Path(__file__).parent
SPEEDUPS = read("speedups.yaml")  # its fields are explained there


class NineDigits(yaml.SafeDumper):
    """Writes nine digits of a number, which are the same on every machine."""


NineDigits.add_representer(float, lambda to, value: to.represent_float(float(f"{value:.9g}")))

OUTSIDE, REFUSED = 2, 8  # times beyond what pairs cover: a range twice as wide; no estimate
INSIDE = 0.8  # of the errors on unseen sources, to lie within the range
# Of four factors: how much longer an FP8 matmul takes with scales of rows; the bytes moved for
# each element that is cast; how far from its roofline all is that stays in bf16; how much longer an
# FP8 matmul takes on another chip than Hopper. Stated before this fit's errors were seen: a factor
# begins at what its kernels need by count, and may be wrong by as much again (the first and last:
# by a whole matmul); a pair may be wrong by 5 %.
PRIOR, SPREAD, NOISE = np.array([0, 5, 1, 0]), np.array([1, 5, 1, 1]), 0.05
TUNED_CHIP = "Hopper"  # the chip of most pairs
PARTS = ["fp8_able", "rest", "cast"]
EXTENTS = ["parameters", "seq_len", "step_tokens"]
FEW = 10  # pairs or steps of a kind of GPU: too few for a quantile of their own
MARGIN = 1.2  # of a kind with few measured steps: as far as Hopper's best are from its middle
# What an answer says of a pair, or sorts pairs by
SHOWN = ["name", "model", "stack", "scaling", "gpu", "parameters", "speed_up", "figures", "source"]


# ---- pairs ----


def published() -> pd.DataFrame:
    """List all pairs, with FP8's speed over bf16's as `speed_up`.

    `gpu` is a key of `GPUS`; it and `chip` are NaN where they are not known.
    """
    table = pd.DataFrame([SPEEDUPS["absent"] | pair for pair in SPEEDUPS["pairs"]])
    table["gpu"] = [find(gpu) for gpu in table.gpu]
    ratio = table.ratio.fillna(table.fp8 / table.bf16)
    table["figures"] = [
        "" if np.isnan(pair.bf16) else f" ({pair.bf16:,.10g} and {pair.fp8:,.10g} {pair.unit})"
        for pair in table.itertuples()
    ]
    return table.assign(
        chip=table.gpu.map(get_chip, na_action="ignore"),
        parameters=table.billions * 1e9,
        step_tokens=table.batch * table.seq_len,
        speed_up=ratio.where(~table.lower_is_better, 1 / ratio),
    )


def fair(kind: str = "dense") -> pd.DataFrame:
    """List the fair pairs of a kind of model whose size and GPU are known."""
    table = published()
    has_facts = table.gpu.notna() & (table.parameters > 0)
    return table[has_facts & (table.kind == kind) & (table.fairness != "doubtful")]


def predictable() -> pd.DataFrame:
    """List the fair dense pairs with torchao whose step can be predicted, with the rooflines of
    their `PARTS`, and origins.

    None is split by tensor parallelism, and the rates of their GPUs are known. What is left out
    together has one origin: a repository, or a site's page.
    """
    table = fair()
    models = SPEEDUPS["models"]
    is_predictable = table.model.isin(models) & (table.step_tokens > 0)
    is_predictable &= table.gpu.map(lambda gpu: GPUS[gpu].bf16 is not None)
    table = table[is_predictable & (table["stack"] == "torchao") & (table.tensor_parallel == 1)]
    table = table.assign(frozen=0, sizes=[Sizes(**models[model]) for model in table.model])
    table["bf16_layers"] = [bf16_layers(pair) for pair in table.itertuples()]
    table["bf16_share"] = [share_of(pair.sizes, pair.bf16_layers) for pair in table.itertuples()]
    table[PARTS] = [parts(pair, pair.bf16_layers) for pair in table.itertuples()]
    origin = table.source.str.extract(r"(github\.com/[^/, ]+/[^/, ]+|[^, ]+)", expand=False)
    return table.assign(origin=origin)


def bf16_layers(pair) -> frozenset[str]:
    """Name the layers that a pair keeps in bf16: the head, if not told otherwise."""
    endings = tuple(pair.left_out) if isinstance(pair.left_out, list) else ()
    layers = {name for name in pair.sizes.linear_shapes() if endings and name.endswith(endings)}
    return frozenset(layers if pair.head_fp8 is True else layers | HEAD)


def calibrating() -> pd.DataFrame:
    """List the pairs that calibrate: `predictable` ones with the scalings of the recipes."""
    table = predictable()
    return table[table.scaling.isin(["tensorwise", "rowwise"])]


# ---- fit ----


def fit(pairs: pd.DataFrame) -> np.ndarray:
    """Fit four factors by least squares: the seconds of an FP8 step are linear in all of them.

    A source's pairs weigh as the root of their number.
    """
    n_of_source = pairs.groupby("origin").origin.transform("size")
    within = NOISE * (pairs.fp8_able + pairs.rest) / pairs.speed_up * n_of_source**0.5
    half, less = pairs.fp8_able / 2, 1 - 1 / pairs.speed_up
    terms = [
        half * (pairs.scaling == "rowwise"),
        pairs.cast,
        pairs.rest * less,
        half * (pairs.chip != TUNED_CHIP),
    ]
    weighted_terms = np.hstack([np.diag(1 / SPREAD), terms / within.to_numpy()])
    weighted_targets = np.concatenate([PRIOR / SPREAD, (half - pairs.fp8_able * less) / within])
    return np.linalg.lstsq(weighted_terms.T, weighted_targets)[0].round(3)


def step_factors(factors: np.ndarray, kind: str) -> list[list[float]]:
    """Give the factors of `PARTS` in steps of tensorwise and rowwise FP8, and of bf16."""
    rowwise, cast, rest_factor, other_chip = factors.tolist()
    matmul = 0.5 * (1 + other_chip * (kind != TUNED_CHIP))
    return [
        [matmul, rest_factor, cast],
        [matmul + 0.5 * rowwise, rest_factor, cast],
        [1, rest_factor, 0],
    ]


def predict(pairs: pd.DataFrame, factors: np.ndarray) -> pd.Series:
    """Predict the speed-up of each pair."""
    predicted = pd.Series(index=pairs.index, dtype=float)
    for kind, of_kind in pairs.groupby("chip"):
        seconds = [of_kind[PARTS] @ row for row in step_factors(factors, kind)]
        fp8 = seconds[0].where(of_kind.scaling == "tensorwise", seconds[1])
        predicted[of_kind.index] = seconds[2] / fp8
    return predicted


def limits(pairs: pd.DataFrame, times: float) -> dict[str, list[float]]:
    """Say from where to where a training may be, so many times outside of the pairs."""
    extents = pairs[EXTENTS].agg(["min", "max"])
    return extents.mul([1 / times, times], axis=0).to_dict("list")


def left_out(pairs: pd.DataFrame) -> pd.DataFrame:
    """Predict each source's pairs from all others', and whether they are within their range."""
    unseen = []
    for origin, of_origin in pairs.groupby("origin"):
        other_pairs = pairs[pairs.origin != origin]
        covered = of_origin.chip.isin(other_pairs.chip)
        for name, (lowest, highest) in limits(other_pairs, OUTSIDE).items():
            covered &= of_origin[name].between(lowest, highest)
        predicted = predict(of_origin, fit(other_pairs))
        unseen.append(of_origin.assign(predicted=predicted, wide=2 - covered))
    unseen = pd.concat(unseen).sort_index()
    unseen["error"] = np.log(unseen.predicted / unseen.speed_up).abs()
    widths = [half_width(unseen[unseen.origin != origin]) for origin in unseen.origin]
    return unseen.assign(inside=unseen.error <= widths * unseen.wide)


def half_width(unseen: pd.DataFrame) -> float:
    """Give the half of the range, a logarithm, that holds `INSIDE` of the errors."""
    return round(float(unseen.error.quantile(INSIDE, "higher")), 4)


def width_of_kind(pairs: pd.DataFrame, factors: np.ndarray, width: float) -> float:
    """Widen the half of the range of a kind of GPU with few pairs until it holds all of them, as
    they are and as trainings without recomputation."""
    if not 0 < len(pairs) < FEW:
        return width
    whole = pairs.assign(recompute="none")
    whole[PARTS] = [parts(pair, pair.bf16_layers) for pair in whole.itertuples()]
    all_pairs = pd.concat([pairs, whole])
    errors = np.log(predict(all_pairs.reset_index(), factors) / all_pairs.speed_up.to_numpy()).abs()
    return max(width, float(np.ceil(errors.max() * 1e4)) / 1e4)


# ---- a step's seconds ----


def roofline_rates(pairs: pd.DataFrame, factors: np.ndarray) -> pd.DataFrame:
    """List measured bf16 steps, with the part of the roofline's speed that each reached, `rate`."""
    table = pairs[pairs.unit == "tok/s/gpu"].drop_duplicates(["origin", "model", "gpu", "bf16"])
    seconds = table[PARTS] @ step_factors(factors, TUNED_CHIP)[2]
    return table.assign(rate=seconds * table.bf16 / table.step_tokens)


def rates_of_kind(rates: pd.DataFrame, kind: str) -> list[float]:
    """Give the rate of a kind of GPU: [in the middle, at best, at worst].

    Of a kind without measured steps, those of all others.
    """
    of_kind = rates[rates.chip == kind].rate
    if len(of_kind) >= FEW:
        rates_in_order = of_kind.quantile([0.5, 0.9, 0.1]).tolist()
    elif len(of_kind):
        rates_in_order = [of_kind.median(), of_kind.max() * MARGIN, of_kind.min() / MARGIN]
    else:
        rates_in_order = rates.rate.quantile([0.5, 0.9, 0.1]).tolist()
    return [round(rate, 3) for rate in rates_in_order]


def ranges(factors: list[list[float]], rate: list[float], half_width: float) -> list:
    """Give the factors of ranges, [value, low, high]: of a speed-up, and of the seconds that each
    of `PARTS` adds to a step, by recipe."""
    within = np.exp([0, -half_width, half_width])
    step_s = np.array(factors)[:, None] / np.array(rate)[:, None]
    step_s[:2] *= within[:, None]  # bf16 has no speed-up
    return [within.tolist(), step_s.tolist()]


# ---- write ----


def fitted(pairs: pd.DataFrame, unseen: pd.DataFrame) -> str:
    """Write fitted.yaml.

    `left_out` has the errors on unseen sources; `experts` and `formats` have what answers say of
    mixtures of experts, and of MXFP8 and NVFP4. The others are kinds of GPU. Of each kind:
    `ranges` as of that function, inside of what the pairs cover and outside; `n_steps_measured`,
    of bf16; `covered` and `answered`, [least, most] of a training for the first and for any range;
    `largest_bf16_share`, of the pairs; what models of a size gained, `told`; and the `pairs` that
    may be shown: torchao's where there are any, else those of other stacks, else those of other
    kinds.
    """
    factors, width, shown = fit(pairs), half_width(unseen), fair()
    rates = roofline_rates(predictable(), factors)
    covered = limits(pairs, OUTSIDE) | {"frozen": [0, 0]}
    answered, n_published = limits(pairs, REFUSED), len(published())
    kinds = {}
    for kind in sorted({gpu.chip for gpu in GPUS.values() if gpu.has_fp8_units}):
        of_kind = pairs[pairs.chip == kind]
        half = width_of_kind(of_kind, factors, width)
        rate = rates_of_kind(rates, kind)
        narrow, wide = (ranges(step_factors(factors, kind), rate, n * half) for n in (1, 2))
        unlike = 2 * (shown.chip != kind) + (shown["stack"] != "torchao")
        near = shown[unlike == unlike.min()]
        pairs_of_size = near  # of a kind without torchao's pairs, those of other stacks have a say
        if (near["stack"] == "torchao").all():
            # of a kind with few pairs, those with scales of rows have a say too
            scalings = ["tensorwise", "rowwise"] if 0 < len(of_kind) < FEW else ["tensorwise"]
            pairs_of_size = near[near.scaling.isin(scalings)]
        kinds[kind] = {
            "fitted_to": f"{len(pairs)} torchao pairs of {n_published}, {len(of_kind)} on {kind}",
            "ranges": [narrow if len(of_kind) else wide, wide],
            "n_steps_measured": int((rates.chip == kind).sum()),
            "covered": covered,
            "largest_bf16_share": float(pairs.bf16_share.max()),
            "answered": answered,
            "told": pairs_of_size[["parameters", "speed_up"]].to_numpy().tolist(),
            "pairs": near[SHOWN].to_dict("records"),
        }
    errors = {
        "sources": unseen.origin.nunique(),
        "pairs": len(pairs),
        "half_width": width,
        "mean_error": float(unseen.error.mean()),
        "inside": int(unseen.inside.sum()),
    }
    content = {"left_out": errors, "experts": expert_pairs(), "formats": format_pairs(), **kinds}
    return yaml.dump(
        content, Dumper=NineDigits, default_flow_style=None, sort_keys=False, width=999
    )


def expert_pairs() -> dict:
    """Sum up the pairs of mixtures of experts."""
    pairs = published()
    pairs = pairs[(pairs.kind == "experts") & (pairs.fairness != "doubtful")]
    return {
        "count": len(pairs),
        "low": float(pairs.speed_up.min()),
        "high": float(pairs.speed_up.max()),
        "pairs": fair("experts")[SHOWN].to_dict("records"),
    }


def format_pairs() -> dict[str, list[dict]]:
    """List the pairs of MXFP8; and those of NVFP4, with MXFP8 where it was measured beside them."""
    shown = fair()
    mxfp8 = shown[shown.scaling == "mxfp8"]
    nvfp4 = shown[shown.scaling == "nvfp4"]
    mxfp8_of_nvfp4 = mxfp8[mxfp8.bf16.isin(nvfp4.bf16)]
    return {
        "mxfp8": mxfp8[SHOWN].to_dict("records"),
        "nvfp4": pd.concat([nvfp4, mxfp8_of_nvfp4])[SHOWN].to_dict("records"),
    }


@PanelDrawing
def draw_predictions(axes: Axes, unseen: pd.DataFrame) -> None:
    """Draw each pair's measured speed-up over the one predicted from all other sources."""
    for scaling, pairs_of_scaling in unseen.groupby("scaling"):
        look = find_look(f"{scaling}_fp8_compiled")
        axes.plot(
            pairs_of_scaling.predicted,
            pairs_of_scaling.speed_up,
            look.marker,
            color=look.colour,
            label=look.name,
        )
    axes.axline((1, 1), slope=1, color=GREY)
    axes.set(xlabel="predicted speed of FP8 over bf16", ylabel="measured")
    axes.legend()
    write_headline(
        axes,
        f"For sources that it was not fitted to, decide is off by {unseen.error.mean():.1%} on "
        f"average ({len(unseen)} pairs)",
    )


if __name__ == "__main__":
    pairs = calibrating()
    unseen = left_out(pairs)
    (HERE / "fitted.yaml").write_text(fitted(pairs, unseen), encoding="utf-8")
    figure = draw_panels([(draw_predictions, unseen)], (8, 4))
    (HERE / "left_out.png").write_bytes(to_png(figure))
