"""Would FP8 pay for this training? YES, NO, MEASURE FIRST or DOES NOT FIT, and why.

    python -m extensions.decide llama3.1-8B --gpu h200
    python -m extensions.decide 8B --gpu h100 --gpus 8 --seq-len 8192 --tokens 100B --price 2.5
    python -m extensions.decide path/to/config.json --gpu b200
    python -m extensions.decide 8B n_layers=16 --gpu h100

A model is a name, a recipe, a Hugging Face config.json, or sizes (dim=, n_layers=, n_heads=,
n_kv_heads=, head_dim=, hidden_dim=, vocab_size=).

    --gpu           e.g. h100, h200, b200
    --gpus, --batch, --seq-len    how many; rows a GPU; tokens a row (default: 1, 1, 4096)
    --steps, --tokens    of the training, e.g. 100k, or 15B in place of steps
    --price         of a GPU's hour, in any currency
    --recompute     activations: none or full (default: none, if it fits so)
    --freeze        layers that are not trained, e.g. w1 w2 w3

It is an estimate from training speeds that others measured: extensions/decide/README.md.

Exit codes: 0 for every answer, 2 for bad input.
"""

import json

from experiments.jobs.command import COMPLETED, CommandLine, leave
from extensions.decide.answer import estimate
from extensions.decide.asked import Asked, checked, model
from models.errors import InputError

PARALLEL = (
    "tensor parallelism has no estimate, because 1 of 8 such trainings was predicted right: leave "
    "out --tensor-parallel, and measure"
)


def main(argv: list[str] | None = None) -> int:
    """Print the answer."""
    args = vars(_parser().parse(argv))
    if args["tensor_parallel"]:
        raise InputError(PARALLEL)
    given = {name: value for name, value in args.items() if value is not None}
    asked = checked(Asked, given | {"sizes": model(args["sizes"])})
    answer = estimate(asked)
    print(json.dumps(answer, indent=2) if args["json"] else text(answer))
    return COMPLETED


def _parser() -> CommandLine:
    parser = CommandLine("extensions.decide", __doc__)
    add = parser.add_argument
    add("sizes", nargs="+", metavar="MODEL|size=N")
    for name in ("gpu", "gpus", "batch", "seq-len", "steps", "tokens", "price", "recompute"):
        add(f"--{name}")
    add("--freeze", nargs="+")
    add("--tensor-parallel", "--tp")
    add("--json", action="store_true")
    return parser


def text(answer: dict) -> str:
    """Write what is known of an answer, a line each."""
    lines = ["{verdict}: {why}".format(**answer)]
    for name in ("speedup", "step_s", "hours", "cost"):
        for key, of in (answer[name] or {}).items():
            if of:
                said = f"{name} {key}"
                lines.append("{:<20}{:,.2f} ({:,.2f} to {:,.2f})".format(said, *of))
    lines.append("memory_gib          {memory_gib:.1f}".format(**answer))
    for pair in answer["nearest"]:
        said = "{name}: {model} on {gpu}, {stack}, {scaling} {speed_up:.2f}: {source}"
        lines.append(f"{'near':<20}{said.format(**pair)}")
    known = [name for name in ("recompute", "fitted_to", "outside", "measure") if answer[name]]
    lines += [f"{name:<20}{answer[name]}" for name in known]
    return "\n".join(lines)


if __name__ == "__main__":
    leave(main)
