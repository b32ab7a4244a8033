"""What this device sustains: matrix products of the model's own shapes in bf16 and FP8, and copies.

    python -m experiments.benchmark_rates [--overlay O]… [--rounds N] [key.path=value …]

These are the rates that models/gpus.py calls sustained; a product is 2 M N K FLOPs. In a round each product and the
copy are repeated for about 50 ms, and the device is waited for before and after only, so that the device and not its
host sets the pace. A rate is the median over rounds. At the published size 20 rounds take 11 s without a pause: long
enough for a power limit to lower the clock, for all products alike, and too short for a temperature limit.
"""

import argparse
import statistics
from collections.abc import Callable

import torch

from experiments.config import recipes
from experiments.jobs.exit_codes import complain, leave
from experiments.training import preflight
from experiments.training.scale import choose_scale
from models import device, float8, flops
from models.errors import InputError

SPAN = 0.05  # seconds
COPIED = {"cuda": 2 << 30, "cpu": 64 << 20}  # bytes: far more than any cache


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmark_rates")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value")
    parser.add_argument("--overlay", action="append", metavar="O")
    parser.add_argument("--rounds", type=int, default=20, metavar="N", help="(default: %(default)s)")
    args = parser.parse_intermixed_args(argv)
    try:
        config = recipes.load("baseline", args.overlay or choose_scale()[0], args.overrides).config
        model = preflight.model_args(config)
    except InputError as error:
        return complain(error)
    tokens = config.training.seq_len * config.training.local_batch_size
    shapes = sorted({(tokens, n, k) for n, k in flops.linear_shapes(model).values()})
    work = {f"bf16 {m} x {n} x {k}": (_bf16(m, n, k), 2 * m * n * k, "TFLOP/s") for m, n, k in shapes}
    if float8.product(device.TYPE, "tensorwise", emulate=False).how != float8.EMULATED:
        work |= {f"FP8  {m} x {n} x {k}": (_fp8(m, n, k), 2 * m * n * k, "TFLOP/s") for m, n, k in shapes}
    work["copy"] = (_copy(COPIED[device.TYPE]), 2 * COPIED[device.TYPE], "TB/s")
    times = {name: _times(do) for name, (do, *_) in work.items()}
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(args.rounds):
        for name, (do, *_) in work.items():
            seconds[name].append(device.seconds(do, times[name]) / times[name])
    print(f"{device.name()}, torch {torch.__version__}")
    for name, (_, amount, unit) in work.items():
        print(f"{name:<32}{amount / statistics.median(seconds[name]) / 1e12:>9.3f} {unit}")
    return 0


def _times(do: Callable) -> int:
    """How many calls take about `SPAN`, estimated from five calls after a first one, which may load kernels."""
    do()
    return 1 + int(SPAN / (device.seconds(do, 5) / 5))


def _bf16(m: int, n: int, k: int) -> Callable:
    a, b = (torch.randn(*size, dtype=torch.bfloat16, device=device.TYPE) for size in ((m, k), (n, k)))
    return lambda: a @ b.t()


def _fp8(m: int, n: int, k: int) -> Callable:
    a, b = (torch.randn(*size, device=device.TYPE).to(torch.float8_e4m3fn) for size in ((m, k), (n, k)))
    one = torch.ones((), device=device.TYPE)
    return lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)


def _copy(size: int) -> Callable:
    source = torch.zeros(size, dtype=torch.uint8, device=device.TYPE)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


if __name__ == "__main__":
    leave(main)
