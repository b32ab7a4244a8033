"""What the gradients' norm, clipping and AdamW take on this GPU: this project's kernels beside PyTorch's.

    python -m experiments.benchmark_optimizer [--overlay O]… [--rounds N] [key.path=value …]

Both step the same bf16 parameters, those of the recipe `baseline`, with the same state and gradients. In a round each
part is called a few times in a row, and the device is waited for before and after. Times are medians over rounds; GB/s
are the bytes that a part has to move, over its time. Clipping takes as long whether it scales or, as here, multiplies
by 1.
"""

import argparse
import statistics
import sys
from collections.abc import Callable

import torch
from torch import nn

from experiments.config import recipes
from experiments.jobs.exit_codes import complain
from experiments.training import preflight
from experiments.training.scale import choose_scale
from models import device, llama
from models.errors import InputError
from models.fused_adamw import FusedAdamW, gradient_norm

TIMES = 4  # calls in a row: at the published size about 0.1 s
MAX_NORM = 1e9  # leaves the gradients as they are, for all rounds


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmark_optimizer")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value")
    parser.add_argument("--overlay", action="append", metavar="O")
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="(default: %(default)s)")
    args = parser.parse_intermixed_args(argv)
    try:
        if device.TYPE != "cuda":
            raise InputError("the kernels that this compares need a GPU, and there is none here")
        config = recipes.load("baseline", args.overlay or choose_scale()[0], args.overrides).config
        with torch.device("meta"):
            model = llama.Llama(preflight.model_args(config))
    except InputError as error:
        return complain(error)
    parameters = [nn.Parameter(_random(p.shape)) for p in model.parameters()]
    for p in parameters:
        p.grad = _random(p.shape)
    count = sum(p.numel() for p in parameters)
    print(f"{device.name()}, torch {torch.__version__}: {count / 1e9:.3g} B parameters in {len(parameters)} tensors")
    work = _work(parameters, config.optimizer)
    seconds: dict[tuple, list[float]] = {part: [] for part in work}
    for call, _ in work.values():
        call()  # compiles, or loads a kernel
    for _ in range(args.rounds):
        for part, (call, _) in work.items():
            seconds[part].append(device.seconds(call, TIMES) / TIMES)
    sums: dict[str, tuple[float, float]] = {}
    for (side, what), (_, size) in work.items():
        median, moved = statistics.median(seconds[side, what]), count * size
        _print(side, what, median, moved)
        before = sums.get(side, (0, 0))
        sums[side] = before[0] + median, before[1] + moved
    for side, (all_seconds, all_bytes) in sums.items():
        _print(side, "all", all_seconds, all_bytes)
    return 0


def _print(side: str, part: str, seconds: float, size: float) -> None:
    print(f"{side:<24}{part:<20}{1e3 * seconds:>9.2f} ms{size / seconds / 1e9:>9.0f} GB/s")


def _work(parameters: list[nn.Parameter], keys) -> dict[tuple[str, str], tuple[Callable, int]]:
    """By side and part: a call, and the bytes a parameter that it has to move."""
    settings = {"lr": keys.lr, "betas": (keys.beta1, keys.beta2), "eps": keys.eps, "weight_decay": keys.weight_decay}
    fused, pytorch = FusedAdamW(parameters, **settings), torch.optim.AdamW(parameters, fused=True, **settings)
    gradients = [p.grad for p in parameters]
    norm = gradient_norm(gradients)
    fused.step()
    pytorch.state = fused.state  # there may not be memory for two

    def clip_and_step() -> None:
        fused.clip(norm, MAX_NORM)
        fused.step()

    def clip() -> None:
        nn.utils.clip_grads_with_norm_(parameters, MAX_NORM, norm, foreach=True)

    return {
        ("models/fused_adamw.py", "norm"): (lambda: gradient_norm(gradients), 2),
        ("models/fused_adamw.py", "clipping and step"): (clip_and_step, 14),
        ("PyTorch", "norm"): (lambda: nn.utils.get_total_norm(gradients, foreach=True), 2),
        ("PyTorch", "clipping"): (clip, 4),
        ("PyTorch", "step"): (pytorch.step, 14),
    }


def _random(shape: torch.Size) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device=device.TYPE).normal_(std=0.02)


if __name__ == "__main__":
    sys.exit(main())
