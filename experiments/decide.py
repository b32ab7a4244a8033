"""Should this training run in FP8? YES, NO, MEASURE FIRST or DOES NOT FIT, and six lines on why.

    python -m experiments.decide 8B --gpu h100 --gpus 8 --seq-len 8192 --tokens 100B

It is an estimate from rooflines and from speed-ups that others measured: docs/decide.md.

Exit codes: 0 for every answer, 2 for bad input.
"""

import json
import math
import re
from argparse import ArgumentTypeError
from collections.abc import Callable

from experiments.config import recipes
from experiments.jobs.command import COMPLETED, CommandLine, count, leave
from models.errors import InputError
from models.gpus import GPUS, find

SUFFIXES = {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
# A model's name: its family, the family's version, billions of parameters, and those of a token.
NAME = r"(?:.*?(llama|qwen)-?(\d)?(?:\.\d)?-)?([\d.]+)b(-a\d+b)?(?:-(?:base|chat|hf|instruct))*"

# Lines of the answer, each with what must be known for it.
LINES = (
    ("verdict", "{verdict}: {model} ({billions:.3g} B) in FP8 on {gpus} {gpu}, {training}"),
    ("at_most", "speed          at most {at_most:.2f} times compiled bf16"),
    (
        "step_s",
        """\
speed          tensorwise {speed_up[tensorwise][expected]:.2f} \
({speed_up[tensorwise][low]:.2f} to {speed_up[tensorwise][high]:.2f}), \
rowwise {speed_up[rowwise][expected]:.2f} \
({speed_up[rowwise][low]:.2f} to {speed_up[rowwise][high]:.2f}) times compiled bf16
time and cost  {times}
overtakes at   {expected} (at best {high}, at worst {low}){pays}; \
first step (compile) {later_s:.1f} s longer ({first_step})""",
    ),
    ("fits", "memory         about {needed} of {has} GiB a GPU: {fit_in}"),
    ("why", "why            {why}"),
    (
        "nearest",
        "trust          {trust}nearest: {nearest[model]} on {nearest[gpu]}, {nearest[stack]}, "
        "{nearest[scaling]} {nearest[speed_up]:.2f}",
    ),
)
DETAILS = (
    ("nearest", "nearest        {nearest[name]}: {nearest[source]}"),
    ("step_s", "step, ms       {steps_ms}\nfit            {parameters} (docs/decide.md)"),
    ("run", "run            {run}\nmeasure        {measure}"),
)


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse(argv)
    args.gpu = _gpu(args.gpu)  # before torch is imported, which takes seconds

    from experiments.profiling.estimate import estimate

    args.keys = _keys(args)
    answer = estimate(args)
    print(json.dumps(answer, indent=2) if args.json else text(answer, args.verbose))
    return COMPLETED


def _parser() -> CommandLine:
    parser = CommandLine("experiments.decide", __doc__)
    add = parser.add_argument
    words = "e.g. llama3.1-8B or 8B (default: the recipes')"
    add("words", nargs="*", metavar="MODEL|key=value", help=words)
    add("--gpu", metavar="GPU", help=f"{', '.join(GPUS)} (default: this machine's)")
    add("--gpus", type=count, default=1, metavar="N", help="how many (default: 1)")
    add("--tensor-parallel", type=count, default=1, metavar="N",
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
        raise ArgumentTypeError(f"{text!r}: expected a number, e.g. 300, 100k or 1.5T")
    return float(match[1]) * SUFFIXES[match[2]]


def whole(text: str) -> int:
    """Read a whole number of 1 and more: `300`, `100k`."""
    value = number(text)
    if value < 1 or value != int(value):
        raise ArgumentTypeError(f"{text!r}: expected a whole number of 1 and more")
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
    models = [word for word in args.words if "=" not in word]
    keys = [word for word in args.words if "=" in word]
    if len(models) > 1:
        raise InputError(f"ask about one model at a time: {' and '.join(models)} are two")
    if any(key.startswith("training.steps=") for key in keys):
        raise InputError("say --steps N, or --tokens T, in place of training.steps")
    for model in models:
        keys = [*recipes.flavor_keys(flavor(model)), *keys]
    sizes = {"local_batch_size": args.local_batch_size, "seq_len": args.seq_len}
    return keys + [f"training.{key}={value}" for key, value in sizes.items() if value]


def flavor(model: str) -> str:
    """Find the flavor that a model's name means: `8B`, `Llama-3-8B` and
    `meta-llama/Llama-3.1-8B-Instruct` mean llama3.1-8B.

    Another name stays as it is. Raises `InputError` with the nearest of another size.
    """
    from models.architectures import ARCHITECTURES

    flavors = [*ARCHITECTURES["llama"].flavors, *ARCHITECTURES["qwen3"].flavors]
    asked = re.fullmatch(NAME, model.lower())
    if model in flavors or not asked:
        return model
    found = {name: re.fullmatch(NAME, name.lower()) for name in flavors}
    known = {name: parts.groups() for name, parts in found.items() if parts}
    for name, parts in known.items():
        if all(word in (None, part) for word, part in zip(asked.groups(), parts, strict=True)):
            return name
    size = float(asked[3])
    near = sorted(known, key=lambda name: abs(float(known[name][2]) - size))
    raise InputError(
        f"choose the nearest in size, {near[0]} or {near[1]}, or give sizes of your own, "
        f"'model.sizes={{dim: 2048}}': `{model}` is no model here"
    )


# ---- the answer in words ----


def text(answer: dict, verbose: bool) -> str:
    """Say the answer in one line, and why in six; lines about speed are left out where there is
    none to compare."""
    recomputed = "activations" if answer["recomputes"] else "nothing"
    words = answer | {
        "needed": digits(answer["needed_gib"]),
        "has": digits(answer["gpu_gib"]),
        "training": f"steps of {answer['tokens_per_step']:,} tokens",
        "fit_in": f"fits, {recomputed} recomputed" if answer["fits"] else "does not fit",
        "trust": f"{answer['trust']}; " if "trust" in answer else "",
    }
    if answer["steps"]:
        words["training"] = f"{answer['steps']:,} {words['training']}"
    if "step_s" in answer:
        words |= _times(answer)
    lines = LINES + DETAILS if verbose else LINES
    return "\n".join(line.format(**words) for key, line in lines if key in answer)


def _listed(values: dict[str, float], write: Callable[[float], str]) -> str:
    return ", ".join(f"{write(value)} {name}" for name, value in values.items())


def _times(answer: dict) -> dict[str, str]:
    """Put hours, costs and steps into words."""
    steps = answer["overtakes_at_step"].items()
    words = {end: f"step {step:,}" if step else "never" for end, step in steps}
    words["pays"] = ""
    if answer["verdict"] == "YES" and not answer["steps"]:
        words["pays"] = f", YES from {words['low']} on"
    words["times"] = "about " + _listed(answer["hours"], duration)
    if answer["cost"]:
        words["times"] += "; cost " + _listed(answer["cost"], "{:,.2f}".format)
    words["steps_ms"] = ", ".join(f"{n} {1e3 * s:,.0f}" for n, s in answer["step_s"].items())
    words["parameters"] = ", ".join(f"{name} {x:.2f}" for name, x in answer["fit"].items())
    return words


def duration(hours: float) -> str:
    """Write hours with three digits, less than one of them in minutes."""
    return f"{digits(hours)} h" if abs(hours) >= 1 else f"{60 * hours:.3g} min"


def digits(value: float) -> str:
    """Write three digits, or all before the point."""
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


if __name__ == "__main__":
    leave(main)
