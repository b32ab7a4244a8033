"""What this device sustains: matmuls of the model's own shapes in bf16 and FP8, and copies.

    python -m experiments.benchmarks.rates [--overlay O]… [--rounds N] [key.path=value …]

They are the rates that models/gpus.py calls sustained; a matmul is 2 M N K FLOPs. At the published
size 20 rounds take 11 s without a pause: long enough for a power limit to lower the clock, for all
matmuls alike, and too short for a temperature limit.
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

from experiments.config import recipes
from experiments.jobs.exit_codes import complain, leave
from experiments.training.scale import choose_scale
from models import device, float8, flops
from models.architectures import model_args
from models.errors import InputError

SPAN_S = 0.05  # for which a round repeats a call
COPIED = {"cuda": 2 << 30, "cpu": 64 << 20}  # bytes: far more than any cache


@dataclass(frozen=True)
class Work:
    """A call, and how much it does: 1e12 FLOPs or bytes."""

    name: str
    call: Callable
    amount: float
    unit: str


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks.rates")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value")
    parser.add_argument("--overlay", action="append", metavar="O")
    parser.add_argument(
        "--rounds", type=int, default=20, metavar="N", help="(default: %(default)s)"
    )
    args = parser.parse_intermixed_args(argv)
    try:
        config = recipes.load("baseline", args.overlay or choose_scale()[0], args.overrides).config
    except InputError as error:
        return complain(error)
    tokens = config.training.seq_len * config.training.local_batch_size
    print(f"{device.name()}, torch {torch.__version__}")
    measure([*matmuls(model_args(config), tokens), copy()], args.rounds)
    return 0


def matmuls(model, tokens: int) -> list[Work]:
    """Multiply as the model's linear layers do, with e4m3 operands where that is not emulated."""
    shapes = sorted({(tokens, n, k) for n, k in flops.linear_shapes(model).values()})
    kinds = {"bf16": bf16}
    if float8.matmul(device.TYPE, "tensorwise", emulate=False).how != float8.EMULATED:
        kinds["FP8 "] = fp8
    work = []
    for kind, matmul in kinds.items():
        for m, n, k in shapes:
            a = torch.randn(m, k, device=device.TYPE)
            b = torch.randn(n, k, device=device.TYPE)
            work.append(Work(f"{kind} {m} x {n} x {k}", matmul(a, b), 2e-12 * m * n * k, "TFLOP/s"))
    return work


def bf16(a: torch.Tensor, b: torch.Tensor) -> Callable:
    a, b = a.bfloat16(), b.bfloat16()
    return lambda: a @ b.t()


def fp8(a: torch.Tensor, b: torch.Tensor) -> Callable:
    a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    one = torch.ones((), device=device.TYPE)
    keys = {"out_dtype": torch.bfloat16, "use_fast_accum": True}
    return lambda: torch._scaled_mm(a, b.t(), one, one, **keys)


def copy() -> Work:
    """Read and write memory."""
    source = torch.zeros(COPIED[device.TYPE], dtype=torch.uint8, device=device.TYPE)
    target = torch.empty_like(source)
    return Work("copy", lambda: target.copy_(source), 2e-12 * len(source), "TB/s")


def measure(work: list[Work], rounds: int) -> None:
    """Print the rate of each call and the median of its time over rounds.

    In a round each call is repeated for about `SPAN_S`; the device is waited for before and after
    only, so that the device and not its host sets the pace.
    """
    times = []
    for one in work:
        one.call()  # loads or compiles a kernel
        times.append(1 + int(SPAN_S / (device.seconds(one.call, 5) / 5)))
    seconds = [
        [device.seconds(one.call, count) / count for one, count in zip(work, times, strict=True)]
        for _ in range(rounds)
    ]
    for one, of_rounds in zip(work, zip(*seconds, strict=True), strict=True):
        median = statistics.median(of_rounds)
        rate = one.amount / median
        print(f"{one.name:<32}{rate:>9.3f} {one.unit:<7} {1e3 * median:>9.3f} ms")


if __name__ == "__main__":
    leave(main)
