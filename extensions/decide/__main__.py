"""Would FP8 pay for this training? YES, NO, MEASURE FIRST or DOES NOT FIT, and why.

    python -m extensions.decide llama3.1-8B --gpu h200
    python -m extensions.decide 8B --gpu h100 --gpus 8 --seq-len 8192 --tokens 100B --price 2.5
    python -m extensions.decide path/to/config.json --gpu b200
    python -m extensions.decide 8B n_layers=16 --gpu h100

It is an estimate from training speeds that others measured: extensions/decide/README.md.

Exit codes: 0 for every answer, 2 for bad input.
"""

import json
import sys

from experiments.jobs.command import COMPLETED, CommandLine, leave
from extensions.decide.answer import estimate
from extensions.decide.asked import gpu, model, number, whole
from extensions.decide.step import LAYERS
from models.errors import InputError
from models.gpus import GPUS

PARALLEL = (
    "tensor parallelism has no estimate, because one model of others' speeds was right for 1 of 8 "
    "such trainings: leave out --tensor-parallel, and measure"
)


def main(argv: list[str] | None = None) -> int:
    """Print the answer."""
    words = sys.argv[1:] if argv is None else argv
    if any(word.startswith(("--tensor-parallel", "--tp")) for word in words):
        raise InputError(PARALLEL)
    args = _parser().parse(words)
    args.gpu = gpu(args.gpu)
    answer = estimate(*model(args.words), args)
    print(json.dumps(answer, indent=2) if args.json else text(answer))
    return COMPLETED


def _parser() -> CommandLine:
    parser = CommandLine("extensions.decide", __doc__)
    add = parser.add_argument
    what = "a name, e.g. llama3.1-8B or 8B; a recipe; a config.json; or sizes"
    add("words", nargs="*", metavar="MODEL|size=N", help=what)
    add("--gpu", metavar="GPU", help=", ".join(GPUS))
    add("--gpus", type=whole, default=1, metavar="N", help="how many (default: 1)")
    add("--batch", type=whole, default=1, metavar="B", help="rows a GPU (default: 1)")
    add("--seq-len", type=whole, default=4096, metavar="S", help="tokens a row (default: 4096)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=whole, metavar="N", help="of the training, e.g. 100k")
    length.add_argument("--tokens", type=number, metavar="T", help="in place of steps, e.g. 15B")
    add("--price", type=number, metavar="P", help="of a GPU's hour, in any currency")
    recompute = ("none", "full")
    add("--recompute", choices=recompute, help="activations (default: none, if it fits so)")
    add("--freeze", choices=LAYERS, nargs="+", default=[], help="layers that are not trained")
    add("--json", action="store_true", help="the answer as JSON")
    return parser


def text(answer: dict) -> str:
    """Say the answer in one line, and why in a few more."""
    steps = f"{answer['steps']:,} steps" if answer["steps"] else "steps"
    where = f"on {answer['gpus']} {answer['gpu']}, {steps} of {answer['tokens_per_step']:,} tokens"
    said = [("why", answer["why"])]
    if answer["step_s"]:
        said.append(("speed", f"{_ranges(answer['speedup'])} times compiled bf16"))
    for key, name in (("step_s", "seconds"), ("hours", "hours"), ("cost", "cost")):
        if answer[key]:
            said.append((name, _ranges(answer[key])))
    if answer["ahead_from_step"]:
        value, best, worst = (step or "never" for step in answer["ahead_from_step"])
        said.append(("ahead from", f"step {value} (at best {best}, at worst {worst})"))
    recomputed = "nothing recomputed" if answer["recompute"] == "none" else "blocks recomputed"
    sizes = f"{answer['memory_gib']:.1f} of {answer['gpu_gib']:.1f} GiB a GPU"
    said += [("memory", f"about {sizes}, {recomputed}"), ("rests on", answer["fitted_to"])]
    for pair in answer["nearest"]:
        measured = f"{pair['stack']}, {pair['scaling']} {pair['speed_up']:.2f}"
        said.append(("near", f"{pair['model']} on {pair['gpu']}, {measured}: {pair['source']}"))
    if answer["measure"]:
        minutes = f"takes about {answer['measure']['minutes']} minutes"
        said.append(("measure", f"{answer['measure']['command']}  # {minutes}"))
    title = f"{answer['verdict']}: {answer['model']} ({answer['billions']:.3g} B) in FP8 {where}"
    return "\n".join([title, *(f"{name:<12}{what}" for name, what in said)])


def _ranges(values: dict) -> str:
    said = []
    for name, of in values.items():
        value, low, high = (f"{float(f'{number:.3g}'):,g}" for number in of)
        said.append(f"{name} {value} ({low} to {high})")
    return ", ".join(said)


if __name__ == "__main__":
    leave(main)
