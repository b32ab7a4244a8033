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
from models.floors import PARTS, Work, step_floors, step_work, tokens_per_step
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
    """Work and floors of a recipe's step on a GPU, beside what was measured; all that `show` prints."""
    from experiments.training import preflight  # torch: seconds, which a misspelt name need not wait for
    from models import flops

    config, gpu = recipe.config, GPUS[gpu_name]
    args = preflight.model_args(config)
    work = step_work(config, args, preflight.fp8_layers(config))
    rates = {"datasheet": gpu.datasheet} | ({"sustained": gpu.sustained} if gpu.sustained else {})
    floors = {kind: step_floors(work, known) for kind, known in rates.items()}
    tokens, flops_per_token = tokens_per_step(config), flops.flops_per_token(args, config.training.seq_len)

    def step(seconds: float) -> dict:
        mfu = tokens * flops_per_token / seconds / gpu.datasheet.bf16
        return {"step_s": seconds, "tokens_per_s": tokens / seconds, "mfu_bf16_peak": mfu}

    steps = {kind: step(sum(parts.values())) for kind, parts in floors.items()}
    if measured:
        steps["measured"] = step(measured["step_s"])
    return {
        "recipe": recipe.name,
        "overlays": list(recipe.overlays),
        "overrides": list(recipe.overrides),
        "gpu": {"name": gpu_name, **asdict(gpu)},
        "memory_needed": preflight.memory_needed(config),
        "parts": _parts(work, floors, measured["parts"] if measured else {}),
        "step": steps,
        **({"error": _error(steps, "step_s")} if measured else {}),
    }


def _parts(work: list[Work], floors: dict[str, dict[str, float]], measured: dict[str, float]) -> dict:
    """FLOPs, bytes, floors and measured seconds by part; of parts that no floor predicts, the measured ones."""
    rows: dict[str, dict] = {}
    for part in PARTS:
        kernels = [w for w in work if w.part == part]
        rows[part] = {"flops": sum(w.flops for w in kernels), "bytes": sum(w.bytes for w in kernels)}
        rows[part] |= {kind: {"s": seconds[part]} for kind, seconds in floors.items()}
    for part, seconds in measured.items():
        rows.setdefault(part, {})["measured"] = {"s": seconds}
        if part in PARTS and seconds:
            rows[part]["error"] = _error(rows[part], "s")
    return rows


def _error(row: dict[str, dict], key: str) -> float:
    """Floor over measurement, less one; the floor is that of sustained rates where they are known."""
    return row.get("sustained", row["datasheet"])[key] / row["measured"][key] - 1


def show(prediction: dict, console: Console) -> None:
    """Print the table of parts, the step, and where the rates are from."""
    gpu, steps = prediction["gpu"], prediction["step"]
    console.print(_table(prediction))
    for kind, step in steps.items():
        mfu = f"{step['mfu_bf16_peak']:.1%} MFU of the bf16 peak"
        console.print(f"{kind:<10} {step['tokens_per_s']:>8,.0f} tokens/s, {mfu}")
    needed, there = prediction["memory_needed"] / 1e9, gpu["memory"] / 1e9
    console.print(
        f"memory     about {needed:.3g} of {there:.3g} GB" + (": probably does not fit" if needed > there else "")
    )
    console.print(f"datasheet: {gpu['datasheet']['source']}")
    sustained = gpu["sustained"]
    console.print(f"sustained: {sustained['source'] if sustained else 'no measured rates of this GPU at hand'}")


def _table(prediction: dict) -> Table:
    """A row a part and one for the step: work, floors, and measured milliseconds with the floors' error."""
    steps = prediction["step"]
    kinds, errors = list(steps), ["error"] if "measured" in steps else []
    extras = "".join(f" {word}" for word in [*prediction["overlays"], *prediction["overrides"]])
    title = escape(f"{prediction['recipe']}{extras} on {prediction['gpu']['name']}: least time of a step, ms")
    table = Table(box=SIMPLE_HEAD, header_style="bold", padding=(0, 1), pad_edge=False, title=title)
    table.title_justify = "left"
    for name in ("part", "TFLOP", "GB", *kinds, *errors):
        table.add_column(name, justify="left" if name == "part" else "right", no_wrap=True)

    def add(name: str, row: dict, key: str, **style) -> None:
        work = [f"{row['flops'] / 1e12:.1f}", f"{row['bytes'] / 1e9:.1f}"] if "flops" in row else ["", ""]
        seconds = [f"{row[kind][key] * 1e3:.1f}" if kind in row else "" for kind in kinds]
        table.add_row(name, *work, *seconds, *(f"{row[e]:+.0%}" if e in row else "" for e in errors), **style)

    for part, row in prediction["parts"].items():
        add(part, row, "s")
    table.add_section()
    step = {key: sum(row.get(key, 0) for row in prediction["parts"].values()) for key in ("flops", "bytes")} | steps
    add("step", step | ({"error": prediction["error"]} if errors else {}), "step_s", style="bold")
    return table


if __name__ == "__main__":
    leave(main)
