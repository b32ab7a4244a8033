"""What the gradients' norm, clipping and AdamW take on this GPU: this project's kernels beside PyTorch's.

    python -m experiments.benchmark_optimizer [--overlay O]… [--rounds N] [key.path=value …]

Both step the same bf16 parameters, those of the recipe `baseline`, with the same state and gradients. Times are medians
over rounds; GB/s are the bytes that a part has to move, over its time. Clipping takes as long whether it scales or, as
here, multiplies by 1.
"""

from collections.abc import Callable

import torch
from torch import nn

from experiments.jobs.exit_codes import complain, leave
from experiments.profiling import calls
from experiments.training import preflight
from models import device, llama
from models.errors import InputError
from models.fused_adamw import FusedAdamW, gradient_norm

MAX_NORM = 1e9  # leaves the gradients as they are, for all rounds
OWN, PYTORCH = "models/fused_adamw.py", "PyTorch"


def main(argv: list[str] | None = None) -> int:
    try:
        if device.TYPE != "cuda":
            raise InputError("the kernels that this compares need a GPU, and there is none here")
        config, rounds = calls.parse("benchmark_optimizer", argv, rounds=10)
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
    seconds = calls.median_seconds({part: call for part, (call, _) in work.items()}, rounds)
    for side in (OWN, PYTORCH):
        rows = [(what, seconds[who, what], count * size) for (who, what), (_, size) in work.items() if who == side]
        for what, s, size in [*rows, ("all", sum(row[1] for row in rows), sum(row[2] for row in rows))]:
            print(f"{side:<24}{what:<20}{1e3 * s:>9.2f} ms{size / s / 1e9:>9.0f} GB/s")
    return 0


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

    return {
        (OWN, "norm"): (lambda: gradient_norm(gradients), 2),
        (OWN, "clipping and step"): (clip_and_step, 14),
        (PYTORCH, "norm"): (lambda: nn.utils.get_total_norm(gradients, foreach=True), 2),
        (PYTORCH, "clipping"): (lambda: nn.utils.clip_grads_with_norm_(parameters, MAX_NORM, norm, foreach=True), 4),
        (PYTORCH, "step"): (pytorch.step, 14),
    }


def _random(shape: torch.Size) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device=device.TYPE).normal_(std=0.02)


if __name__ == "__main__":
    leave(main)
