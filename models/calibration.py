"""What FP8 gains over compiled bf16: floors (models/floors.py), calibrated by pairs of runs that
were measured.

Floors alone promise too much, 1.4 to 1.5 times at 8 B, and the same for both scalings: tensorwise
was measured at 1.24 to 1.29, and rowwise at 1.04 to 1.10. They lack two things, which change
differently with the size of a model:

* Casts read and write more than they must: a scale needs the largest value first, so a tensor is
read twice. This is
  counted and not fitted: `CAST_BYTES` an element. Beside the matmuls it is less, the larger the
  matrices are, and it is why small models lose with FP8.
* FP8 matmuls reach a smaller part of their peak than bf16 matmuls do of theirs; rowwise ones,
whose kernel multiplies
  each row and column by its scale, a still smaller one. `efficiency` is the relation of those two
  parts. It is the one number that is fitted, for each scaling, by least squares of the logarithm of
  the speed-up.

A measured bf16 step takes about twice its floor. All parts are taken to do so alike; then the
factor cancels in a speed-up. Communication is taken to grow and shrink with the step, as if it were
hidden to the same part as in the anchors; a network that is slow beside its GPUs is not among them.

How far off this may be is tried on the anchors themselves: each is predicted from the others, and
`error` is the largest deviation. All published anchors have 8 B parameters, for which it would do
as well to put everything down to casts, or everything to the efficiency. What tells these apart is
a smaller model, nanochat's d26 (see tests/profiling/test_decide.py): all casts predict it 8 to 10 %
too slow, all efficiency 4 to 13 % too fast, and this within 5 %. In models that are smaller still,
gaps between kernels, which no floor has, hold FP8 up more than bf16, because it has more kernels.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from models import flops
from models.floors import CASTS, MATMUL_FP8, OPTIMIZER, Work, step_floors
from models.gpus import Rates

# Bytes for each element of an FP8 layer's input, weight and gradient of its output, beyond the
# floor of casts. Inductor counted 5.99 (tensorwise) and 7.27 GB (rowwise) in a block of 8 B at
# 4,096 tokens, and 2.15 in bf16; the floor of its casts is 1.02 GB, and it has 554 M elements.
# These are torchao's layers, which the anchors ran too (results/LOG.md, "the CUDA path counted, not
# timed").
CAST_BYTES = {"tensorwise": 5.1, "rowwise": 7.4}
_EFFICIENCIES = np.geomspace(0.05, 20, 6000)  # steps of 0.1 %


@dataclass(frozen=True)
class Pair:
    """Seconds of a step by floors: all of bf16's; FP8's matmuls, its casts as counted, and the
    rest of its step."""

    bf16: float
    matmuls: float
    casts: float
    rest: float

    def speed_up(self, efficiency):
        """Tokens/s in FP8 over those in bf16."""
        return self.bf16 / (self.rest + self.casts + self.matmuls / efficiency)

    def saved(self, efficiency: float) -> float:
        """The part of a bf16 step that FP8 matmuls save."""
        return (self.bf16 - self.rest - self.matmuls / efficiency) / self.bf16


@dataclass(frozen=True)
class Calibration:
    """A scaling's fitted efficiency, and by what factor a prediction may be off."""

    efficiency: float
    error: float

    def speed_up(self, pair: Pair) -> dict[str, float]:
        """`expected`, and `low` and `high` as far away as the worst prediction of an anchor was."""
        expected = float(pair.speed_up(self.efficiency))
        return {"expected": expected, "low": expected / self.error, "high": expected * self.error}


def pair(bf16: list[Work], fp8: list[Work], cast_bytes: float, rates: Rates, gpus: int) -> Pair:
    """Floors of the same step in bf16 and in FP8, the optimizer's work sharded over `gpus`.

    `cast_bytes` are those of `extra_cast_bytes`. Raises `InputError` for a GPU without FP8 units.
    """
    before, after = step_floors(bf16, rates), step_floors(fp8, rates)
    for floors in (before, after):
        floors[OPTIMIZER] /= gpus
    matmuls, casts = after[MATMUL_FP8], after[CASTS] + cast_bytes / rates.bandwidth
    rest = sum(after.values()) - matmuls - after[CASTS]
    return Pair(bf16=sum(before.values()), matmuls=matmuls, casts=casts, rest=rest)


def extra_cast_bytes(
    args, fp8_layers: Collection[str], scaling: str, tokens: int, passes: int
) -> float:
    """Bytes of a step's casts beyond their floor: `tokens` in all its forward passes, weights cast
    in each of them."""
    shapes = flops.linear_shapes(args)
    elements = sum(tokens * (n + k) + passes * n * k for n, k in map(shapes.get, fp8_layers))
    return CAST_BYTES[scaling] * elements


def calibrate(measured: list[tuple[Pair, float]]) -> Calibration:
    """From two or more pairs and their measured speed-ups."""
    others = [
        (pair, ratio, measured[:i] + measured[i + 1 :]) for i, (pair, ratio) in enumerate(measured)
    ]
    off = [abs(np.log(pair.speed_up(_fit(rest)) / ratio)) for pair, ratio, rest in others]
    return Calibration(_fit(measured), float(np.exp(max(off))))


def _fit(measured: list[tuple[Pair, float]]) -> float:
    """The efficiency whose speed-ups are nearest."""
    squares = sum(np.log(pair.speed_up(_EFFICIENCIES) / ratio) ** 2 for pair, ratio in measured)
    return float(_EFFICIENCIES[np.argmin(squares)])
