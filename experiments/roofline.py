"""The least time that a step can take: `python -m experiments.roofline NAME --gpu h200 [--overlay O]… [key=value …]`.

`--against FILE` sets the measured parts of a step beside their floors. FILE is a bench.json of experiments.bench, NAME
one of its variants; overlays and keys are those of the measurement. `--json FILE` keeps everything that was printed.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from experiments.config import recipes
from experiments.jobs.exit_codes import complain, leave
from experiments.profiling.table import new_table, work
from models.errors import InputError
from models.floors import PARTS, step_floors, tokens_per_step
from models.flops import flops_per_token
from models.gpus import GPUS, find


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.roofline", description="The least time a step can take."
    )
    parser.add_argument("name", help="a recipe's name or the path of a recipe.yaml")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value", help="e.g. training.local_batch_size=2")
    parser.add_argument("--gpu", required=True, type=str.lower, metavar="GPU", help=", ".join(GPUS))
    parser.add_argument("--overlay", action="append", default=[], metavar="O", help="where or how big, e.g. cpu")
    parser.add_argument("--against", type=Path, metavar="FILE", help="measured parts of steps, as JSON")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    args = parser.parse_intermixed_args(argv)
    try:
        if args.gpu not in GPUS:
            raise InputError(recipes.unknown("GPU", args.gpu, list(GPUS)))
        if args.against:
            if args.overlay or args.overrides:
                raise InputError(f"{args.against} says with which overlays and keys it was measured: leave them out")
            recipe, measured = read_measured(args.against, args.name, args.gpu)
        else:
            recipe, measured = recipes.load(args.name, args.overlay, args.overrides), {}
        prediction = predict(recipe, args.gpu, measured)
        show(prediction, Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 100))
        if args.json:
            args.json.write_text(json.dumps(prediction, indent=2) + "\n")
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
            raise InputError(recipes.unknown(f"variant in {path}", variant, list(bench["variants"])))
        figures, machine = bench["variants"][variant], bench["machine"]["name"]
        if find(machine) != gpu:
            raise InputError(f"{path} was measured on {machine}, which --gpu {gpu} is not: floors are of the same GPU")
        if not figures["rounds"]:
            raise InputError(f"{path} has no measurement of {variant}: {figures['error']}")
        measured = figures["parts"] | {"step": float(figures["step_s"])}
        name, own = recipes.split_variant(variant)
        return recipes.load(name, bench["overlays"], [*bench["overrides"], *own]), measured
    except InputError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} does not hold a measurement ({error!r}): give a bench.json of the bench") from None


def predict(recipe: recipes.Recipe, gpu_name: str, measured: dict[str, float]) -> dict:
    """What `show` prints. `rows` has FLOPs, bytes and seconds of each part and of the step, by where they are from."""
    config, gpu, kernels = recipe.config, GPUS[gpu_name], work(recipe.config)
    seconds = {"datasheet": step_floors(kernels, gpu.datasheet)}
    if gpu.sustained:
        seconds["sustained"] = step_floors(kernels, gpu.sustained)
    seconds = {source: floors | {"step": sum(floors.values())} for source, floors in seconds.items()}
    least = seconds.get("sustained", seconds["datasheet"])
    if measured:
        seconds["measured"] = measured
    rows: dict[str, dict] = {part: {} for part in [*PARTS, *measured, "step"]}
    for part, row in rows.items():
        if part in least:
            own = [w for w in kernels if part in (w.part, "step")]  # the step has all of them
            row |= {"flops": sum(w.flops for w in own), "bytes": sum(w.bytes for w in own)}
        row |= {source: by_part[part] for source, by_part in seconds.items() if part in by_part}
        if part in least and measured.get(part):
            row["error"] = least[part] / measured[part] - 1

    from experiments.training import preflight  # torch: see `work`

    return {
        "recipe": recipe.name,
        "overlays": list(recipe.overlays),
        "overrides": list(recipe.overrides),
        "gpu": {"name": gpu_name, **asdict(gpu)},
        "memory_needed": preflight.memory_needed(config),
        "tokens": tokens_per_step(config),
        "flops_per_token": flops_per_token(preflight.model_args(config), config.training.seq_len),
        "sources": list(seconds),
        "rows": rows,
    }


def show(prediction: dict, console: Console) -> None:
    """Print the table of parts, rates of the step, memory, and where the GPU's figures are from."""
    gpu, sources, rows = prediction["gpu"], prediction["sources"], prediction["rows"]
    title = " ".join([prediction["recipe"], *prediction["overlays"], *prediction["overrides"]])
    errors = ["error"] if "measured" in sources else []
    table = new_table(f"{title} on {gpu['name']}: least time of a step, ms", ["TFLOP", "GB", *sources, *errors])
    units = {"flops": 1e12, "bytes": 1e9} | dict.fromkeys(sources, 1e-3)
    for part, row in rows.items():
        if part == "step":
            table.add_section()
        cells = [f"{row[key] / unit:.1f}" if key in row else "" for key, unit in units.items()]
        cells += [f"{row[key]:+.0%}" if key in row else "" for key in errors]
        table.add_row(part, *cells, style="bold" if part == "step" else None)
    console.print(table)
    for source in sources:
        rate = prediction["tokens"] / rows["step"][source]
        mfu = rate * prediction["flops_per_token"] / gpu["datasheet"]["bf16"]
        console.print(f"{source:<10} {rate:>8,.0f} tokens/s, {mfu:.1%} MFU of the bf16 peak")
    needed, there = prediction["memory_needed"] / 1e9, gpu["memory"] / 1e9
    fits = ": probably does not fit" if needed > there else ""
    console.print(f"memory     about {needed:.3g} of {there:.3g} GB{fits}")
    console.print(f"datasheet: {gpu['datasheet']['source']}")
    sustained = gpu["sustained"]
    console.print(f"sustained: {sustained['source'] if sustained else 'no measured rates of this GPU at hand'}")


if __name__ == "__main__":
    leave(main)
