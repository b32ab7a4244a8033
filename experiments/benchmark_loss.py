"""Output head and cross entropy, three ways, in the recipe's sizes: time, memory and exactness, side by side.

    python -m experiments.benchmark_loss [--overlay O]… [--rounds N] [key.path=value …]

eager: logits in bf16, then in float32, as torchtitan's loss makes them; compiled: the same through torch.compile, which
casts within its kernels; chunked: torch.nn.functional.linear_cross_entropy (torch 2.13), which never has all logits.
Errors are relative, against float64 arithmetic on the same bf16 inputs, on the first tokens.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate

import torch
import torch.nn.functional as F

from experiments import checks, device
from experiments import recipe as recipes
from experiments.ends import complain, leave
from experiments.study import choose_scale
from models.errors import InputError

EXACT_TOKENS = 256  # float64 logits of all would be 4 GB at the published size

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def losses() -> Iterator[tuple[str, Loss]]:
    """(name, (hidden, weight, labels) -> sum of the cross entropies)."""

    def cross_entropy(logits, labels):
        return F.cross_entropy(logits.float(), labels, reduction="sum")

    compiled = torch.compile(cross_entropy)
    yield "eager", lambda hidden, weight, labels: cross_entropy(F.linear(hidden, weight), labels)
    yield "compiled", lambda hidden, weight, labels: compiled(F.linear(hidden, weight), labels)
    if hasattr(F, "linear_cross_entropy"):
        chunks = torch.nn.LinearCrossEntropyOptions()
        yield "chunked", lambda *tensors: F.linear_cross_entropy(*tensors, reduction="sum", options=chunks)


def step(loss: Loss, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    """The mean loss and its gradients, of a trainer's forward and backward pass."""
    hidden, weight = (tensor.detach().requires_grad_() for tensor in (hidden, weight))
    mean = loss(hidden, weight, labels) / len(labels)
    mean.backward()
    return [mean.detach(), hidden.grad, weight.grad]


def peak_bytes(*arguments) -> int:
    """Most memory that was allocated at a time beyond what was there before, gradients included."""
    if device.TYPE == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step(*arguments)
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(profile_memory=True) as profiler:
        step(*arguments)
    changes = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    return max(accumulate(e.nbytes() for e in sorted(changes, key=lambda e: e.start_ns())))


def errors(loss: Loss, *tensors: torch.Tensor) -> list[float]:
    """Relative errors of loss and gradients."""
    ours = step(loss, *tensors)
    exact = step(lambda h, w, labels: F.cross_entropy(F.linear(h, w), labels, reduction="sum"),
                 *(t.double() if t.is_floating_point() else t for t in tensors))  # fmt: skip
    return [float((a.double() - b).norm() / b.norm()) for a, b in zip(ours, exact, strict=True)]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmark_loss")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value")
    parser.add_argument("--overlay", action="append", metavar="O")
    parser.add_argument("--rounds", type=int, default=10, help="of all three in turn (default: %(default)s)")
    args = parser.parse_intermixed_args(argv)
    try:
        config = recipes.load("baseline", args.overlay or choose_scale()[0], args.overrides).config
    except InputError as error:
        return complain(error)
    model, tokens = checks.model_args(config), config.training.seq_len * config.training.local_batch_size
    torch.manual_seed(0)
    hidden = torch.randn(tokens, model.dim, dtype=torch.bfloat16, device=device.TYPE)
    weight = torch.randn(model.vocab_size, model.dim, dtype=torch.bfloat16, device=device.TYPE) / model.dim**0.5
    labels = torch.randint(model.vocab_size, (tokens,), device=device.TYPE)
    print(f"{device.name()}, torch {torch.__version__}: {tokens} tokens, {model.vocab_size} x {model.dim}")
    ways = dict(losses())
    for loss in ways.values():
        step(loss, hidden, weight, labels)  # compiles
    rounds = [
        {name: device.seconds(partial(step, loss, hidden, weight, labels)) for name, loss in ways.items()}
        for _ in range(args.rounds)
    ]
    print(f"{'':<10}{'time':>10}{'memory':>14}{'error of loss':>16}{'of hidden.grad':>16}{'of weight.grad':>16}")
    for name, loss in ways.items():
        ratio = statistics.median(r[name] / r["eager"] for r in rounds)
        memory = peak_bytes(loss, hidden, weight, labels) / 2**20
        wrong = errors(loss, hidden[:EXACT_TOKENS], weight, labels[:EXACT_TOKENS])
        print(f"{name:<10}{ratio:>9.2f}x{memory:>10,.0f} MiB" + "".join(f"{error:>16.1e}" for error in wrong))
    return 0


if __name__ == "__main__":
    leave(main)
