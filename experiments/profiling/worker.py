"""One measurement of experiments.bench, a process of its own: trains a recipe, and profiles its
last steps.

    python -m experiments.profiling.worker RECIPE.yaml RECORD.json

The recipe is resolved and trains `training.steps` steps. In the first of the last three the
profiler starts, which can take seconds: it records the two after that. A failure ends stderr with a
line `error: …`.

Exit codes: 0, 1 for a failure, 2 for bad input.
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
from experiments.training.machine import check_here
from experiments.training.metrics import TIMELINE, utilisation
from experiments.training.plan import open_data, plan
from experiments.training.trainer import Trainer
from models.errors import InputError

RECORDED_STEPS = 2
PROFILED_STEPS = 1 + RECORDED_STEPS  # in the first of them the profiler starts


def profile_last_steps(trainer: Trainer) -> profile:
    """Have a trainer profile its last `RECORDED_STEPS` steps; the profiler starts before them."""
    last = trainer.plan.config.training.steps
    start = last - PROFILED_STEPS
    profiler = profile(schedule=schedule(wait=0, warmup=1, active=RECORDED_STEPS))

    def after_step(step: int) -> None:
        if step >= start:
            device.synchronize()
        if step == start:
            profiler.start()
        elif step == last:
            profiler.stop()
        elif step > start:
            profiler.step()

    trainer.on_step = after_step
    return profiler


def record(trainer: Trainer, windows: list[Window], profiler: profile) -> dict:
    """Say what bench.json has of a round, and the kernels. Times in seconds, memory in bytes, MFU a
    fraction."""
    steps = list(chain.from_iterable(window.steps() for window in windows))
    steady = [step.seconds for step in steps[:-PROFILED_STEPS] if step.steady]
    profiled = [step.seconds for step in steps[-RECORDED_STEPS:]]
    step_s, profiled_s = statistics.mean(steady), statistics.mean(profiled)
    tokens_per_s = trainer.plan.tokens / step_s
    timing = trainer.timing
    kernels = parts.table(parts.read_kernels(profiler), RECORDED_STEPS)
    busy = parts.busy_seconds(kernels)
    return {
        "step_s": step_s,
        "tokens_per_s": tokens_per_s,
        "mfu_bf16_peak": utilisation(trainer.plan, tokens_per_s).get("mfu_bf16_peak"),
        "parts": parts.step_parts(busy, profiled_s, step_s, device.TYPE == "cpu"),
        "peak_memory_bytes": max(window.peak_memory_bytes for window in windows),
        "warm_up": {
            "s": timing.warm_up_s,
            "phases": timing.phases,
            "compile_cache": timing.compile_cache,
        },
        "steady_step_s": steady,
        "profiled_step_s": profiled,
        "kernels": parts.top_kernels(kernels),
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
    TIMELINE.mark("import")
    planned = plan(recipe, world_size=1)
    check_here(planned)
    if device.TYPE == "cpu":  # only then has compiled C++ names in a profile; Triton always has
        torch._inductor.config.cpp.enable_kernel_profile = True
    count_compiled()
    trainer = Trainer(planned, open_data(planned)[0], stop)
    trainer.loss_fn = record_function(parts.LOSS_REGION)(trainer.loss_fn)
    windows: list[Window] = []
    trainer.on_window = windows.append
    profiler = profile_last_steps(trainer)
    trainer.train()
    trainer.close()
    torch.distributed.destroy_process_group()
    return record(trainer, windows, profiler)


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
    except InputError:
        raise
    except Exception as error:
        logging.getLogger().exception("the measurement failed")
        # its first sentence: of a GPU that is out of memory it is a paragraph
        complain(re.split(r"(?<=[.]) |\n", f"{type(error).__name__}: {error}")[0])
    return FAILED


if __name__ == "__main__":
    leave(main)
