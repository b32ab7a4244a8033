"""Fit: how far real steps are from their rooflines, learned from pairs that were measured.

A roofline (experiments/profiling/features.py) is the least time that the hardware allows. A real
step takes longer, and its parts do so differently. `PARAMETERS` says by how much each part does,
measured by bf16 matmuls, whose own slowness cancels in a speed-up. scipy fits the parameters by
least squares on the logarithm of the speed-up. Each is also drawn to what was known of it before,
as if this were one more measurement.

Tried and left out, because groups that were left out were predicted no better with them: time that
tensor parallelism sends, FP8 all-gather, slower FP8 matmuls where a matrix is narrow, casts by rows
apart from others, and an efficiency of torchao's own.
"""

from collections.abc import Mapping
from functools import cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import OptimizeResult, approx_fprime, least_squares

from experiments.profiling import features, pairs

# Of each parameter: what was known before the fit, and how far off that may be.
PARAMETERS = {
    # times as far from its roofline as a bf16 matmul
    "attention": (1.7, 0.5),  # flash attention, which stays in bf16
    "element-wise": (1.5, 0.5),  # norms, RoPE, SwiGLU, loss
    # of a bf16 matmul's
    "efficiency tensorwise": (1.0, 0.2),  # FP8 matmuls, one scale
    "efficiency rowwise": (0.85, 0.2),  # FP8 matmuls, scales of rows
    # Bytes moved for each element that is cast. inductor counted 5.1 and, by rows, 7.4 in a block
    # of 8 B (results/LOG.md, "the CUDA path").
    "casts torchao": (6, 2),  # amax, cast and transposition, compiled
    "casts Transformer Engine": (3, 2),  # scales of earlier steps need no amax
    "casts hand-written": (3, 2),  # fused by hand into the kernels before
    # µs before and after each FP8 matmul: its scales, its launch
    "gap": (3, 5),
}
_NAMES = list(PARAMETERS)
_PRIOR, _SPREAD = np.array(list(PARAMETERS.values())).T
# Of a published speed-up, as a logarithm: by how much two reports of one thing differ
_NOISE = 0.05
SHARE = 0.8  # of left-out pairs that a range is to hold


# ---- from pairs to a table ----


def published() -> pd.DataFrame:
    """Put all pairs that calibrate into a table: rooflines, speed-up, and a step's seconds in bf16.

    Pairs that differ in nothing but the number of GPUs are one, with their median speed-up. Rows of
    a `group` are left out together.
    """
    found, sizes = pairs.read()
    alike = {}
    for pair in found:
        if pair.calibrates and pair.model in sizes:
            figures = {"name", "gpus", "bf16", "fp8", "ratio", "note", "passes"}
            alike.setdefault(pair.model_dump_json(exclude=figures), []).append(pair)
    rows = []
    for several in alike.values():
        pair = several[0]
        row = pair.model_dump(include={"name", "stack", "scaling", "billions"})
        row |= {"group": pair.group, "gpu": pair.gpu_key}
        row["speed_up"] = np.median([one.speed_up for one in several])
        if pair.unit == "tok/s/gpu":
            tokens = pair.batch * pair.sequence * pair.passes / pair.context_parallel
            row["bf16_s"] = tokens / pair.tensor_parallel / pair.bf16  # on one GPU
        rows.append(row | dict(features.of_pair(pair, sizes[pair.model])))
    return table(rows)


def table(rows: list[dict]) -> pd.DataFrame:
    """Put steps with their `stack` and `scaling` into a table, with the numbers of the parameters
    that are theirs."""
    made = pd.DataFrame(rows)
    scaling = np.where(made["scaling"] == "rowwise", "rowwise", "tensorwise")
    made["casts"] = ("casts " + made["stack"]).map(_NAMES.index)
    made["efficiency"] = [_NAMES.index(f"efficiency {name}") for name in scaling]
    return made


# ---- the time model ----


class Times(NamedTuple):
    """Seconds of both steps and of two parts, as if bf16 matmuls were at their roofline."""

    bf16: np.ndarray
    fp8: np.ndarray
    saved: np.ndarray  # by FP8 matmuls
    casts: np.ndarray


def times(parameters: np.ndarray, rows: Mapping[str, np.ndarray]) -> Times:
    """Work out how long both steps of each row of a table take."""
    value = dict(zip(_NAMES, parameters, strict=True))
    alike = value["attention"] * rows["attention"] + rows["optimizer"]
    alike += value["element-wise"] * rows["elementwise"]
    matmuls = rows["left"] + rows["fp8"] / parameters[rows["efficiency"]]
    casts = parameters[rows["casts"]] * rows["cast"] + 1e-6 * value["gap"] * rows["fp8_matmuls"]
    saved = rows["matmuls"] - matmuls
    return Times(rows["matmuls"] + alike, matmuls + alike + casts, saved, casts)


def log_speed_up(parameters: np.ndarray, rows: Mapping[str, np.ndarray]) -> np.ndarray:
    """Predict the logarithm of each row's speed-up."""
    both = times(parameters, rows)
    return np.log(both.bf16 / both.fp8)


def fit(rows: pd.DataFrame, start: np.ndarray = _PRIOR) -> OptimizeResult:
    """Fit the parameters, `x`; groups weigh the same however many rows they have."""
    columns = {name: rows[name].to_numpy() for name in rows}
    measured = np.log(columns["speed_up"])
    weight = rows.groupby("group")["name"].transform("size").to_numpy() ** -0.5 / _NOISE

    def residuals(parameters: np.ndarray) -> np.ndarray:
        errors = weight * (log_speed_up(parameters, columns) - measured)
        return np.concatenate([errors, (parameters - _PRIOR) / _SPREAD])

    return least_squares(residuals, start, loss="soft_l1", bounds=(0, np.inf))


# ---- how far off it is ----


def spread(found: OptimizeResult, rows: pd.DataFrame) -> np.ndarray:
    """Give the range of predictions that comes from parameters which the pairs hardly tell."""
    slopes = np.atleast_2d(approx_fprime(found.x, log_speed_up, 1e-6, rows))
    covariance = np.linalg.inv(found.jac.T @ found.jac)
    variance = np.einsum("ij,jk,ik->i", slopes, covariance, slopes)
    return NormalDist().inv_cdf((1 + SHARE) / 2) * np.sqrt(variance)


def leave_one_out(rows: pd.DataFrame, start: np.ndarray) -> pd.DataFrame:
    """Predict each group from all others: columns `predicted`, `spread` and `error`, the last two
    logarithms."""
    rows = rows.assign(predicted=np.nan, spread=np.nan)
    for group in rows["group"].unique():
        out = rows["group"] == group
        found = fit(rows[~out], start)
        rows.loc[out, "predicted"] = np.exp(log_speed_up(found.x, rows[out]))
        rows.loc[out, "spread"] = spread(found, rows[out])
    return rows.assign(error=np.log(rows["predicted"] / rows["speed_up"]))


def half_width(errors: pd.Series) -> float:
    """Give the range that holds `SHARE` of new errors, as a logarithm to either side.

    It is a quantile of errors of left-out groups; one more error than there are makes up for their
    small number.
    """
    share = min(1, SHARE * (1 + 1 / len(errors)))
    return float(np.quantile(errors.abs(), share, method="higher"))


class Fitted(NamedTuple):
    """The fit, and each row as it is predicted when its group is left out."""

    found: OptimizeResult
    rows: pd.DataFrame

    @property
    def parameters(self) -> np.ndarray:
        """The fitted parameters, in the order of `PARAMETERS`."""
        return self.found.x

    def half_width(self) -> float:
        """Give the range of torchao's predictions."""
        return half_width(self.rows.loc[self.rows["stack"] == "torchao", "error"])

    def widths(self, rows: pd.DataFrame, times_wider: float) -> np.ndarray:
        """Give the range of each new row of torchao's, as a logarithm to either side."""
        return np.hypot(times_wider * self.half_width(), spread(self.found, rows))

    def pace(self, gpu: str) -> float:
        """Give the part of a datasheet's peak that bf16 matmuls reach in torchao's steps: the
        median of those on this GPU, or else of all."""
        rows = self.rows[(self.rows["stack"] == "torchao") & self.rows["bf16_s"].notna()]
        here = rows[rows["gpu"] == gpu]
        rows = here if len(here) else rows
        return float((times(self.parameters, rows).bf16 / rows["bf16_s"]).median())

    def inside(self) -> pd.Series:
        """Tell which rows lie in the range that the stack's other groups give."""
        found = pd.Series(index=self.rows.index, dtype=bool)
        for (stack, group), rows in self.rows.groupby(["stack", "group"]):
            others = (self.rows["stack"] == stack) & (self.rows["group"] != group)
            width = np.hypot(half_width(self.rows.loc[others, "error"]), rows["spread"])
            found[rows.index] = rows["error"].abs() <= width
        return found


@cache
def fitted() -> Fitted:
    """Fit to all published pairs."""
    rows = published()
    found = fit(rows)
    return Fitted(found, leave_one_out(rows, found.x))
