"""What the run's loop costs beside a bare PyTorch loop: `python -m experiments.benchmark_loop [STEPS]`.

Both train the same model on the same batches with the same optimizer in one process, a step of each in turn, so that
a noisy machine slows both alike. Prints the ratio of their median tokens/s; exit code 1 below 95 %.
"""

import statistics
import sys
import tempfile
import time
from functools import partial

import torch

from experiments.config import recipes
from experiments.jobs.exit_codes import leave
from experiments.jobs.signals import Stop
from experiments.training.attempt import set_rank_environment
from experiments.training.metrics import NOT_STEADY_STEPS

GOAL = 0.95


class BareLoop:
    """The least that trains: forward, loss, backward, clip, AdamW, one number read per step."""

    def __init__(self, config):
        from experiments.corpus.rows import build_dataloader
        from models import llama

        torch.manual_seed(config.debug.seed)
        args = llama.FLAVORS[config.model.flavor]
        with torch.device("meta"):
            self.model = llama.Llama(args).to(torch.bfloat16)
        self.model.to_empty(device="cpu")
        with torch.no_grad():
            self.model.init_weights()
        keys = config.optimizer
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=keys.lr,
            betas=(keys.beta1, keys.beta2),
            weight_decay=keys.weight_decay,
            fused=True,
        )
        self.max_norm = config.training.max_norm
        self.batches = iter(build_dataloader(dp_world_size=1, dp_rank=0, tokenizer=None, job_config=config))

    def step(self) -> float:
        """Train one step; returns the loss."""
        inputs, labels = next(self.batches)
        logits = self.model(inputs["input"])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        self.optimizer.step()
        return loss.item()


def main(steps: int = 60) -> int:
    recipe = recipes.load("baseline", ["cpu"], [f"training.steps={steps}"])
    config = recipe.config
    config.job.dump_folder = tempfile.mkdtemp(prefix="benchmark_loop_")
    set_rank_environment()
    from experiments.training.trainer import Trainer

    trainer, bare = Trainer(config, Stop()), BareLoop(config)
    run_s, bare_s, last = [], [], time.perf_counter()

    def after_step(step: int) -> None:
        nonlocal last
        run_s.append(time.perf_counter() - last)
        start = time.perf_counter()
        bare.step()
        last = time.perf_counter()
        bare_s.append(last - start)

    trainer.metrics_processor.on_step = after_step
    trainer.train()
    trainer.close()
    run, alone = (statistics.median(times[NOT_STEADY_STEPS:]) for times in (run_s, bare_s))
    tokens = config.training.local_batch_size * config.training.seq_len
    ratio = alone / run
    print(f"bare loop {tokens / alone:,.0f} tokens/s, run {tokens / run:,.0f} tokens/s: {ratio:.1%}, goal {GOAL:.0%}")
    return int(ratio < GOAL)


if __name__ == "__main__":
    leave(partial(main, *map(int, sys.argv[1:])))
