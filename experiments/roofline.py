"""The least time that a step can take: `python -m experiments.roofline NAME --gpu h200 [--overlay O]… [key=value …]`.

`--against FILE` sets the measured parts of a step beside their floors. FILE is a bench.json of experiments.bench, NAME
one of its variants; overlays and keys are those of the measurement. `--json FILE` keeps everything that was printed.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiments.config import recipes
from experiments.jobs.exit_codes import complain, leave
from models.errors import InputError
from models.floors import PARTS, step_floors, step_work, tokens_per_step
from models.flops import flops_per_token
from models.gpus import GPUS, find


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.roofline", description="The least time a step can take."
    )
    parser.add_argument("name", help="a recipe's name or the path of a recipe.yaml")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value", help="e.g. training.local_batch_size=2")
    parser.add_argument("--gpu", required=True, metavar="GPU", help=", ".join(GPUS))
    parser.add_argument("--overlay", action="append", default=[], metavar="O", help="where or how big, e.g. cpu")
    parser.add_argument("--against", type=Path, metavar="FILE", help="measured parts of steps, as JSON")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    args = parser.parse_intermixed_args(argv)
    try:
        if args.gpu.lower() not in GPUS:
            raise InputError(recipes.unknown("GPU", args.gpu, list(GPUS)))
        if args.against:
            if args.overlay or args.overrides:
                raise InputError(f"{args.against} says with which overlays and keys it was measured: leave them out")
            recipe, measured = read_measured(args.against, args.name, args.gpu.lower())
        else:
            recipe, measured = recipes.load(args.name, args.overlay, args.overrides), None
        prediction = predict(recipe, args.gpu.lower(), measured)
        show(prediction, Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 100))
        if args.json:
            args.json.write_text(json.dumps(prediction, indent=2) + "\n")
        return 0
    except (InputError, OSError) as error:
        return complain(f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error)


def read_measured(path: Path, variant: str, gpu: str) -> tuple[recipes.Recipe, dict]:
    """A variant's recipe as it was measured, and its {"step_s": seconds, "parts": {part: seconds}}.

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
        measured = {"step_s": float(figures["step_s"]), "parts": dict(figures["parts"])}
        name, own = recipes.split_variant(variant)
        return recipes.load(name, bench["overlays"], [*bench["overrides"], *own]), measured
    except InputError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} does not hold a measurement ({error!r}): give a bench.json of the bench") from None


def predict(recipe: recipes.Recipe, gpu_name: str, measured: dict | None = None) -> dict:
    """What `show` prints. `rows` has FLOPs, bytes and seconds of each part and of the step, by where they are from."""
    from experiments.training import preflight  # torch: seconds, which a misspelt name need not wait for

    config, gpu = recipe.config, GPUS[gpu_name]
    args = preflight.model_args(config)
    work = step_work(config, args, preflight.fp8_layers(config))
    seconds = {"datasheet": step_floors(work, gpu.datasheet)}
    if gpu.sustained:
        seconds["sustained"] = step_floors(work, gpu.sustained)
    seconds = {source: floors | {"step": sum(floors.values())} for source, floors in seconds.items()}
    if measured:
        seconds["measured"] = measured["parts"] | {"step": measured["step_s"]}
    parts = dict.fromkeys([*PARTS, *(measured["parts"] if measured else ()), "step"])
    rows: dict[str, dict] = {part: {} for part in parts}
    for part, row in rows.items():
        if kernels := [w for w in work if part in (w.part, "step")]:  # the step has all of them
            row |= {"flops": sum(w.flops for w in kernels), "bytes": sum(w.bytes for w in kernels)}
        row |= {source: by_part[part] for source, by_part in seconds.items() if part in by_part}
        floor = row.get("sustained", row.get("datasheet"))
        if floor is not None and row.get("measured"):
            row["error"] = floor / row["measured"] - 1
    return {
        "recipe": recipe.name,
        "overlays": list(recipe.overlays),
        "overrides": list(recipe.overrides),
        "gpu": {"name": gpu_name, **asdict(gpu)},
        "memory_needed": preflight.memory_needed(config),
        "tokens": tokens_per_step(config),
        "flops_per_token": flops_per_token(args, config.training.seq_len),
        "sources": list(seconds),
        "rows": rows,
    }


def show(prediction: dict, console: Console) -> None:
    """Print the table of parts, rates of the step, memory, and where the GPU's figures are from."""
    gpu, tokens = prediction["gpu"], prediction["tokens"]
    console.print(_table(prediction))
    for source in prediction["sources"]:
        rate = tokens / prediction["rows"]["step"][source]
        mfu = rate * prediction["flops_per_token"] / gpu["datasheet"]["bf16"]
        console.print(f"{source:<10} {rate:>8,.0f} tokens/s, {mfu:.1%} MFU of the bf16 peak")
    needed, there = prediction["memory_needed"] / 1e9, gpu["memory"] / 1e9
    fits = ": probably does not fit" if needed > there else ""
    console.print(f"memory     about {needed:.3g} of {there:.3g} GB{fits}")
    console.print(f"datasheet: {gpu['datasheet']['source']}")
    sustained = gpu["sustained"]
    console.print(f"sustained: {sustained['source'] if sustained else 'no measured rates of this GPU at hand'}")


def _table(prediction: dict) -> Table:
    extras = "".join(f" {word}" for word in [*prediction["overlays"], *prediction["overrides"]])
    title = escape(f"{prediction['recipe']}{extras} on {prediction['gpu']['name']}: least time of a step, ms")
    table = Table(box=SIMPLE_HEAD, header_style="bold", padding=(0, 1), pad_edge=False, title=title)
    table.title_justify = "left"
    units = {"flops": 1e12, "bytes": 1e9} | dict.fromkeys(prediction["sources"], 1e-3)
    errors = ["error"] if "measured" in units else []
    for name in ("part", "TFLOP", "GB", *prediction["sources"], *errors):
        table.add_column(name, justify="left" if name == "part" else "right", no_wrap=True)
    for part, row in prediction["rows"].items():
        if part == "step":
            table.add_section()
        cells = [f"{row[key] / unit:.1f}" if key in row else "" for key, unit in units.items()]
        cells += [f"{row[key]:+.0%}" if key in row else "" for key in errors]
        table.add_row(part, *cells, style="bold" if part == "step" else None)
    return table


if __name__ == "__main__":
    leave(main)
