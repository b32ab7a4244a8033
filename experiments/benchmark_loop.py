"""What the run's loop costs beside a bare PyTorch loop: `python -m experiments.benchmark_loop [STEPS]`.

Both train the small model of the overlay `cpu` on this machine's device, in one process, a step of each in turn, so
that a noisy machine slows both alike. Prints the ratio of their median tokens/s; exit code 1 below 95 %.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

from models import device  # before torchtitan: see there  # isort: skip
import torch

from experiments.config import recipes
from experiments.corpus.rows import build_dataloader
from experiments.jobs.exit_codes import complain, leave
from experiments.jobs.ranks import set_rank_environment
from experiments.jobs.signals import Stop
from experiments.training.metrics import NOT_STEADY_STEPS
from experiments.training.trainer import Trainer

GOAL = 0.95


def bare_loop(model: torch.nn.Module, config) -> Callable[[], float]:
    """The least that trains: a call is forward, loss, backward, clip, AdamW, and the loss read from the device."""
    keys, parameters = config.optimizer, list(model.parameters())
    settings = {"lr": keys.lr, "betas": (keys.beta1, keys.beta2), "weight_decay": keys.weight_decay}
    optimizer = torch.optim.AdamW(parameters, fused=True, **settings)
    batches = iter(build_dataloader(dp_world_size=1, dp_rank=0, tokenizer=None, job_config=config))

    def step() -> float:
        inputs, labels = next(batches)
        logits = model(inputs["input"].to(device.TYPE))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten().to(device.TYPE))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, config.training.max_norm)
        optimizer.step()
        return loss.item()

    return step


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmark_loop")
    parser.add_argument("steps", nargs="?", type=int, default=60, help="training steps of each (default: 60)")
    steps = parser.parse_args(argv).steps
    if steps <= NOT_STEADY_STEPS:
        return complain(f"{steps} steps: the first {NOT_STEADY_STEPS} are not steady, so give more")
    config = recipes.load("baseline", ["cpu"], [f"training.steps={steps}"]).config
    config.job.dump_folder = tempfile.mkdtemp(prefix="benchmark_loop_")
    set_rank_environment()
    trainer = Trainer(config, Stop())
    bare_step = bare_loop(trainer.model_parts[0], config)
    run_s, bare_s, last = [], [], time.perf_counter()

    def after_step(step: int) -> None:
        nonlocal last
        device.synchronize()  # or the run's work on a GPU would count as the bare loop's
        run_s.append(time.perf_counter() - last)
        bare_s.append(device.seconds(bare_step))
        last = time.perf_counter()

    trainer.metrics_processor.on_step = after_step
    trainer.train()
    trainer.close()
    run, alone = (statistics.median(times[NOT_STEADY_STEPS:]) for times in (run_s, bare_s))
    tokens = config.training.local_batch_size * config.training.seq_len
    ratio = alone / run
    print(f"{device.name()}: bare loop {tokens / alone:,.0f} tokens/s, run {tokens / run:,.0f} tokens/s")
    print(f"{ratio:.1%} of the bare loop's tokens/s, goal {GOAL:.0%}")
    return int(ratio < GOAL)


if __name__ == "__main__":
    leave(main)
