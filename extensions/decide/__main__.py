"""Would FP8 pay for this training? YES, NO, MEASURE FIRST or DOES NOT FIT, and why.

    python -m extensions.decide llama3.1-8B --gpu h200
    python -m extensions.decide 8B --gpu h100 --gpus 8 --seq-len 8192 --tokens 100B --price 2.5
    python -m extensions.decide path/to/config.json --gpu b200
    python -m extensions.decide 8B n_layers=16 --gpu h100

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
    sizes, asked = model(args["model"]), checked(Asked, given, "--")
    answer = estimate(sizes, asked)
    print(json.dumps(answer, indent=2) if args["json"] else text(answer))
    return COMPLETED


def _parser() -> CommandLine:
    parser = CommandLine("extensions.decide", __doc__)
    what = "a name, e.g. llama3.1-8B or 8B; a recipe; a config.json; or sizes"
    parser.add_argument("model", nargs="+", metavar="MODEL|size=N", help=what)
    for name, field in Asked.model_fields.items():
        option = "--" + (field.alias or name).replace("_", "-")
        nargs = "+" if name == "freeze" else None
        parser.add_argument(option, nargs=nargs, help=field.description)
    parser.add_argument("--tensor-parallel", "--tp", help="has no estimate")
    parser.add_argument("--json", action="store_true", help="the answer as JSON")
    return parser


def text(answer: dict) -> str:
    """Write what is known of an answer, a line each."""
    lines = ["{verdict}: {why}".format(**answer)]
    for name, value in list(answer.items())[2:]:
        if name == "nearest":
            near = "{model} on {gpu}, {stack}, {scaling} {speed_up:.2f}: {source}"
            lines += [f"near        {near.format(**pair)}" for pair in value]
        elif isinstance(value, float):
            lines.append(f"{name:<12}{value:.1f}")
        elif isinstance(value, str):
            lines.append(f"{name:<12}{value}")
        elif value and None not in value.values():
            ranges = "{} {:,.2f} ({:,.2f} to {:,.2f})"
            lines.append(
                f"{name:<12}" + ", ".join(ranges.format(key, *of) for key, of in value.items())
            )
    return "\n".join(lines)


if __name__ == "__main__":
    leave(main)
