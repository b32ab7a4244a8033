"""What this device sustains: the matmuls of the recipes, in both precisions, attention, and copies.

    python -m experiments.benchmarks.rates [--overlay O]… [key.path=value …]

A linear layer has three matmuls (`output`, `input gradient`, `weight gradient`), each in the layout
in which it finds its operands. In FP8 it is measured as the recipes run it: with one scale for each
tensor, or with a scale for each row; adding up within the tensor cores (`fast`, forward) or exactly
(backward). They are the rates that models/gpus.py calls sustained; a matmul is 2 M N K FLOPs. Each
is repeated for a second: long enough for a power limit to lower the clock, too short for a
temperature limit. Exit codes: 0, and 2 for bad input.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.benchmark import Timer

from experiments.config import recipes
from experiments.jobs.command import CommandLine, leave
from experiments.training.machine import choose_size
from models import device, flops
from models.architectures import model_args
from models.llama import ATTENTION_BACKENDS

COPIED = {"cuda": 2 << 30, "cpu": 64 << 20}  # bytes: far more than any cache
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def main(argv: list[str] | None = None) -> int:
    parser = CommandLine("experiments.benchmarks.rates", __doc__)
    parser.add_argument("overrides", nargs="*", metavar="key.path=value")
    parser.add_overlays(default=None)
    args = parser.parse(argv)
    config = recipes.load("baseline", args.overlay or choose_size()[0], args.overrides).config
    model, training = model_args(config), config.training
    tokens = training.seq_len * training.local_batch_size
    print(f"{device.name()}, torch {torch.__version__}")

    for n, k in sorted(set(flops.linear_shapes(model).values())):
        for name, call in matmuls(tokens, n, k):
            report(name, 2 * tokens * n * k, "TFLOP/s", call)
    for backend in ATTENTION_BACKENDS:
        forward, backward = attention(backend, model, training)
        # A causal mask leaves half of the two matmuls of a forward pass, and of the five backward.
        done = 2 * tokens * training.seq_len * flops.q_dim(model)
        report(f"attention {backend} forward", done, "TFLOP/s", forward)
        report(f"attention {backend} forward and backward", 3.5 * done, "TFLOP/s", backward)
    source = torch.zeros(COPIED[device.TYPE], dtype=torch.uint8, device=device.TYPE)
    target = torch.empty_like(source)
    report("copy", 2 * len(source), "TB/s", lambda: target.copy_(source))
    return 0


def matmuls(tokens: int, n: int, k: int) -> Iterator[tuple[str, Callable]]:
    """Give name and call of each matmul of a layer with an (n, k) weight."""
    x, weight, gradient = operand(tokens, k), operand(n, k), operand(tokens, n)
    # Operands, format of the left one in FP8, and whether sums may be fast
    three = {
        "output": (x, weight.t(), E4M3, True),
        "input gradient": (gradient, weight, E5M2, False),
        "weight gradient": (gradient.t(), x, E5M2, False),
    }
    for name, (left, right, dtype, fast) in three.items():
        title = f"{name} {len(left)} x {right.shape[1]} x {len(right)}"
        yield f"bf16 {title}", partial(torch.matmul, left, right)
        yield f"FP8 tensorwise {title}", fp8_matmul(left.to(dtype), right, False, fast)
        # Backward, torchao multiplies as tensorwise and scales the results by rows afterwards
        yield f"FP8 rowwise {title}", fp8_matmul(left.to(E4M3), right, True, fast)


def operand(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, device=device.TYPE).bfloat16()


def fp8_matmul(left: Tensor, right: Tensor, by_rows: bool, fast: bool) -> Callable:
    """Multiply in FP8, whose units want the summed dimension of both operands contiguous."""
    a, b = left.contiguous(), right.to(E4M3).t().contiguous().t()
    shapes = ((len(a), 1), (1, b.shape[1])) if by_rows else ((), ())
    scales = [torch.ones(shape, device=a.device) for shape in shapes]
    return partial(torch._scaled_mm, a, b, *scales, out_dtype=torch.bfloat16, use_fast_accum=fast)


def attention(backend: str, model, training) -> tuple[Callable, Callable]:
    """Give the calls of a forward pass, and of a forward and backward pass."""
    batch, seq_len, heads = training.local_batch_size, training.seq_len, model.n_kv_heads
    q, k, v = (
        operand(batch * n * seq_len, model.head_dim).view(batch, n, seq_len, -1).requires_grad_()
        for n in (model.n_heads, heads, heads)
    )

    def forward() -> Tensor:
        with sdpa_kernel(ATTENTION_BACKENDS[backend]):
            return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    return forward, lambda: forward().sum().backward()


def median_seconds(call: Callable) -> float:
    """Repeat a call for a second; the device is waited for around blocks of calls, so that the
    device and not its host sets the pace."""
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=1.0).median


def report(name: str, amount: float, unit: str, call: Callable) -> None:
    """Measure and print a line. What this device lacks is named."""
    try:
        seconds = median_seconds(call)
    except (RuntimeError, ValueError) as error:
        print(f"{name:<56} not here: {str(error).splitlines()[0]}", flush=True)
        return
    rate = amount / seconds / 1e12
    print(f"{name:<56}{rate:>9.3f} {unit:<7} {1e3 * seconds:>9.3f} ms", flush=True)


if __name__ == "__main__":
    leave(main)
