"""What this device sustains: matmuls of the model's own shapes in bf16 and FP8, and copies.

    python -m experiments.benchmarks.rates [--overlay O]… [key.path=value …]

They are the rates that models/gpus.py calls sustained; a matmul is 2 M N K FLOPs. Each is repeated
for a second: long enough for a power limit to lower the clock, too short for a temperature limit.
"""

import argparse
from collections.abc import Callable

import torch
from torch.utils.benchmark import Timer

from experiments.config import recipes
from experiments.jobs.exit_codes import leave
from experiments.training.scale import choose_scale
from models import device, flops, fp8_matmul
from models.architectures import model_args

COPIED = {"cuda": 2 << 30, "cpu": 64 << 20}  # bytes: far more than any cache


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks.rates")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value")
    parser.add_argument("--overlay", action="append", metavar="O")
    args = parser.parse_intermixed_args(argv)
    config = recipes.load("baseline", args.overlay or choose_scale()[0], args.overrides).config
    tokens = config.training.seq_len * config.training.local_batch_size
    shapes = flops.linear_shapes(model_args(config)).values()
    print(f"{device.name()}, torch {torch.__version__}")

    kinds = {"bf16": bf16_matmul}
    if fp8_matmul.choose("tensorwise", emulate=False).how != fp8_matmul.EMULATED:
        kinds["FP8"] = fp8_matmul
    for kind, matmul in kinds.items():
        for n, k in sorted(set(shapes)):
            seconds = median_seconds(matmul(tokens, n, k))
            report(f"{kind:<4} {tokens} x {n} x {k}", 2 * tokens * n * k, "TFLOP/s", seconds)

    source = torch.zeros(COPIED[device.TYPE], dtype=torch.uint8, device=device.TYPE)
    target = torch.empty_like(source)
    seconds = median_seconds(lambda: target.copy_(source))
    report("copy", 2 * len(source), "TB/s", seconds)
    return 0


def bf16_matmul(m: int, n: int, k: int) -> Callable:
    a = torch.randn(m, k, device=device.TYPE).bfloat16()
    b = torch.randn(n, k, device=device.TYPE).bfloat16()
    return lambda: a @ b.t()


def fp8_matmul(m: int, n: int, k: int) -> Callable:
    """Multiply in e4m3 with one scale a matrix, as forward passes do."""
    a = torch.randn(m, k, device=device.TYPE).to(torch.float8_e4m3fn)
    b = torch.randn(n, k, device=device.TYPE).to(torch.float8_e4m3fn)
    one = torch.ones((), device=device.TYPE)
    keys = {"out_dtype": torch.bfloat16, "use_fast_accum": True}
    return lambda: torch._scaled_mm(a, b.t(), one, one, **keys)


def median_seconds(call: Callable) -> float:
    """Repeat a call for a second; the device is waited for around blocks of calls, so that the
    device and not its host sets the pace."""
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=1.0).median


def report(name: str, amount: int, unit: str, seconds: float) -> None:
    print(f"{name:<32}{amount / seconds / 1e12:>9.3f} {unit:<7} {1e3 * seconds:>9.3f} ms")


if __name__ == "__main__":
    leave(main)
