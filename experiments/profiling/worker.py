"""One measurement of experiments.bench, a process of its own: trains a recipe, and profiles its
last steps.

    python -m experiments.profiling.worker RECIPE.yaml RECORD.json

The recipe is resolved and trains `training.steps` steps. In the first of the last three the
profiler starts, which can take seconds: it records the two after that. A failure ends stderr with a
line `error: …`.

Exit codes: 0, or 1 for a failure.
"""

import json
import logging
import re
import statistics
import tempfile
from itertools import chain
from pathlib import Path

from models import device  # before torchtitan: see there  # isort: skip
import torch
from torch.profiler import profile, record_function, schedule

from experiments.config import recipes
from experiments.jobs.command import COMPLETED, FAILED, CommandLine, Stop, complain, leave
from experiments.jobs.ranks import set_rank_environment
from experiments.profiling import parts
from experiments.records.run import Window
from experiments.training.metrics import utilisation
from experiments.training.plan import check_here, open_data, plan
from experiments.training.trainer import Trainer
from models.errors import InputError

RECORDED_STEPS = 2
PROFILED_STEPS = 1 + RECORDED_STEPS  # in the first of them the profiler starts


class Measurement:
    """Step times of a trainer as it trains, and the profile of its last steps."""

    def __init__(self, trainer: Trainer):
        self.trainer, self.plan = trainer, trainer.plan
        self.last = self.plan.config.training.steps
        self.starting = self.last - RECORDED_STEPS  # the step in which the profiler starts
        self.windows: list[Window] = []
        self.profiler = profile(schedule=schedule(wait=0, warmup=1, active=RECORDED_STEPS))
        trainer.on_step, trainer.on_window = self.on_step, self.windows.append

    def on_step(self, step: int) -> None:
        if step >= self.starting - 1:
            device.synchronize()
        if step == self.starting - 1:
            self.profiler.start()
        elif step == self.last:
            self.profiler.stop()
        elif step >= self.starting:
            self.profiler.step()

    def record(self) -> dict:
        """Say what bench.json has of a round, and the kernels. Times in seconds, memory in bytes,
        MFU a fraction."""
        steady, profiled = [], []
        for step in chain.from_iterable(window.steps() for window in self.windows):
            if step.step > self.starting:
                profiled.append(step.seconds)
            elif step.step < self.starting and step.steady:
                steady.append(step.seconds)
        step_s = statistics.mean(steady)
        tokens_per_s = self.plan.tokens / step_s
        timing = self.trainer.timing
        kernels = parts.read_kernels(self.profiler)
        busy = {part: s / len(profiled) for part, s in parts.busy_seconds(kernels).items()}
        return {
            "step_s": step_s,
            "tokens_per_s": tokens_per_s,
            "mfu_bf16_peak": utilisation(self.plan, tokens_per_s).get("mfu_bf16_peak"),
            "parts": parts.step_parts(
                busy, statistics.mean(profiled), step_s, host_is_device=device.TYPE == "cpu"
            ),
            "peak_memory_bytes": max(window.peak_memory_bytes for window in self.windows),
            "warm_up": {
                "s": timing.warm_up_s,
                "phases": timing.phases,
                "compile_cache": timing.compile_cache,
            },
            "steady_step_s": steady,
            "profiled_step_s": profiled,
            "kernels": parts.top_kernels(kernels, len(profiled)),
            "compiled_graphs": compiled_graphs(),
        }


def count_compiled() -> None:
    """Have inductor count what it compiles, for `compiled_graphs`."""
    from torch._inductor.compile_fx import inductor_metrics_log

    inductor_metrics_log.setLevel(logging.INFO)  # turns the counting on; its messages go nowhere
    inductor_metrics_log.propagate = False
    inductor_metrics_log.addHandler(logging.NullHandler())


def compiled_graphs() -> list[dict]:
    """Count the kernels of each graph that inductor compiled, and the bytes that they read and
    write, as inductor counts them.

    The fast layer's cast to FP8 is included, but what it writes counts twice: to inductor it
    changes what it is given. Matmuls and attention are kernels of libraries and not counted. A
    block's graphs, forward and backward, serve all blocks. A graph that came from the compile cache
    is not in the list.
    """
    from torch._inductor import ir, metrics
    from torch._inductor.scheduler import ExternKernelSchedulerNode

    graphs: dict[int, dict] = {}
    for node, words in metrics.nodes_num_elem:
        ours = isinstance(node.node, ir.UserDefinedTritonKernel)
        if ours or not isinstance(node, ExternKernelSchedulerNode):
            graph = graphs.setdefault(id(node.scheduler), {"kernels": 0, "bytes": 0})
            graph["kernels"] += 1
            graph["bytes"] += 4 * words
    return list(graphs.values())


def measure(recipe: recipes.Recipe, stop: Stop) -> dict:
    """Train as experiments.run does, and return the record. Raises what a run raises."""
    planned = plan(recipe, world_size=1)
    check_here(planned)
    if device.TYPE == "cpu":  # only then has compiled C++ names in a profile; Triton always has
        torch._inductor.config.cpp.enable_kernel_profile = True
    count_compiled()
    trainer = Trainer(planned, open_data(planned)[0], stop)
    trainer.loss_fn = record_function(parts.LOSS_REGION)(trainer.loss_fn)
    measurement = Measurement(trainer)
    trainer.train()
    trainer.close()
    torch.distributed.destroy_process_group()
    return measurement.record()


def main(argv: list[str] | None = None) -> int:
    parser = CommandLine("experiments.profiling.worker", __doc__)
    parser.add_argument("recipe")
    parser.add_argument("record", type=Path)
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO)
    stop = Stop()
    stop.listen()
    try:
        set_rank_environment()
        loaded = recipes.load(args.recipe)
        with tempfile.TemporaryDirectory() as folder:
            loaded.config.job.dump_folder = folder
            measured = measure(loaded, stop)
        args.record.write_text(json.dumps(measured, indent=1) + "\n")
        return COMPLETED
    except InputError as error:
        complain(error)
    except Exception as error:
        logging.getLogger().exception("the measurement failed")
        # its first sentence: of a GPU that is out of memory it is a paragraph
        complain(re.split(r"(?<=[.]) |\n", f"{type(error).__name__}: {error}")[0])
    return FAILED


if __name__ == "__main__":
    leave(main)
