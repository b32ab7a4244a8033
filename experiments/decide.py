"""Should this training run in FP8? YES, NO, MEASURE FIRST or DOES NOT FIT, and six lines on why.

    python -m experiments.decide 8B --gpu h100 --gpus 8 --seq-len 8192 --tokens 100B

It is an estimate from rooflines and from speed-ups that others measured: docs/decide.md. Exit code 0
for every answer, 2 for bad input.
"""

import argparse
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.compatibility import cells
from analysis.load import load, steps
from analysis.rates import completed
from experiments.config import recipes
from experiments.config.yaml_source import ROOT
from experiments.jobs.exit_codes import COMPLETED, complain, leave
from experiments.jobs.rank_environment import process_count
from experiments.records.run import MANIFEST, RECIPE
from models.errors import InputError
from models.gpus import GPUS, find

if TYPE_CHECKING:
    from experiments.profiling.estimate import Measured

RESULTS = ROOT / "results"
SCALINGS = {
    "baseline_compiled": "bf16",
    "tensorwise_fp8_compiled": "tensorwise",
    "tensorwise_fp8_allgather": "tensorwise",
    "rowwise_fp8_compiled": "rowwise",
}
SUFFIXES = {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
HEAD = "{verdict}: {model} ({billions:.3g} B) in FP8 on {gpus} {gpu}{how_long}"


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_intermixed_args(argv)
    gpu = _gpu(args.gpu)  # before torch is imported, which takes seconds

    from experiments.profiling.estimate import Question, estimate

    question = Question(
        keys=_keys(args), gpu=gpu, gpus=args.gpus, tensor_parallel=args.tensor_parallel,
        steps=args.steps, tokens=args.tokens, price=args.price, first_step=args.first_step,
    )  # fmt: skip
    answer = estimate(question, list(kept(RESULTS)), refused())
    print(json.dumps(answer, indent=2) if args.json else text(answer, args.verbose))
    return COMPLETED


def _parser() -> argparse.ArgumentParser:
    example = "example: python -m experiments.decide 8B --gpu h100 --gpus 8 --tokens 100B"
    parser = argparse.ArgumentParser(
        prog="python -m experiments.decide",
        description="Should this training be in FP8?",
        epilog=f"{example}; exit code 0 for every answer, 2 for bad input",
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
    sizes = {"local_batch_size": args.local_batch_size, "seq_len": args.seq_len}
    keys += [f"training.{key}={value}" for key, value in sizes.items() if value is not None]
    if any(key.startswith("training.steps=") for key in keys):
        raise InputError("say --steps N, or --tokens T, in place of training.steps")
    return keys


def _flavor(word: str) -> str:
    """Find a flavor by its size alone: `8B` is llama3.1-8B, `14B` is qwen3-14B."""
    from models.architectures import ARCHITECTURES

    flavors = [name for one in ARCHITECTURES.values() for name in one.flavors]
    of_size = [name for name in flavors if name.lower().endswith(f"-{word.lower()}")]
    return of_size[0] if of_size and word not in flavors else word


def kept(results: Path) -> Iterator["Measured"]:
    """Read the studies in `results` that have GPU runs in compiled bf16 and in FP8."""
    from experiments.profiling.estimate import own_study

    manifests = results.glob(f"**/seed*/{MANIFEST}")
    # Loading all studies would take seconds.
    on_gpus = {m.parents[2] for m in manifests if '"type": "cuda"' in m.read_text()}
    for study in sorted(on_gpus):
        frames = load(study)
        runs = frames.runs[frames.runs["status"] == "completed"]
        first = runs.drop_duplicates("recipe").set_index("recipe")
        names = {s: name for name, s in SCALINGS.items() if name in first.index}
        if "bf16" not in names or len(names) == 1:
            continue
        chosen = first.loc[names.values()].set_axis(names.keys())
        gpu, gpus = find(chosen["device"].iloc[0]), int(chosen["world_size"].iloc[0])
        by_step = steps(frames.windows)
        done = {s: completed(name, runs, frames.windows, by_step) for s, name in names.items()}
        rates = {s: of.rate.mean / gpus for s, of in done.items()}
        if gpu and GPUS[gpu].rates.fp8 and all(rate > 0 for rate in rates.values()):
            files = {s: f"{path}/{RECIPE}" for s, path in chosen["path"].items()}
            try:
                first_step_s = chosen["warm_up_s"].to_dict()
                yield own_study(str(study), gpu, gpus, files, rates, first_step_s)
            except InputError as error:
                complain(f"{study} is left out: {error}")


def refused() -> dict[str, list[str]]:
    """Read from the table of compatibility which recipes refuse to run, by what they are paired
    with."""
    recipes_of = defaultdict(list)
    for cell in cells():
        if cell.refused:
            recipes_of[cell.pairing].append(cell.recipe)
    return recipes_of


# ---- the answer in words ----


def text(answer: dict, verbose: bool) -> str:
    """Say the answer in one line, and why in six; lines about speed are left out where there is
    none to compare."""
    steps = f"{answer['steps']:,} steps" if answer["steps"] else "steps"
    how_long = f", {steps} of {answer['tokens_per_step']:,} tokens"
    head = HEAD.format(billions=answer["parameters"] / 1e9, how_long=how_long, **answer)
    lines = {"speed": _speed(answer)}
    if "step_s" in answer:
        lines["time and cost"] = _time(answer)
        lines["overtakes at"] = _overtakes(answer)
    lines["memory"] = _memory(answer)
    lines["why"] = answer["why"]
    lines["trust"] = _trust(answer)
    if verbose:
        lines |= _details(answer)
    shown = [f"{name:<15}{line}" for name, line in lines.items() if line]
    return "\n".join([head, *shown])


RANGE = "{expected:.2f} ({low:.2f} to {high:.2f})"


def _speed(answer: dict) -> str:
    if "at_most" in answer:
        return f"at most {answer['at_most']:.2f} times compiled bf16"
    if "speed_up" not in answer:
        return ""
    by = [f"{scaling} {RANGE.format(**of)}" for scaling, of in answer["speed_up"].items()]
    return f"{', '.join(by)} times compiled bf16"


def _time(answer: dict) -> str:
    line = f"{answer['hours_saved_per_1000_steps']:+,.3g} h saved per 1,000 steps"
    if answer["hours"]:
        bf16, fp8 = answer["hours"].values()
        line = f"{bf16:,.3g} h in bf16, {fp8:,.3g} h in FP8; {line}"
    if answer["cost"]:
        costs = [f"{name} {cost:,.2f}" for name, cost in answer["cost"].items()]
        line += f"; cost: {', '.join(costs)}"
    return line


def _overtakes(answer: dict) -> str:
    steps, first = answer["overtakes_at_step"], answer["first_step_s"]
    at = {end: f"step {step:,}" if step else "never" for end, step in steps.items()}
    line = f"{at['expected']} (at best {at['earliest']}, at worst {at['latest']})"
    if answer["verdict"] == "YES" and not answer["steps"]:
        line += f": YES for {steps['latest']:,} steps and more"
    later = first["tensorwise"] - first["bf16"]
    return f"{line}; first step (compile) {later:.1f} s longer ({first['source']})"


def _memory(answer: dict) -> str:
    memory = answer["memory"]
    needed, has = (memory[key] / 2**30 for key in ("needed_bytes", "gpu_bytes"))
    fits = "fits" if memory["fits"] else "does not fit"
    recomputed = "nothing" if answer["recompute"] == "none" else "activations"
    return f"about {needed:.3g} of {has:.3g} GiB a GPU: {fits}, {recomputed} recomputed"


def _trust(answer: dict) -> str:
    nearest = "nearest: {model} on {gpu}, {stack}, {scaling} {speed_up:.2f}"
    parts = [answer.get("trust"), nearest.format(**answer["nearest"])]
    if "rests_on" in answer:
        parts.insert(
            0, "fitted to {pairs} pairs, 80 % range ±{range:.0%}".format(**answer["rests_on"])
        )
    return "; ".join(part for part in parts if part)


def _details(answer: dict) -> dict[str, str]:
    """Say what the answer rests on, and give commands that can be pasted."""
    lines = {"source": "{name}: {source}".format(**answer["nearest"])}
    if "rests_on" in answer:
        lines["rests on"] = "{pairs} pairs in {groups} groups, {own} of them ours".format(
            **answer["rests_on"]
        )
        fitted = answer["parameters_of_the_fit"].items()
        lines["fit"] = ", ".join(f"{name} {value:.2f}" for name, value in fitted)
        step_ms = {name: f"{name} {1e3 * s:,.0f}" for name, s in answer["step_s"].items()}
        lines["step, ms"] = ", ".join(step_ms.values())
        first = answer["first_step_s"]
        lines["first step"] = f"{first['bf16']:.1f} s in bf16, {first['tensorwise']:.1f} s in FP8"
    lines["goes with"] = "; ".join(answer["goes_with"])
    if answer["tensor_parallel"] == 1 and answer["memory"]["fits"]:
        lines["run"] = f"python -m experiments.run {answer['recipe']} {answer['settings']}"
    if answer["measure"]:
        lines["measure"] = answer["measure"]
    return lines


if __name__ == "__main__":
    leave(main)
