"""Should this training run in FP8? An estimate in ten lines, from floors calibrated by measured
runs.

    python -m experiments.decide [FLAVOR] [--gpu GPU] [--gpus N] [--batch B] [--sequence S] [--steps
    N] [--price P]
                                 [--json] [key.path=value …]

Without --gpu, the GPU of this machine. How the estimate is made and how far off it may be:
models/calibration.py. Exit code 2 for bad input, and for a GPU whose figures are not known: then it
asks for them, and does not guess.
"""

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from shlex import join

from rich.console import Console

from analysis.compatibility import cells
from experiments.config import recipes
from experiments.config.yaml_source import ROOT
from experiments.jobs.exit_codes import COMPLETED, complain, leave
from experiments.jobs.files import read_json
from models.errors import InputError
from models.gpus import GPUS, find

RESULTS = ROOT / "results"
BEST, GATHERED = (
    "tensorwise",
    "tensorwise_fp8_allgather",
)  # the faster scaling; its recipe for several GPUs
# Overlays as experiments/training/scale.py chooses them, of which the second recomputes
# activations.
OVERLAYS = AS_IS, RECOMPUTED = "h200", "h100"
A_NODE, A_NODE_OF_ALPS = 8, 4  # GPUs


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
        "--gpus", type=_count, default=1, metavar="N", help="how many of them (default: 1)"
    )
    parser.add_argument("--batch", metavar="B", help="rows a GPU and forward pass (default: 1)")
    parser.add_argument("--sequence", metavar="S", help="tokens a row (default: 4096)")
    parser.add_argument("--steps", metavar="N", help="of the training (default: 1000)")
    parser.add_argument("--price", type=float, metavar="P", help="of a GPU's hour, in any currency")
    parser.add_argument("--json", action="store_true", help="the answer as JSON")
    args = parser.parse_intermixed_args(argv)
    options = {"local_batch_size": args.batch, "seq_len": args.sequence, "steps": args.steps}
    keys = [f"training.{key}={value}" for key, value in options.items() if value is not None]
    try:
        gpu = _gpu(args.gpu)  # before torch is imported, which takes seconds
        if args.price is not None and not 0 <= args.price < math.inf:
            raise InputError(f"--price {args.price}: expected a number of 0 and more")
        if len(flavors := [word for word in args.words if "=" not in word]) > 1:
            raise InputError(
                f"{len(flavors)} models, {' and '.join(flavors)}: ask about one at a time"
            )
        keys += [
            key
            for word in args.words
            for key in ([word] if "=" in word else recipes.flavor_keys(word))
        ]
        answer = decide(tuple(keys), gpu, args.gpus, args.price)
    except InputError as error:
        return complain(error)
    text = json.dumps(answer, indent=2) if args.json else "\n".join(lines(answer))
    Console(soft_wrap=True, highlight=False, markup=False).print(text)
    return COMPLETED


def _count(word: str) -> int:
    if not word.isdecimal() or not 0 < int(word) < 10**12:
        raise argparse.ArgumentTypeError(f"{word!r}: expected a whole number of 1 and more")
    return int(word)


def _gpu(name: str | None) -> str:
    """The key in `GPUS`. Raises `InputError` with a question where the name is not known."""
    known = (
        f"Known are {', '.join(GPUS)}; for another one, add its datasheet's line to models/gpus.py"
    )
    if name is not None:
        if gpu := name.lower() if name.lower() in GPUS else find(name):
            return gpu
        raise InputError(f"which GPU is `{name}`? {known}")
    from models import device

    if device.TYPE == "cuda" and (gpu := find(device.name())):
        return gpu
    here = f"has {device.name()}" if device.TYPE == "cuda" else "has none"
    raise InputError(f"which GPU? This machine {here}: name one with --gpu. {known}")


def decide(keys: tuple[str, ...], gpu: str, gpus: int, price: float | None) -> dict:
    """The answer as JSON has it: seconds, bytes, shares and steps as numbers, null for never.

    Args:
        keys: what the training sets in the recipes.
        gpu: a key of `models.gpus.GPUS`.
        price: of a GPU's hour.

    Raises:
        InputError: for a training that the recipes cannot describe.
    """
    from experiments.profiling import anchors
    from models.architectures import label

    overlay, memory = _memory(keys, gpu, gpus)
    config = recipes.load(anchors.BF16, (overlay,), keys).config
    if config.quantize.linear.float8.recipe_name or not config.compile.enable:
        raise InputError(
            "compiled bf16 is compared to compiled FP8: leave out quantize.linear.float8.recipe_name and compile.enable"
        )
    bf16 = anchors.step(anchors.BF16, keys, (overlay,), gpus)
    measured = [*anchors.published(), *kept(RESULTS)]
    measured.sort(key=lambda anchor: anchor.distance(gpu, gpus, bf16))
    answer = {
        "model": label(config), "parameters": bf16.parameters, "gpu": gpu, "gpus": gpus,
        "tokens_per_step": bf16.tokens * gpus, "steps": config.training.steps, "memory": memory,
        "recipe": anchors.BF16, "overlay": overlay, "recompute": config.activation_checkpoint.mode, "command": None,
        "goes_with": _goes_with(config, gpus),
        "nearest": {key: getattr(measured[0], key) for key in ("name", "source", "parameters", "speed_ups")},
    }  # fmt: skip
    if obstacle := _obstacle(memory, gpu, gpus):
        return {"should_you": "no", "reason": obstacle, **answer}
    fp8 = {
        scaling: anchors.step(name, keys, (overlay,), gpus) for scaling, name in anchors.FP8.items()
    }
    pairs = {scaling: anchors.floors(bf16, step, gpu, gpus) for scaling, step in fp8.items()}
    answer |= _speed(pairs, measured)
    answer |= _time(
        pairs[BEST], measured, answer["speed_up"][BEST], config.training.steps, gpus, price
    )
    verdict, reason = _verdict(answer)
    if verdict != "no":
        answer["recipe"] = anchors.FP8[BEST] if gpus == 1 else GATHERED
    answer["command"] = _command(keys, overlay, gpus)
    return {"should_you": verdict, "reason": reason, **answer}


def _goes_with(config, gpus: int) -> list[str]:
    """What FP8 has to go with in this training, and whether it does: rows of the README's table."""
    from models.architectures import model_args

    rows = {
        "torch.compile": True,
        "FSDP2, weights gathered in bf16": gpus > 1,
        "FSDP2, float8 all-gather": gpus > 1,
        "Tied embeddings under FSDP2": gpus > 1 and model_args(config).enable_weight_tying,
        "Activation checkpointing, full": config.activation_checkpoint.mode == "full",
        "Qwen3": config.model.name == "qwen3",
    }
    refusing = {
        name: [cell.recipe for cell in cells() if cell.pairing == name and cell.refused]
        for name in rows
    }
    words = {
        name: f"refused for {' and '.join(recipes)}" if recipes else "works"
        for name, recipes in refusing.items()
    }
    return [f"{name}: {words[name]}" for name, needed in rows.items() if needed]


def _memory(keys: tuple[str, ...], gpu: str, gpus: int) -> tuple[str, dict]:
    """The overlay with which the training fits, or else needs least, and what it needs of a GPU's
    memory."""
    from experiments.training.plan import memory_by_use, plan

    plans = {
        overlay: plan(recipes.load("baseline_compiled", (overlay,), keys), gpus)
        for overlay in OVERLAYS
    }
    has = GPUS[gpu].memory
    needs = {overlay: plans[overlay].memory_needed for overlay in OVERLAYS}
    overlay = next((overlay for overlay in OVERLAYS if needs[overlay] <= has), RECOMPUTED)
    more = (n for n in (2**k for k in range(13)) if n > gpus)
    fits_on = gpus if needs[overlay] <= has else None
    recomputed = plans[RECOMPUTED].config, plans[RECOMPUTED].args
    replicas = recomputed[0].parallelism.data_parallel_replicate_degree
    fits_on = fits_on or next(
        (n for n in more if sum(memory_by_use(*recomputed, max(1, n // replicas)).values()) <= has),
        None,
    )
    return overlay, {"needed_bytes": needs[overlay], "gpu_bytes": has, "fits_on_gpus": fits_on}


def _obstacle(memory: dict, gpu: str, gpus: int) -> str | None:
    """Why there is nothing to compare."""
    if memory["fits_on_gpus"] != gpus:
        where = (
            f"ask again with --gpus {memory['fits_on_gpus']}"
            if memory["fits_on_gpus"]
            else "nor would 4,096"
        )
        return f"{gpus} {gpu} cannot hold this training, in FP8 as little as in bf16: {where}"
    no_units = f"{gpu} has no FP8 units: FP8 would be emulated there, and slower than bf16"
    return no_units if GPUS[gpu].rates.fp8 is None else None


def _speed(pairs: dict, measured: list) -> dict:
    """Speed-ups of both scalings, and what they rest on."""
    from experiments.profiling.anchors import calibrations

    fits = calibrations(measured)
    return {
        "speed_up": {scaling: fits[scaling].speed_up(pair) for scaling, pair in pairs.items()},
        "rests_on": {"published": sum(not anchor.ours for anchor in measured),
                     "ours": sum(anchor.ours for anchor in measured),
                     "off_by_up_to": {scaling: fit.error - 1 for scaling, fit in fits.items()}},
        "of_a_bf16_step": {"saved_by_products": pairs[BEST].saved(fits[BEST].efficiency),
                           "spent_on_casts": pairs[BEST].casts / pairs[BEST].bf16},
    }  # fmt: skip


def _time(pair, measured: list, gain: dict, steps: int, gpus: int, price: float | None) -> dict:
    """What a speed-up of `gain` makes of the training's time. `measured` has the nearest anchor
    first.

    A bf16 step takes as many times its floor as the nearest anchor's did; at the ends of the range,
    as any anchor's.
    """
    shares = [anchor.share for anchor in measured]
    timed = next(anchor for anchor in measured if {"bf16", BEST} <= anchor.first_step_s.keys())
    first, step_s = (
        {precision: timed.first_step_s[precision] for precision in ("bf16", BEST)},
        pair.bf16 / shares[0],
    )
    later = first[BEST] - first["bf16"]
    hours = {"bf16": (first["bf16"] + (steps - 1) * step_s) / 3600,
             BEST: (first[BEST] + (steps - 1) * step_s / gain["expected"]) / 3600}  # fmt: skip
    return {
        "step_s_bf16": step_s,
        "first_step_s": {**first, "measured": f"{'own' if timed.ours else 'published'}, {timed.name}, {timed.source}"},
        "pays_from_step": {"expected": _pays_from(later, step_s, gain["expected"]),
                           "earliest": _pays_from(later, pair.bf16 / min(shares), gain["high"]),
                           "latest": _pays_from(later, pair.bf16 / max(shares), gain["low"])},
        "hours": hours,
        "cost": {precision: h * gpus * price for precision, h in hours.items()} if price else None,
    }  # fmt: skip


def _pays_from(later_s: float, step_s: float, speed_up: float) -> int | None:
    """The step at which FP8, whose first step ends `later_s` later, has caught up; None if it never
    does."""
    return max(1, 1 + math.ceil(later_s / (step_s * (1 - 1 / speed_up)))) if speed_up > 1 else None


def _verdict(answer: dict) -> tuple[str, str]:
    """yes if FP8 ends sooner even at the worst end of the range, no if it is expected not to, else
    measure; and why."""
    steps, (expected, _, latest) = (
        answer["steps"],
        (pays or math.inf for pays in answer["pays_from_step"].values()),
    )
    saved, spent = (f"{share:.0%}" for share in answer["of_a_bf16_step"].values())
    balance = f"FP8 products save {saved} of a bf16 step, and casts to FP8 take {spent}"
    if latest <= steps:
        return "yes", balance
    if expected <= steps:
        return "measure", f"{balance}; that this pays within {steps:,} steps is likely, not certain"
    few = (
        f", but {steps:,} steps are too few to earn back the longer first step"
        if expected < math.inf
        else ""
    )
    return "no", balance + few


def _command(keys: tuple[str, ...], overlay: str, gpus: int) -> str:
    """What would measure it: the bench on one GPU, a study of 60 steps on a node's, runs and their
    report beyond."""
    settings = join(
        ["--overlay", overlay, *(key for key in keys if not key.startswith("training.steps="))]
    )
    if gpus == 1:
        names = f"baseline_compiled {BEST}_fp8_compiled rowwise_fp8_compiled"
        return f"python -m experiments.bench {names} --budget 600 {settings}"
    if gpus <= A_NODE:
        names = f"baseline_compiled {GATHERED}"
        return (
            f"python -m experiments.study {names} --processes {gpus} {settings} training.steps=60"
        )
    start = f"sbatch --wait --nodes={math.ceil(gpus / A_NODE_OF_ALPS)} launch/alps_multinode.sbatch"
    return (
        f"for r in baseline_compiled {GATHERED}; do {start} $r --out runs/decide/$r/seed0 {settings} "
        "training.steps=60; done; python -m analysis.report runs/decide --baseline baseline_compiled"
    )


def kept(results: Path) -> Iterator:
    """This project's own anchors: one for each study in `results` that has GPU runs in compiled
    bf16 and in FP8."""
    manifests = results.glob("**/seed*/manifest.json")
    studies = {
        m.parents[2] for m in manifests if read_json(m).get("hardware", {}).get("type") == "cuda"
    }
    if not studies:
        return
    from analysis.load import load, steps
    from analysis.rates import rate_of
    from experiments.profiling import anchors

    for study in sorted(studies):
        frames = load(study)
        runs = frames.runs[frames.runs["status"] == "completed"]
        first, by_step = runs.drop_duplicates("recipe").set_index("recipe"), steps(frames.windows)
        names = {
            scaling: recipe for recipe, scaling in anchors.SCALINGS.items() if recipe in first.index
        }
        rates = {scaling: rate_of(runs, by_step, name).mean for scaling, name in names.items()}
        if "bf16" not in rates or len(rates) < 2 or not all(rate > 0 for rate in rates.values()):
            continue
        gpu, gpus = find(first["device"].iloc[0]), int(first["world_size"].iloc[0])
        if gpu and GPUS[gpu].rates.fp8:
            files = {
                s: str(Path(first.loc[name, "path"]) / "recipe.yaml") for s, name in names.items()
            }
            warm_ups = {s: float(first.loc[name, "warm_up_s"]) for s, name in names.items()}
            each = {s: rate / gpus for s, rate in rates.items()}
            try:
                yield anchors.own(str(study), gpu, gpus, files, each, warm_ups)
            except InputError as error:
                complain(f"{study} is left out: {error}")


def lines(answer: dict) -> Iterator[str]:
    """The answer in ten lines below a title; those about FP8's speed are left out for a GPU without
    FP8 units."""
    memory, nearest, tokens = answer["memory"], answer["nearest"], answer["tokens_per_step"]
    holds = "fits" if memory["fits_on_gpus"] == answer["gpus"] else "does not fit"
    ratios = ", ".join(f"{scaling} {ratio:.2f}" for scaling, ratio in nearest["speed_ups"].items())
    yield (f"{answer['model']}, {answer['parameters'] / 1e9:.3g} B parameters, on {answer['gpus']} {answer['gpu']}: "
           f"{answer['steps']:,} steps of {tokens:,} tokens")  # fmt: skip
    rows = {"should you": f"{answer['should_you']}: {answer['reason']}"}
    rows |= _rows_of_speed(answer) if "speed_up" in answer else {}
    rows |= {
        "memory": f"about {memory['needed_bytes'] / 1e9:.3g} of {memory['gpu_bytes'] / 1e9:.3g} GB a GPU: {holds}",
        "run": f"{answer['recipe']} --overlay {answer['overlay']}"
               f" ({'nothing' if answer['recompute'] == 'none' else 'activations'} recomputed)",
        "goes with": "; ".join(answer["goes_with"]),
        "nearest": f"{nearest['name']}, {nearest['parameters'] / 1e9:.3g} B: {ratios} ({nearest['source']})",
        "settle it": answer["command"] or "nothing to measure",
    }  # fmt: skip
    yield from (f"{title:<11}{text}" for title, text in rows.items())


def _rows_of_speed(answer: dict) -> dict[str, str]:
    first, pays, rests, hours = (
        answer[key] for key in ("first_step_s", "pays_from_step", "rests_on", "hours")
    )
    gains = [
        f"{s} {g['expected']:.2f} ({g['low']:.2f} to {g['high']:.2f})"
        for s, g in answer["speed_up"].items()
    ]
    off = ", ".join(f"{error:.0%} ({scaling})" for scaling, error in rests["off_by_up_to"].items())
    expected, earliest, latest = (
        "never" if step is None else f"step {step:,}" for step in pays.values()
    )
    sent = "; sending is assumed to be hidden as well as in those, which slower links do not do"
    cost = (
        "; cost {bf16:,.2f} and {tensorwise:,.2f}".format(**answer["cost"])
        if answer["cost"]
        else ""
    )
    return {
        "speed-up": f"{', '.join(gains)} times compiled bf16",
        "rests on": f"floors, calibrated by {rests['published']} published and {rests['ours']} own measurements; each, "
                    f"predicted from the others, is met to within {off}{sent * (answer['gpus'] > 1)}",
        "pays from": f"{expected}; at best {earliest}, at worst {latest}; first steps of {first[BEST]:.1f} s against "
                     f"{first['bf16']:.1f} s in bf16 ({first['measured']})",
        "time": f"{hours['bf16']:,.3g} h in bf16, {hours[BEST]:,.3g} h in {BEST} FP8{cost}",
    }  # fmt: skip


if __name__ == "__main__":
    leave(main)
