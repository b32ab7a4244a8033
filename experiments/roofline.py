"""The least time that a step can take: `python -m experiments.roofline NAME --gpu h200 [--overlay
O]… [key=value …]`.

`--against FILE` sets the measured parts of a step beside their floors. FILE is a bench.json of
experiments.bench, NAME one of its variants; overlays and keys are those of the measurement.
"""

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from experiments.config import recipes
from experiments.jobs.exit_codes import complain, leave
from experiments.profiling.table import new_table, work
from models.errors import InputError
from models.floors import PARTS, step_floors, tokens_per_step
from models.gpus import GPUS, find


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.roofline", description="The least time a step can take."
    )
    parser.add_argument("name", help="a recipe's name or the path of a recipe.yaml")
    parser.add_argument(
        "overrides", nargs="*", metavar="key.path=value", help="e.g. training.local_batch_size=2"
    )
    parser.add_argument("--gpu", required=True, type=str.lower, metavar="GPU", help=", ".join(GPUS))
    parser.add_argument(
        "--overlay", action="append", default=[], metavar="O", help="where or how big, e.g. cpu"
    )
    parser.add_argument(
        "--against", type=Path, metavar="FILE", help="measured parts of steps, as JSON"
    )
    args = parser.parse_intermixed_args(argv)
    try:
        if args.gpu not in GPUS:
            raise InputError(recipes.unknown("GPU", args.gpu, list(GPUS)))
        if args.against and (args.overlay or args.overrides):
            raise InputError(
                f"{args.against} says with which overlays and keys it was measured: leave them out"
            )
        if args.against:
            recipe, measured = read_measured(args.against, args.name, args.gpu)
        else:
            recipe, measured = recipes.load(args.name, args.overlay, args.overrides), {}
        width = None if sys.stdout.isatty() else 100
        show(recipe, args.gpu, measured, Console(soft_wrap=True, highlight=False, width=width))
        return 0
    except InputError as error:
        return complain(error)
    except OSError as error:
        return complain(f"{error.filename}: {error.strerror}")


def read_measured(path: Path, variant: str, gpu: str) -> tuple[recipes.Recipe, dict[str, float]]:
    """A variant's recipe as it was measured, and seconds of each part and of the `step`.

    Raises `InputError` saying what is not there.
    """
    try:
        bench = json.loads(path.read_text())
        if variant not in bench["variants"]:
            raise InputError(
                recipes.unknown(f"variant in {path}", variant, list(bench["variants"]))
            )
        figures, machine = bench["variants"][variant], bench["machine"]["name"]
        if find(machine) != gpu:
            raise InputError(
                f"{path} was measured on {machine}, and --gpu is {gpu}: name the GPU it was measured on"
            )
        if not figures["rounds"]:
            raise InputError(f"{path} has no measurement of {variant}: {figures['error']}")
        measured = figures["parts"] | {"step": float(figures["step_s"])}
        name, own = recipes.split_variant(variant)
        return recipes.load(name, bench["overlays"], [*bench["overrides"], *own]), measured
    except InputError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} does not hold a measurement ({error!r}): give a bench.json of the bench"
        ) from None


def show(
    recipe: recipes.Recipe, gpu_name: str, measured: dict[str, float], console: Console
) -> None:
    """Print the table of parts, rates of the step, memory, and where the GPU's figures are from.

    Raises `InputError` for a recipe without a roofline on this GPU.
    """
    config, gpu, kernels = recipe.config, GPUS[gpu_name], work(recipe)
    rates = {"datasheet": gpu.datasheet} | ({"sustained": gpu.sustained} if gpu.sustained else {})
    seconds = {source: step_floors(kernels, peaks) for source, peaks in rates.items()}
    seconds = {
        source: floors | {"step": sum(floors.values())} for source, floors in seconds.items()
    }
    seconds |= {"measured": measured} if measured else {}
    title = f"{' '.join([recipe.name, *recipe.overlays, *recipe.overrides])} on {gpu_name}: least time of a step, ms"
    table = new_table(title, ["TFLOP", "GB", *seconds, *(["error"] if measured else [])])
    least = seconds["sustained" if gpu.sustained else "datasheet"]
    for part in dict.fromkeys([*PARTS, *measured, "step"]):
        cells = ["", ""]
        if part in least:
            own = [w for w in kernels if part in (w.part, "step")]  # the step has all of them
            cells = [
                f"{sum(w.flops for w in own) / 1e12:.1f}",
                f"{sum(w.bytes for w in own) / 1e9:.1f}",
            ]
        cells += [
            f"{by_part[part] * 1e3:.1f}" if part in by_part else "" for by_part in seconds.values()
        ]
        if part in least and measured.get(part):
            cells.append(f"{least[part] / measured[part] - 1:+.0%}")
        if part == "step":
            table.add_section()
        table.add_row(part, *cells, style="bold" if part == "step" else None)
    console.print(table)

    from experiments.training.plan import plan  # torch: see `work`

    planned = plan(recipe)
    per_token = planned.flops_per_token
    for source, by_part in seconds.items():
        rate = tokens_per_step(config) / by_part["step"]
        mfu = rate * per_token / gpu.datasheet.bf16
        console.print(f"{source:<10} {rate:>8,.0f} tokens/s, {mfu:.1%} MFU of the bf16 peak")
    needed = planned.memory_needed
    fits = ": probably does not fit" if needed > gpu.memory else ""
    console.print(f"memory     about {needed / 1e9:.3g} of {gpu.memory / 1e9:.3g} GB{fits}")
    console.print(f"datasheet: {gpu.datasheet.source}")
    console.print(
        f"sustained: {gpu.sustained.source if gpu.sustained else 'no measured rates of this GPU at hand'}"
    )


if __name__ == "__main__":
    leave(main)
