"""Fit: how far real steps are from their rooflines, learned from pairs that were measured.

A roofline (experiments/profiling/features.py) is the least time that the hardware allows. A real
step takes longer, and its parts do so differently. `PARAMETERS` says by how much each part does,
measured by bf16 matmuls, whose own slowness cancels in a speed-up. scipy fits the parameters by
least squares on the logarithm of the speed-up. Each is also drawn to what was known of it before,
as if this were one more measurement.

Tried and left out, because groups that were left out were predicted no better with them: time that
tensor parallelism sends, FP8 all-gather, and slower FP8 matmuls where a matrix is narrow.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import OptimizeResult, approx_fprime, least_squares

from experiments.profiling import features, pairs
from experiments.profiling.features import Step


class Parameter(NamedTuple):
    """What was known before the fit, and how far off that may be."""

    prior: float
    spread: float
    unit: str
    meaning: str


_TIMES = "times as far from its roofline as a bf16 matmul"
_BYTES = "bytes moved for each element that is cast"
PARAMETERS = {
    "attention": Parameter(1.7, 0.5, _TIMES, "flash attention, which stays in bf16"),
    "element-wise": Parameter(1.5, 0.5, _TIMES, "norms, RoPE, SwiGLU, loss"),
    "efficiency tensorwise": Parameter(1.0, 0.2, "of a bf16 matmul's", "FP8 matmuls, one scale"),
    "efficiency rowwise": Parameter(0.85, 0.2, "of a bf16 matmul's", "FP8 matmuls, scales of rows"),
    # inductor counted 5.1 and 7.4 in a block of 8 B (results/LOG.md, "the CUDA path counted")
    "casts torchao tensorwise": Parameter(5.1, 2, _BYTES, "amax, cast and transposition, compiled"),
    "casts torchao rowwise": Parameter(7.4, 2, _BYTES, "the same by rows and columns"),
    "casts Transformer Engine": Parameter(3, 2, _BYTES, "scales of earlier steps need no amax"),
    "casts hand-written": Parameter(3, 2, _BYTES, "fused by hand into the kernels before"),
    "gap": Parameter(3, 5, "µs", "before and after each FP8 matmul: its scales, its launch"),
}
_NAMES = list(PARAMETERS)
_PRIOR = np.array([parameter.prior for parameter in PARAMETERS.values()])
_SPREAD = np.array([parameter.spread for parameter in PARAMETERS.values()])
_NOISE = (
    0.05  # of a published speed-up, as a logarithm: by how much two reports of one thing differ
)
SHARE = 0.8  # of left-out pairs that a range is to hold


class Observation(NamedTuple):
    """A measured speed-up with the rooflines of its steps; those of a `group` are left out
    together."""

    name: str
    group: tuple
    stack: str
    scaling: str
    gpu: str  # a key of models.gpus.GPUS
    step: Step
    speed_up: float
    bf16_s: float | None = None  # measured, of a bf16 step on one GPU


# ---- from pairs to a table ----


@cache
def published() -> tuple[Observation, ...]:
    """Make the observations of all pairs that calibrate.

    Pairs that differ in nothing but the number of GPUs are one, with their median speed-up.
    """
    found, sizes = pairs.read()
    alike = {}
    for pair in found:
        if pair.calibrates and pair.model in sizes:
            figures = {"name", "gpus", "bf16", "fp8", "ratio", "note", "passes"}
            alike.setdefault(pair.model_dump_json(exclude=figures), []).append(pair)
    return tuple(_observation(several, sizes) for several in alike.values())


def _observation(several: list[pairs.Pair], sizes: dict[str, pairs.Sizes]) -> Observation:
    pair = several[0]
    speed_up = float(np.median([one.speed_up for one in several]))
    step, bf16_s = features.of_pair(pair, sizes[pair.model]), None
    if pair.unit == "tok/s/gpu":
        tokens = pair.batch * pair.sequence * pair.passes / pair.context_parallel
        bf16_s = tokens / pair.tensor_parallel / pair.bf16
    return Observation(
        pair.name, pair.group, pair.stack, pair.scaling, pair.gpu_key, step, speed_up, bf16_s
    )  # fmt: skip


def table(observations: Iterable[Observation]) -> pd.DataFrame:
    """Put observations into rows, with the numbers of the parameters that are theirs."""
    rows = pd.DataFrame([o._asdict() | asdict(o.step) for o in observations])
    rowwise = rows["scaling"] == "rowwise"
    scaling = np.where(rowwise, "rowwise", "tensorwise")
    casts = "casts " + rows["stack"] + np.where(rows["stack"] == "torchao", " " + scaling, "")
    rows["casts"] = casts.map(_NAMES.index)
    rows["efficiency"] = [_NAMES.index(f"efficiency {name}") for name in scaling]
    return rows.drop(columns="step")


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


def leave_one_out(rows: pd.DataFrame, start: np.ndarray = _PRIOR) -> pd.DataFrame:
    """Predict each group from all others: columns `predicted` and `error`, a logarithm."""
    rows = rows.assign(predicted=np.nan)
    for group in rows["group"].unique():
        out = rows["group"] == group
        rows.loc[out, "predicted"] = np.exp(log_speed_up(fit(rows[~out], start).x, rows[out]))
    return rows.assign(error=np.log(rows["predicted"] / rows["speed_up"]))


def half_width(errors: pd.Series) -> float:
    """Give the range that holds `SHARE` of new errors, as a logarithm to either side.

    It is a quantile of errors of left-out groups; one more error than there are makes up for their
    small number.
    """
    share = min(1, SHARE * (1 + 1 / len(errors)))
    return float(np.quantile(errors.abs(), share, method="higher"))


class Fitted(NamedTuple):
    """The fitted parameters and their covariance, and each row as it is predicted when its group is
    left out."""

    parameters: np.ndarray
    covariance: np.ndarray
    rows: pd.DataFrame

    def half_width(self, stack: str = "torchao") -> float:
        """Give the range of a stack's predictions."""
        return half_width(self.rows.loc[self.rows["stack"] == stack, "error"])

    def widths(self, rows: pd.DataFrame, times_wider: float = 1) -> np.ndarray:
        """Give the range of new rows, wider where parameters matter that the pairs hardly tell."""
        slopes = approx_fprime(self.parameters, log_speed_up, 1e-6, rows)
        spread = np.sqrt(np.einsum("ij,jk,ik->i", slopes, self.covariance, slopes))
        return np.hypot(
            times_wider * self.half_width(), NormalDist().inv_cdf((1 + SHARE) / 2) * spread
        )

    def pace(self, gpu: str) -> float:
        """Give the part of a datasheet's peak that bf16 matmuls reach in torchao's steps: the
        median of those on this GPU, or else of all."""
        rows = self.rows[(self.rows["stack"] == "torchao") & self.rows["bf16_s"].notna()]
        here = rows[rows["gpu"] == gpu]
        rows = here if len(here) else rows
        return float((times(self.parameters, rows).bf16 / rows["bf16_s"]).median())

    def by_stack(self) -> pd.DataFrame:
        """Summarize the errors of left-out groups: pairs, share inside the range, mean errors."""
        found = {}
        for stack, rows in self.rows.groupby("stack"):
            inside = rows["error"].abs() <= self._range_without(stack, rows)
            found[stack] = {
                "pairs": len(rows),
                "inside": inside.mean(),
                "mean error": np.expm1(rows["error"].mean()),
                "mean absolute error": np.expm1(rows["error"].abs().mean()),
                "range": np.expm1(self.half_width(stack)),
            }
        return pd.DataFrame.from_dict(found, orient="index")

    def _range_without(self, stack: str, rows: pd.DataFrame) -> pd.Series:
        """Give each row's range from the errors of the stack's other groups."""
        widths = {g: half_width(rows.loc[rows["group"] != g, "error"]) for g in set(rows["group"])}
        return rows["group"].map(widths)


def fitted(own: Iterable[Observation] = ()) -> Fitted:
    """Fit to all published pairs and to `own` measurements."""
    rows = table([*published(), *own])
    found = fit(rows)
    covariance = np.linalg.inv(found.jac.T @ found.jac)
    return Fitted(found.x, covariance, leave_one_out(rows, found.x))
