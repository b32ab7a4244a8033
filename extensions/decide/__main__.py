"""Would FP8 pay for this training? YES, NO, MEASURE FIRST or DOES NOT FIT, and why.

    python -m extensions.decide llama3.1-8B --gpu h200
    python -m extensions.decide 8B --gpu h100 --gpus 8 --seq-len 8192 --tokens 100B --price 2.5
    python -m extensions.decide path/to/model --gpu b200 --format mxfp8
    python -m extensions.decide 8B n_layers=16 --gpu h100
    python -m extensions.decide --list

A model is a name, a recipe, a Hugging Face config.json or its folder, or sizes (dim=, n_layers=,
n_heads=, n_kv_heads=, head_dim=, hidden_dim=, vocab_size=).

    --list          the names of models, families and GPUs
    --gpu           by any of its names, e.g. h100, h200, b200, "NVIDIA H100 PCIe"
    --gpus, --batch, --seq-len    how many; rows a GPU; tokens a row (default: 1, 1, 4096)
    --steps, --tokens    of the training, e.g. 100k, or 15B in place of steps
    --price         of a GPU's hour, in any currency
    --format        fp8, mxfp8 or nvfp4 (default: fp8)
    --recompute     activations: none or full (default: none, if it fits so)
    --freeze        layers that are not trained, e.g. w1 w2 w3

It is an estimate from training speeds that others measured: extensions/decide/README.md.

Exit codes: 0 for every answer, 2 for bad input.
"""

import argparse
import json
import re

from experiments.jobs.command import EXIT_COMPLETED, CommandLine, exit_with
from extensions.decide.answer import FORMAT_NAMES, answer_old_gpu, estimate
from extensions.decide.model import FAMILIES, MODELS, read_model
from extensions.decide.training import Training, block_weights, choose_recompute
from models import gpus
from models.flops import format_parameters

PARALLEL_REFUSAL = (
    "tensor parallelism has no estimate, because 1 of 8 such trainings was predicted right: leave "
    "out --tensor-parallel, and measure"
)
BLOCK_LAYERS = ["wq", "wk", "wv", "wo", "w1", "w2", "w3"]
RANGE_LINE = "{:<12}{:<12}{:,.2f} ({:,.2f} to {:,.2f})"
PAIR_LINE = (
    "nearest     {name}: {model} on {gpu}, {stack}, {scaling} {speed_up:.2f}{figures}: {source}"
)
MEMORY_LINE = (
    "memory_gib  {memory_gib} of {gpu_memory_gib}: parameters, gradients and both moments of AdamW "
    "in bf16, 8 bytes a parameter"
)
POWER_LETTERS = {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def main(argv: list[str] | None = None) -> int:
    """Print the answer. Raises InputError."""
    parser = make_parser()
    args = parser.parse_arguments(argv)
    if args.list:
        print_names()
        return EXIT_COMPLETED
    check_arguments(parser, args)
    answer = answer_arguments(args)
    if args.json:
        print(json.dumps(answer, indent=2))
    else:
        print_answer(answer)
    return EXIT_COMPLETED


# ---- arguments ----


def make_parser() -> CommandLine:
    """Declare the arguments."""
    parser = CommandLine("extensions.decide", __doc__)
    add = parser.add_argument
    add("model", nargs="*")
    add("--list", action="store_true")
    add("--gpu", type=gpu_name)
    for option_name, default_value in (("--gpus", 1), ("--batch", 1), ("--seq-len", 4096)):
        add(option_name, type=whole_number, default=default_value)
    for option_name in ("--steps", "--tokens", "--price"):
        add(option_name, type=number, default=0)
    add("--format", choices=FORMAT_NAMES, default="fp8")
    # Without it, the first of the two that fits
    add("--recompute", choices=["none", "full"], nargs=1, default=["none", "full"])
    add("--freeze", nargs="+", default=[], choices=BLOCK_LAYERS)
    add("--tensor-parallel")
    add("--json", action="store_true")
    return parser


def check_arguments(parser: CommandLine, args: argparse.Namespace) -> None:
    """Check what argparse cannot. Raises InputError."""
    if not args.model:
        parser.error("no model is named: give a name, a config.json or sizes; --list has names")
    if args.gpu is None:
        parser.error("no GPU is named: give --gpu, e.g. --gpu h100; --list has names")
    if args.tensor_parallel:
        parser.error(PARALLEL_REFUSAL)
    if args.steps and args.tokens:
        parser.error("--steps and --tokens are two ways to say how long it trains: give one")


def gpu_name(option_text: str) -> str:
    """Read `--gpu`: the key of a GPU, or the name of one without FP8 units. Raises
    ArgumentTypeError."""
    gpu_key = gpus.find(option_text)
    if gpu_key is None and gpus.find_old_chip(option_text) is None:
        raise argparse.ArgumentTypeError(
            f"{gpus.explain_unknown_gpu(option_text)} (--list has all names)"
        )
    return gpu_key or option_text


def number(option_text: str) -> float:
    """Read `300`, `100k` or `1.5T`, more than 0. Raises ArgumentTypeError."""
    number_match = re.fullmatch(
        r"(\d{1,18}(?:\.\d{1,18})?(?:e\d{1,2})?)([kmbt]?)", option_text.lower()
    )
    number_value = float(number_match[1]) * POWER_LETTERS[number_match[2]] if number_match else 0
    if not 0 < number_value < 1e18:
        raise argparse.ArgumentTypeError(
            f"expected a number above 0, as 300, 100k or 1.5T, got {option_text:.40}"
        )
    return number_value


def whole_number(option_text: str) -> int:
    """Read a whole number above 0. Raises ArgumentTypeError."""
    if not re.fullmatch(r"[0-9]{1,9}", option_text) or int(option_text) == 0:
        raise argparse.ArgumentTypeError(
            f"expected a whole number above 0 in digits, as 8192, got {option_text:.40}"
        )
    return int(option_text)


# ---- answer ----


def answer_arguments(args: argparse.Namespace) -> dict:
    """Answer what is asked. Raises InputError."""
    model = read_model(args.model)
    if args.gpu not in gpus.GPUS:
        return answer_old_gpu(args.gpu, args.format)
    frozen_weights = 0
    if args.freeze and model.sizes:
        layer_weights = block_weights(model.sizes)
        frozen_weights = sum(
            layer_weights[name] for name in layer_weights if name.endswith(tuple(args.freeze))
        )
    training, memory_bytes = choose_recompute(
        Training(
            model=model,
            gpu=args.gpu,
            gpus=args.gpus,
            batch=args.batch,
            seq_len=args.seq_len,
            recompute=args.recompute[0],
            frozen=frozen_weights,
            bf16_layers=model.bf16_layers,
        ),
        args.recompute,
    )
    n_steps = args.steps or args.tokens / (training.gpus * training.step_tokens)
    return estimate(training, memory_bytes, n_steps, args.price, args.format)


def print_answer(answer: dict) -> None:
    """Print what is known of an answer."""
    print(f"{answer['verdict']}: {answer['why']}")
    if answer["parameters"]:
        print(
            f"{'model':<12}{answer['model']}, {format_parameters(answer['parameters'])} parameters"
        )
    if answer["memory_gib"]:
        print(MEMORY_LINE.format(**answer))
    if answer["fitted_to"]:
        print(f"{'recompute':<12}{answer['recompute']}")
        print(f"{'fitted_to':<12}{answer['fitted_to']}")
        print(f"{'outside':<12}{', '.join(answer['outside']) or 'nothing'}")
    print_ranges(answer)
    for pair in answer["nearest"]:
        print(PAIR_LINE.format(**pair))
    if answer["loss"]:
        print(f"{'loss':<12}{answer['loss']}")
    for note in answer["notes"]:
        print(f"{'note':<12}{note}")
    if answer["measure"]:
        print(answer["measure"])


def print_ranges(answer: dict) -> None:
    """Print the numbers that have a range."""
    for field_name in ("speedup", "step_s", "hours", "cost"):
        for recipe_name, value_range in (answer[field_name] or {}).items():
            if value_range:
                print(RANGE_LINE.format(field_name, recipe_name, *value_range))


def print_names() -> None:
    """Print the names of models, families and GPUs."""
    print("Models, in any spelling; sizes such as n_layers=16 change them:")
    for model_name in [*MODELS["models"], *MODELS["other_experts"]]:
        print(f"  {model_name}")
    print("Families, by the model_type of a config.json:")
    print(f"  {', '.join([*FAMILIES['gated'], *FAMILIES['ungated'], *FAMILIES['experts']])}")
    print("GPUs, by any name that a driver, a cloud or a shop gives them:")
    for gpu_key, gpu in gpus.GPUS.items():
        rate_text = f"{gpu.bf16 / 1e12:,.0f} TFLOP/s in bf16" if gpu.bf16 else "no rates published"
        unit_text = "" if gpu.has_fp8_units else ", no FP8 units"
        print(f"  {gpu_key:<20} {gpu.chip}, {gpu.memory / 1e9:.0f} GB, {rate_text}{unit_text}")


if __name__ == "__main__":
    exit_with(main)
