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

from functools import cache
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import approx_fprime, least_squares
from scipy.stats import norm

from experiments.profiling import features, pairs
from models.gpus import chip

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
# What a fitted table has of each pair, besides its rooflines
_OF_PAIR = (
    "name",
    "group",
    "alike",
    "stack",
    "scaling",
    "billions",
    "gpu_key",
    "gpus",
    "chip",
    "bf16_s",
    "speed_up",
)
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
    found = [pair for pair in pairs.read() if pair.calibrates]
    known = pd.DataFrame(map(attrgetter(*_OF_PAIR), found), columns=_OF_PAIR)
    rows = with_parameters(known.join(pd.DataFrame(map(features.of_pair, found))))
    rows["speed_up"] = rows.groupby("alike")["speed_up"].transform("median")
    return rows.drop_duplicates("alike", ignore_index=True)


def with_parameters(rows: pd.DataFrame) -> pd.DataFrame:
    """Add to steps with their `stack` and `scaling` the numbers of the parameters that are
    theirs."""
    scaling = rows["scaling"].where(rows["scaling"] == "rowwise", "tensorwise")
    return rows.assign(
        casts=("casts " + rows["stack"]).map(_NAMES.index),
        efficiency=("efficiency " + scaling).map(_NAMES.index),
    )


# ---- the time model ----


class Times(NamedTuple):
    """Seconds of both steps and of two parts, as if bf16 matmuls were at their roofline."""

    bf16: pd.Series
    fp8: pd.Series
    saved: pd.Series  # by FP8 matmuls
    casts: pd.Series


def times(parameters: np.ndarray, rows: pd.DataFrame | np.recarray) -> Times:
    """Work out how long both steps of each row of a table take."""
    attention, elementwise, *_, gap = parameters
    alike = attention * rows["attention"] + rows["optimizer"] + elementwise * rows["elementwise"]
    matmuls = rows["left"] + rows["fp8"] / parameters[rows["efficiency"]]
    casts = parameters[rows["casts"]] * rows["cast"] + 1e-6 * gap * rows["fp8_matmuls"]
    saved = rows["matmuls"] - matmuls
    return Times(rows["matmuls"] + alike, matmuls + alike + casts, saved, casts)


def log_speed_up(parameters: np.ndarray, rows: pd.DataFrame | np.recarray) -> np.ndarray:
    """Predict the logarithm of each row's speed-up."""
    both = times(parameters, rows)
    return np.log(both.bf16 / both.fp8)


class TimeModel(NamedTuple):
    """The time model, fitted to the rows of a table."""

    parameters: np.ndarray  # in the order of `PARAMETERS`
    covariance: np.ndarray
    rows: pd.DataFrame  # those of `fitted` with the columns of `leave_one_out`

    def spread(self, rows: pd.DataFrame) -> np.ndarray:
        """Give the range of predictions that comes from parameters which the pairs hardly tell."""
        slopes = approx_fprime(self.parameters, log_speed_up, 1e-6, rows)
        variance = np.diag(np.atleast_2d(slopes @ self.covariance @ slopes.T))
        return norm.interval(SHARE)[1] * np.sqrt(variance)

    @property
    def torchao(self) -> pd.DataFrame:
        """The rows of torchao's."""
        return self.rows[self.rows["stack"] == "torchao"]

    def half_width(self) -> float:
        """Give the range of torchao's predictions."""
        return half_width(self.torchao["error"])

    def pace(self, gpu: str, gpus: int) -> float:
        """Give the part of a datasheet's peak that bf16 matmuls reach in torchao's steps: the
        median of those on this chip, and of them those on one GPU or on several as here."""
        rows = self.torchao.dropna(subset="bf16_s")
        unlike = 2 * (rows["chip"] != chip(gpu)) + ((rows["gpus"] == 1) != (gpus == 1))
        rows = rows[unlike == unlike.min()]
        return float((times(self.parameters, rows).bf16 / rows["bf16_s"]).median())

    def inside(self) -> pd.Series:
        """Tell which rows lie in the range that the stack's other groups give."""
        found = []
        for (stack, group), rows in self.rows.groupby(["stack", "group"]):
            others = (self.rows["stack"] == stack) & (self.rows["group"] != group)
            width = np.hypot(half_width(self.rows.loc[others, "error"]), rows["spread"])
            found.append(rows["error"].abs() <= width)
        return pd.concat(found)


def fit(rows: pd.DataFrame, start: np.ndarray = _PRIOR) -> TimeModel:
    """Fit the parameters; groups weigh the same however many rows they have."""
    weight = rows.groupby("group")["name"].transform("size").to_numpy() ** -0.5 / _NOISE
    columns = rows.to_records()  # many times faster to compute with

    def residuals(parameters: np.ndarray) -> np.ndarray:
        errors = weight * (log_speed_up(parameters, columns) - np.log(columns["speed_up"]))
        return np.concatenate([errors, (parameters - _PRIOR) / _SPREAD])

    found = least_squares(residuals, start, loss="soft_l1", bounds=(0, np.inf))
    return TimeModel(found.x, np.linalg.inv(found.jac.T @ found.jac), rows)


# ---- how far off it is ----


def leave_one_out(rows: pd.DataFrame, start: np.ndarray) -> pd.DataFrame:
    """Predict each group from all others: columns `predicted`, `spread` and `error`, the last two
    logarithms."""
    left_out = []
    for _, out in rows.groupby("group", sort=False):
        found = fit(rows.drop(out.index), start)
        predicted = np.exp(log_speed_up(found.parameters, out))
        left_out.append(out.assign(predicted=predicted, spread=found.spread(out)))
    rows = pd.concat(left_out).sort_index()
    return rows.assign(error=np.log(rows["predicted"] / rows["speed_up"]))


def half_width(errors: pd.Series) -> float:
    """Give the range that holds `SHARE` of new errors, as a logarithm to either side.

    It is a quantile of errors of left-out groups; one more error than there are makes up for their
    small number.
    """
    share = min(1, SHARE * (1 + 1 / len(errors)))
    return float(errors.abs().quantile(share, interpolation="higher"))


@cache
def fitted() -> TimeModel:
    """Fit to all published pairs."""
    found = fit(published())
    return found._replace(rows=leave_one_out(found.rows, found.parameters))
