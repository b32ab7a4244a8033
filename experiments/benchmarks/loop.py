"""What the run's loop costs beside a bare PyTorch loop: `python -m experiments.benchmarks.loop`.

Both train the small model of the overlay `cpu` on this machine's device, in one process, a step of
each in turn, so that a noisy machine slows both alike. Then compiled FP8 trains at this machine's
scale, and its ranges are checked after each step. Prints the ratio of the loops' median tokens/s,
and the share of the time that range checks take where they are as rare as the recipe says.

Exit codes: 0, or 1 below 95 % or above 1 %.
"""

import time
from collections.abc import Callable
from functools import partial

from models import device  # before torchtitan: see there  # isort: skip
import numpy as np
import torch

from experiments.benchmarks.small_run import batches, begin, loss_of
from experiments.config import recipes
from experiments.corpus.tokens import TokenFile
from experiments.jobs.command import CommandLine, leave
from experiments.records.run import NOT_STEADY_STEPS
from experiments.training.machine import choose_size
from experiments.training.metrics import fp8_ranges
from experiments.training.plan import plan
from experiments.training.trainer import Trainer

STEPS = "training.steps=60"
GOAL, MOST_FOR_CHECKS = 0.95, 0.01


def main(argv: list[str] | None = None) -> int:
    CommandLine("experiments.benchmarks.loop", __doc__).parse_args(argv)
    trainer, token_file = begin(plan(recipes.load("baseline", ["cpu"], [STEPS])))
    bare = bare_loop(trainer.model_parts[0], trainer.plan.config, token_file)
    run_s, bare_s = in_turn(trainer, bare)
    ratio = bare_s / run_s
    print(f"{device.name()}: a step takes {bare_s:.4f} s in a bare loop, {run_s:.4f} s in the run")
    print(f"{ratio:.1%} of the bare loop's tokens/s, goal {GOAL:.0%}")

    fp8 = plan(recipes.load("tensorwise_fp8_compiled", choose_size()[0], [STEPS]))
    metrics = fp8.config.metrics
    apart = metrics.log_freq * metrics.fp8_ranges_every
    metrics.fp8_ranges_every = 0  # here they are checked after each step instead
    trainer, _ = begin(fp8)
    run_s, check_s = in_turn(trainer, partial(fp8_ranges, trainer.model_parts[0]))
    share = check_s / run_s / apart
    print(f"FP8's ranges: a check takes {check_s / run_s:.1%} of a step, ", end="")
    print(f"one in {apart} steps takes {share:.2%} of the time")
    return int(ratio < GOAL or share > MOST_FOR_CHECKS)


def in_turn(trainer: Trainer, call: Callable) -> np.ndarray:
    """Time a run's steps, and a call after each of them; returns the median seconds of both."""
    timed, last = [], time.perf_counter()

    def after_step(step: int) -> None:
        nonlocal last
        device.synchronize()  # or the run's work on a GPU would count as the call's
        step_s = time.perf_counter() - last
        timed.append((step_s, device.seconds(call)))
        last = time.perf_counter()

    trainer.on_step = after_step
    trainer.train()
    trainer.close()
    return np.median(timed[NOT_STEADY_STEPS:], axis=0)


def bare_loop(model: torch.nn.Module, config, token_file: TokenFile) -> Callable[[], float]:
    """Make the least that trains: a call is forward, loss, backward, clip, AdamW, and the loss read
    from the device."""
    keys, parameters = config.optimizer, list(model.parameters())
    settings = {"lr": keys.lr, "betas": (keys.beta1, keys.beta2), "weight_decay": keys.weight_decay}
    optimizer = torch.optim.AdamW(parameters, fused=True, **settings)
    read = batches(config, token_file)

    def step() -> float:
        loss = loss_of(model, *next(read))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, config.training.max_norm)
        optimizer.step()
        return loss.item()

    return step


if __name__ == "__main__":
    leave(main)
