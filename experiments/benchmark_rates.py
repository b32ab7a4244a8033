"""What this device sustains: matrix products of the model's own shapes in bf16 and FP8, copies, and
on a GPU AdamW.

    python -m experiments.benchmark_rates [--overlay O]… [--rounds N] [key.path=value …]

Products and copies are the rates that models/gpus.py calls sustained; a product is 2 M N K FLOPs.
At the published size 20 rounds of them take 11 s without a pause: long enough for a power limit to
lower the clock, for all products alike, and too short for a temperature limit. Then the gradients'
norm, clipping and AdamW step the model's bf16 parameters; their rates are of the bytes that each
has to move.
"""

import argparse
import statistics
from collections.abc import Callable

import torch
from torch import nn

from experiments.config import recipes
from experiments.jobs.exit_codes import complain, leave
from experiments.training.scale import choose_scale
from models import device, float8, flops
from models.architectures import build, model_args
from models.errors import InputError
from models.optimizer import clip, gradient_norm

SPAN = 0.05  # seconds for which a round repeats a call
COPIED = {"cuda": 2 << 30, "cpu": 64 << 20}  # bytes: far more than any cache
MAX_NORM = 1e9  # clipping multiplies by 1, which takes as long, and leaves the gradients as they are for all rounds

Work = dict[
    str, tuple[Callable, float, str]
]  # by name: a call, its 1e12 FLOPs or bytes, and their unit per second


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmark_rates")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value")
    parser.add_argument("--overlay", action="append", metavar="O")
    parser.add_argument(
        "--rounds", type=int, default=20, metavar="N", help="(default: %(default)s)"
    )
    args = parser.parse_intermixed_args(argv)
    try:
        config = recipes.load("baseline", args.overlay or choose_scale()[0], args.overrides).config
        model = model_args(config)
    except InputError as error:
        return complain(error)
    print(f"{device.name()}, torch {torch.__version__}")
    measure(
        products_and_copy(model, config.training.seq_len * config.training.local_batch_size),
        args.rounds,
    )
    if device.TYPE == "cuda":
        measure(optimizers(config), args.rounds)
    return 0


def measure(work: Work, rounds: int) -> None:
    """Print the rate of each call and the median of its time over rounds.

    In a round each call is repeated for about `SPAN`; the device is waited for before and after
    only, so that the device and not its host sets the pace.
    """
    times, seconds = {}, {name: [] for name in work}
    for name, (call, *_) in work.items():
        call()  # loads or compiles a kernel
        times[name] = 1 + int(SPAN / (device.seconds(call, 5) / 5))
    for _ in range(rounds):
        for name, (call, *_) in work.items():
            seconds[name].append(device.seconds(call, times[name]) / times[name])
    for name, (_, amount, unit) in work.items():
        median = statistics.median(seconds[name])
        print(f"{name:<32}{amount / median:>9.3f} {unit:<7} {1e3 * median:>9.3f} ms")


def products_and_copy(model, tokens: int) -> Work:
    shapes = sorted({(tokens, n, k) for n, k in flops.linear_shapes(model).values()})
    work = {
        f"bf16 {m} x {n} x {k}": (_bf16(m, n, k), 2e-12 * m * n * k, "TFLOP/s")
        for m, n, k in shapes
    }
    if float8.matmul(device.TYPE, "tensorwise", emulate=False).how != float8.EMULATED:
        work |= {
            f"FP8  {m} x {n} x {k}": (_fp8(m, n, k), 2e-12 * m * n * k, "TFLOP/s")
            for m, n, k in shapes
        }
    source = torch.zeros(COPIED[device.TYPE], dtype=torch.uint8, device=device.TYPE)
    target = torch.empty_like(source)
    return work | {"copy": (lambda: target.copy_(source), 2e-12 * len(source), "TB/s")}


def _bf16(m: int, n: int, k: int) -> Callable:
    a, b = (
        torch.randn(*size, dtype=torch.bfloat16, device=device.TYPE) for size in ((m, k), (n, k))
    )
    return lambda: a @ b.t()


def _fp8(m: int, n: int, k: int) -> Callable:
    a, b = (
        torch.randn(*size, device=device.TYPE).to(torch.float8_e4m3fn) for size in ((m, k), (n, k))
    )
    one = torch.ones((), device=device.TYPE)
    return lambda: torch._scaled_mm(
        a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True
    )


def optimizers(config) -> Work:
    """Norm, clipping and step of PyTorch's fused AdamW over the model's parameters."""
    with torch.device("meta"):
        shapes = [p.shape for p in build(config).parameters()]
    parameters = [nn.Parameter(_random(shape)) for shape in shapes]
    for p in parameters:
        p.grad = _random(p.shape)
    adamw = torch.optim.AdamW(parameters, lr=config.optimizer.lr, fused=True)
    norm, terabytes = gradient_norm(parameters), 1e-12 * sum(p.numel() for p in parameters)
    calls = {  # and the bytes a parameter that each has to move
        "norm": (lambda: gradient_norm(parameters), 2),
        "clipping": (lambda: clip(parameters, norm, MAX_NORM), 4),
        "step": (adamw.step, 14),
    }
    return {
        f"AdamW: {name}": (call, size * terabytes, "TB/s") for name, (call, size) in calls.items()
    }


def _random(shape: torch.Size) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device=device.TYPE).normal_(std=0.02)


if __name__ == "__main__":
    leave(main)
