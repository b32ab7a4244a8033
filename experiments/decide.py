"""Should this training run in FP8? An estimate in ten lines, from rooflines and measured runs.

    python -m experiments.decide [FLAVOR] [--gpu GPU] [--gpus N] [--batch B] [--sequence S]
                                 [--steps N] [--price P] [--json] [key.path=value …]

Without --gpu, the GPU of this machine. How the estimate is made and how far off it may be:
models/calibration.py. Exit code 2 for bad input, and for a GPU whose figures are not known: then it
asks for them, and does not guess.
"""

import argparse
import json
import math
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
    from experiments.profiling.anchors import Anchor

RESULTS = ROOT / "results"

HEAD = """\
{model}, {billions:.3g} B parameters, on {gpus} {gpu}: {steps:,} steps of {tokens_per_step:,} tokens
should you {should_you}: {reason}
"""
SPEED = """\
speed-up   tensorwise {speed_up[tensorwise][expected]:.2f} \
({speed_up[tensorwise][low]:.2f} to {speed_up[tensorwise][high]:.2f}), \
rowwise {speed_up[rowwise][expected]:.2f} \
({speed_up[rowwise][low]:.2f} to {speed_up[rowwise][high]:.2f}) times compiled bf16
rests on   time model fitted to {rests_on[published]} published runs and {rests_on[ours]} own; \
leave-one-out error {rests_on[off_by_up_to][tensorwise]:.0%} (tensorwise), \
{rests_on[off_by_up_to][rowwise]:.0%} (rowwise){sending}
pays from  {expected}; at best {earliest}, at worst {latest}; \
first steps of {first_step_s[tensorwise]:.1f} s against {first_step_s[bf16]:.1f} s in bf16 \
({first_step_s[measured]})
time       {hours[bf16]:,.3g} h in bf16, {hours[tensorwise]:,.3g} h in tensorwise FP8{costs}
"""
SENDING = "; sending is assumed to be hidden as well as in those, which slower links do not do"
COST = "; cost {bf16:,.2f} and {tensorwise:,.2f}"
TAIL = """\
memory     about {needed:.3g} of {has:.3g} GB a GPU: {fits}
run        {recipe} --overlay {overlay} ({recomputed} recomputed)
goes with  {works_with}
nearest    {nearest[name]}, {nearest_billions:.3g} B: {speed_ups} ({nearest[source]})
settle it  {settle_it}"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.decide", description="Should this training be in FP8?"
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="FLAVOR|key=value",
        help="e.g. llama3.1-8B (default: the recipes')",
    )
    parser.add_argument("--gpu", metavar="GPU", help=f"{', '.join(GPUS)} (default: this machine's)")
    parser.add_argument(
        "--gpus", type=process_count, default=1, metavar="N", help="how many of them (default: 1)"
    )
    parser.add_argument("--batch", metavar="B", help="rows a GPU and forward pass (default: 1)")
    parser.add_argument("--sequence", metavar="S", help="tokens a row (default: 4096)")
    parser.add_argument("--steps", metavar="N", help="of the training (default: 1000)")
    parser.add_argument("--price", type=float, metavar="P", help="of a GPU's hour, in any currency")
    parser.add_argument("--json", action="store_true", help="the answer as JSON")
    args = parser.parse_intermixed_args(argv)
    gpu, keys = _gpu(args.gpu), _keys(args)  # before torch is imported, which takes seconds
    if args.price is not None and not 0 <= args.price < math.inf:
        raise InputError(f"--price {args.price}: expected a number of 0 and more")

    from experiments.profiling.estimate import estimate

    answer = estimate(keys, gpu, args.gpus, args.price, kept(RESULTS), refused())
    print(json.dumps(answer, indent=2) if args.json else text(answer))
    return COMPLETED


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
    options = {"local_batch_size": args.batch, "seq_len": args.sequence, "steps": args.steps}
    keys = [f"training.{key}={value}" for key, value in options.items() if value is not None]
    flavors = [word for word in args.words if "=" not in word]
    if len(flavors) > 1:
        raise InputError(f"{len(flavors)} models, {' and '.join(flavors)}: ask about one at a time")
    for word in args.words:
        keys += recipes.flavor_keys(word) if word in flavors else [word]
    return keys


def kept(results: Path) -> Iterator["Anchor"]:
    """Read the studies in `results` that have GPU runs in compiled bf16 and in FP8."""
    from experiments.profiling.anchors import SCALINGS, own

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
                yield own(str(study), gpu, gpus, files, rates, chosen["warm_up_s"].to_dict())
            except InputError as error:
                complain(f"{study} is left out: {error}")


def refused() -> dict[str, list[str]]:
    """Read from the README's table which recipes refuse to run, by what they are paired with."""
    recipes_of = defaultdict(list)
    for cell in cells():
        if cell.refused:
            recipes_of[cell.pairing].append(cell.recipe)
    return recipes_of


def text(answer: dict) -> str:
    """Say the answer in ten lines below a title; those about FP8's speed are left out where nothing
    can be compared."""
    memory, nearest = answer["memory"], answer["nearest"]
    speed_ups = [f"{scaling} {ratio:.2f}" for scaling, ratio in nearest["speed_ups"].items()]
    words = {
        "billions": answer["parameters"] / 1e9,
        "needed": memory["needed_bytes"] / 1e9,
        "has": memory["gpu_bytes"] / 1e9,
        "fits": "fits" if memory["fits_on_gpus"] == answer["gpus"] else "does not fit",
        "recomputed": "nothing" if answer["recompute"] == "none" else "activations",
        "works_with": "; ".join(answer["goes_with"]),
        "nearest_billions": nearest["parameters"] / 1e9,
        "speed_ups": ", ".join(speed_ups),
        "settle_it": answer["command"] or "nothing to measure",
    }
    if "speed_up" not in answer:
        return (HEAD + TAIL).format(**answer, **words)
    for end, step in answer["pays_from_step"].items():
        words[end] = f"step {step:,}" if step else "never"
    words["sending"] = SENDING if answer["gpus"] > 1 else ""
    words["costs"] = COST.format(**answer["cost"]) if answer["cost"] else ""
    return (HEAD + SPEED + TAIL).format(**answer, **words)


if __name__ == "__main__":
    leave(main)
