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
from extensions.decide.model import sizes
from models.gpus import GPUS, find

PARALLEL = (
    "tensor parallelism has no estimate, because 1 of 8 such trainings was predicted right: leave "
    "out --tensor-parallel, and measure"
)
ANSWER = """\
{verdict}: {why}
memory_gib  {memory_gib}
recompute   {recompute}
fitted_to   {fitted_to}
outside     {outside}"""
RANGE = "{:<12}{:<12}{:,.2f} ({:,.2f} to {:,.2f})"
PAIR = "nearest     {name}: {model} on {gpu}, {stack}, {scaling} {speed_up:.2f}: {source}"
POWERS = str.maketrans({"k": "e3", "m": "e6", "b": "e9", "t": "e12"})


def main(argv: list[str] | None = None) -> int:
    """Print the answer. Raises InputError."""
    parser = CommandLine("extensions.decide", __doc__)
    add = parser.add_argument
    add("model", nargs="+")
    add("--gpu", type=lambda name: find(name) or name, choices=GPUS, required=True)
    for flag, default in (("--gpus", 1), ("--batch", 1), ("--seq-len", 4096)):
        add(flag, type=positive_whole_number, default=default)
    for flag in ("--steps", "--tokens", "--price"):
        add(flag, type=positive_number, default=0)
    # Without it, the first of the two that fits
    add("--recompute", choices=["none", "full"], nargs=1, default=["none", "full"])
    add("--freeze", nargs="+", default=[], choices=["wq", "wk", "wv", "wo", "w1", "w2", "w3"])
    add("--tensor-parallel")
    add("--json", action="store_true")
    asked = parser.parse(argv)
    if asked.tensor_parallel:
        parser.error(PARALLEL)
    asked.sizes = sizes(asked.model)
    asked.parameters = asked.sizes.parameters()
    asked.frozen = sum(
        n * k
        for name, (n, k) in asked.sizes.linear_shapes().items()
        if name.endswith(tuple(asked.freeze))
    )
    asked.step_tokens = asked.batch * asked.seq_len
    answer = estimate(asked)
    if asked.json:
        print(json.dumps(answer, indent=2))
    else:
        show(answer)
    return COMPLETED


def positive_number(text: str) -> float:
    """Read `300`, `100k` or `1.5T`, more than 0 and finite. Raises ValueError."""
    value = float(text.lower().translate(POWERS))
    if not 0 < value < 1e18:
        raise ValueError
    return value


def positive_whole_number(text: str) -> int:
    """Read a whole number, with the limits of `positive_number`. Raises ValueError."""
    positive_number(text)
    return int(text)


def show(answer: dict) -> None:
    """Print what is known of an answer."""
    print(ANSWER.format(**answer))
    for name, value in answer.items():
        if isinstance(value, dict):
            for recipe, numbers in value.items():
                if numbers:
                    print(RANGE.format(name, recipe, *numbers))
    for pair in answer["nearest"]:
        print(PAIR.format(**pair))


if __name__ == "__main__":
    leave(main)
