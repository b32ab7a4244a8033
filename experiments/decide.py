"""Should this training run in FP8? YES, NO, MEASURE FIRST or DOES NOT FIT, and six lines on why.

    python -m experiments.decide 8B --gpu h100 --gpus 8 --seq-len 8192 --tokens 100B

It is an estimate from rooflines and from speed-ups that others measured: docs/decide.md. Exit code
0 for every answer, 2 for bad input.
"""

import argparse
import json
import math
import re

from experiments.config import recipes
from experiments.jobs.command import COMPLETED, leave, process_count
from models.errors import InputError
from models.gpus import GPUS, find

EPILOG = (
    "example: python -m experiments.decide 8B --gpu h100 --gpus 8 --tokens 100B; exit code 0 for "
    "every answer, 2 for bad input"
)
SUFFIXES = {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}

HEAD = "{verdict}: {model} ({billions:.3g} B) in FP8 on {gpus} {gpu}, {training}\n"
BOUND = "speed          at most {at_most:.2f} times compiled bf16\n"
SPEED = """\
speed          tensorwise {speed_up[tensorwise][expected]:.2f} \
({speed_up[tensorwise][low]:.2f} to {speed_up[tensorwise][high]:.2f}), \
rowwise {speed_up[rowwise][expected]:.2f} \
({speed_up[rowwise][low]:.2f} to {speed_up[rowwise][high]:.2f}) times compiled bf16
time and cost  {times}
overtakes at   {expected} (at best {high}, at worst {low}){pays}; \
first step (compile) {later_s:.1f} s longer ({first_step})
"""
TAIL = """\
memory         about {needed_gib:.3g} of {gpu_gib:.3g} GiB a GPU: {fit_in}
why            {why}
trust          {trust}nearest: {nearest[model]} on {nearest[gpu]}, {nearest[stack]}, \
{nearest[scaling]} {nearest[speed_up]:.2f}"""
DETAILS = """
nearest        {nearest[name]}: {nearest[source]}
"""
PREDICTED = """\
step, ms       {steps_ms}
fit            {parameters} (docs/decide.md)
"""
COMMANDS = """\
run            {run}
measure        {measure}"""


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_intermixed_args(argv)
    args.gpu = _gpu(args.gpu)  # before torch is imported, which takes seconds

    from experiments.profiling.estimate import estimate

    args.keys = _keys(args)
    answer = estimate(args)
    print(json.dumps(answer, indent=2) if args.json else text(answer, args.verbose))
    return COMPLETED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.decide",
        description="Should this training be in FP8?",
        epilog=EPILOG,
    )
    add = parser.add_argument
    words = "e.g. llama3.1-8B or 8B (default: the recipes')"
    add("words", nargs="*", metavar="MODEL|key=value", help=words)
    add("--gpu", metavar="GPU", help=f"{', '.join(GPUS)} (default: this machine's)")
    add("--gpus", type=process_count, default=1, metavar="N", help="how many (default: 1)")
    add("--tensor-parallel", type=process_count, default=1, metavar="N",
        help="GPUs that share each matrix; for the estimate, the recipes have none")  # fmt: skip
    add("--local-batch-size", "--batch", type=whole, metavar="B", help="rows a GPU (default: 1)")
    add("--seq-len", "--sequence", type=whole, metavar="S", help="tokens a row (default: 4096)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=whole, metavar="N", help="of the training, e.g. 100k")
    length.add_argument("--tokens", type=number, metavar="T", help="in place of steps, e.g. 15B")
    add("--price", type=number, metavar="P", help="of a GPU's hour, in any currency")
    add("--first-step", type=number, metavar="S",
        help="seconds that FP8's first step (compile) takes longer than bf16's")  # fmt: skip
    add("--verbose", action="store_true", help="what the answer rests on, and commands")
    add("--json", action="store_true", help="the answer as JSON")
    return parser


# ---- what is asked ----


def number(text: str) -> float:
    """Read a number of 0 and more: `300`, `100k`, `1.5T`."""
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+|\d+e\d+)([kmbt]?)", text.lower())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number, e.g. 300, 100k or 1.5T")
    return float(match[1]) * SUFFIXES[match[2]]


def whole(text: str) -> int:
    """Read a whole number of 1 and more: `300`, `100k`."""
    value = number(text)
    if value < 1 or value != int(value):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of 1 and more")
    return int(value)


def _gpu(name: str | None) -> str:
    """Find the key in `GPUS`. Raises `InputError` with a question where the name is not known."""
    asked = f"which GPU is `{name}`?"
    if name is None:
        from models import device

        name = device.name() if device.TYPE == "cuda" else "none"
        asked = f"which GPU? This machine has {name}: name one with --gpu."
    gpu = name.lower() if name.lower() in GPUS else find(name)
    if gpu is None:
        raise InputError(
            f"{asked} Known are {', '.join(GPUS)}; "
            "for another one, add its datasheet's line to models/gpus.py"
        )
    return gpu


def _keys(args) -> list[str]:
    """Put what the command line says of the training into a recipe's keys."""
    flavors = [word for word in args.words if "=" not in word]
    if len(flavors) > 1:
        raise InputError(f"ask about one model at a time: {' and '.join(flavors)} are two")
    keys = []
    for word in args.words:
        keys += recipes.flavor_keys(_flavor(word)) if word in flavors else [word]
    if any(key.startswith("training.steps=") for key in keys):
        raise InputError("say --steps N, or --tokens T, in place of training.steps")
    sizes = {"local_batch_size": args.local_batch_size, "seq_len": args.seq_len}
    return keys + [f"training.{key}={value}" for key, value in sizes.items() if value]


def _flavor(word: str) -> str:
    """Find a flavor by its size alone: `8B` is llama3.1-8B, `14B` is qwen3-14B."""
    from models.architectures import ARCHITECTURES

    flavors = [*ARCHITECTURES["llama"].flavors, *ARCHITECTURES["qwen3"].flavors]
    of_size = [name for name in flavors if name.lower().endswith(f"-{word.lower()}")]
    return next(iter(of_size), word) if word not in flavors else word


# ---- the answer in words ----


def text(answer: dict, verbose: bool) -> str:
    """Say the answer in one line, and why in six; lines about speed are left out where there is
    none to compare."""
    recomputed = "activations" if answer["recomputes"] else "nothing"
    words = answer | {
        "training": f"steps of {answer['tokens_per_step']:,} tokens",
        "fit_in": f"fits, {recomputed} recomputed" if answer["fits"] else "does not fit",
        "trust": f"{answer['trust']}; " if "trust" in answer else "",
    }
    if answer["steps"]:
        words["training"] = f"{answer['steps']:,} {words['training']}"
    template = HEAD
    if "at_most" in answer:
        template += BOUND
    if "step_s" in answer:
        template += SPEED
        words |= _times(answer)
    template += TAIL
    if verbose:
        template += DETAILS
        template += PREDICTED if "step_s" in answer else ""
        template += COMMANDS if "run" in answer else ""
    return template.format(**words)


def _times(answer: dict) -> dict[str, str]:
    """Put hours, costs and steps into words."""
    steps = answer["overtakes_at_step"].items()
    words = {end: f"step {step:,}" if step else "never" for end, step in steps}
    words["pays"] = ""
    if answer["verdict"] == "YES" and not answer["steps"]:
        words["pays"] = f", YES from {words['low']} on"
    times = [f"{duration(hours)} {name}" for name, hours in answer["hours"].items()]
    costs = [f"{cost:,.2f} {name}" for name, cost in (answer["cost"] or {}).items()]
    words["times"] = "about " + "; cost ".join(", ".join(part) for part in (times, costs) if part)
    words["steps_ms"] = ", ".join(f"{n} {1e3 * s:,.0f}" for n, s in answer["step_s"].items())
    words["parameters"] = ", ".join(f"{name} {x:.2f}" for name, x in answer["fit"].items())
    return words


def duration(hours: float) -> str:
    """Write hours with three digits, less than one of them in minutes."""
    if abs(hours) < 1:
        return f"{60 * hours:.3g} min"
    digits = max(0, 2 - math.floor(math.log10(abs(hours))))
    return f"{hours:,.{digits}f} h"


if __name__ == "__main__":
    leave(main)
