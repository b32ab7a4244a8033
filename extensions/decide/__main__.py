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
from argparse import Namespace

from experiments.jobs.command import COMPLETED, CommandLine, leave
from extensions.decide.answer import estimate
from extensions.decide.model import sizes
from models.errors import InputError
from models.gpus import GPUS, find

PARALLEL = (
    "tensor parallelism has no estimate, because 1 of 8 such trainings was predicted right: leave "
    "out --tensor-parallel, and measure"
)
RANGE = "{:<12}{:<12}{:,.2f} ({:,.2f} to {:,.2f})"
PAIR = "nearest     {name}: {model} on {gpu}, {stack}, {scaling} {speed_up:.2f}: {source}"
POWERS = str.maketrans({"k": "e3", "m": "e6", "b": "e9", "t": "e12"})


def main(argv: list[str] | None = None) -> int:
    """Print the answer."""
    asked = read(argv)
    answer = estimate(asked)
    print(json.dumps(answer, indent=2) if asked.json else text(answer))
    return COMPLETED


def read(argv: list[str] | None) -> Namespace:
    """Read the command line, and what follows from it. Raises InputError."""
    parser = CommandLine("extensions.decide", __doc__)
    add = parser.add_argument
    add("model", nargs="+")
    add("--gpu", type=gpu, choices=GPUS, required=True)
    for flag, reader, default in (
        ("--gpus", whole, 1),
        ("--batch", whole, 1),
        ("--seq-len", whole, 4096),
        ("--steps", whole, 0),
        ("--tokens", number, 0),
        ("--price", number, 0),
    ):
        add(flag, type=reader, default=default)
    ways = ["none", "full"]  # in this order, the first that fits
    add("--recompute", choices=ways, nargs=1, default=ways)
    add("--freeze", nargs="+", default=[], choices=["wq", "wk", "wv", "wo", "w1", "w2", "w3"])
    add("--tensor-parallel")
    add("--json", action="store_true")
    asked = parser.parse(argv)
    if asked.tensor_parallel:
        raise InputError(PARALLEL)
    asked.sizes = sizes(asked.model)
    asked.parameters = asked.sizes.parameters()
    layers = asked.sizes.linear_shapes().items()
    asked.frozen = sum(n * k for name, (n, k) in layers if name[-2:] in asked.freeze)
    asked.step_tokens = asked.batch * asked.seq_len
    if asked.tokens:
        asked.steps = asked.tokens / (asked.gpus * asked.step_tokens)
    return asked


def gpu(text: str) -> str:
    """Read a GPU's name, whose key in `GPUS` is returned."""
    return find(text) or text


def number(text: str) -> float:
    """Read `300`, `100k` or `1.5T`, more than 0 and finite. Raises ValueError."""
    value = float(text.lower().translate(POWERS))
    if not 0 < value < 1e18:
        raise ValueError
    return value


def whole(text: str) -> int:
    """Read a whole number. Raises ValueError."""
    if number(text) % 1:
        raise ValueError
    return int(number(text))


def text(answer: dict) -> str:
    """Write what is known of an answer, a line each."""
    lines = ["{verdict}: {why}".format(**answer)]
    for name, value in answer.items():
        if isinstance(value, dict):
            lines += [RANGE.format(name, key, *of) for key, of in value.items() if of]
        elif isinstance(value, list):
            lines += [PAIR.format(**pair) for pair in value]
        elif value and name not in ("verdict", "why"):
            lines.append(f"{name:<12}{value}")
    return "\n".join(lines)


if __name__ == "__main__":
    leave(main)
