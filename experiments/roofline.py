"""Work out the least time that a step of a recipe can take on a GPU, part by part.

    python -m experiments.roofline NAME --gpu GPU [--overlay O]… [key.path=value …] [--against FILE]

`--against FILE` sets the measured parts of a step beside their rooflines. FILE is a bench.json of
experiments.bench, NAME one of its variants; overlays and keys are those of the measurement.

Example: python -m experiments.roofline tensorwise_fp8_compiled --gpu h200

Exit codes: 0, or 2 for bad input.
"""

from pathlib import Path

import pandas as pd

from experiments.config import recipes
from experiments.jobs.command import COMPLETED, CommandLine, leave
from experiments.profiling.measured import Bench, work
from experiments.records.files import RecordError, read
from models.errors import InputError
from models.floors import PARTS, Work, step_floors
from models.gpus import GPUS, Gpu, find

TEXT = """\
{name} on {gpu}: least time of a step, ms
{table}

{rates}
memory     about {needed:.3g} of {has:.3g} GiB{fits}
datasheet: {datasheet}
sustained: {sustained}"""
NOT_MEASURED = "no measured rates of this GPU at hand"


def main(argv: list[str] | None = None) -> int:
    parser = CommandLine("experiments.roofline", __doc__)
    parser.add_recipe()
    add = parser.add_argument
    add("--gpu", required=True, type=str.lower, metavar="GPU", help=", ".join(GPUS))
    add("--against", type=Path, metavar="FILE", help="a bench.json: measured parts of steps")
    args = parser.parse(argv)
    if args.gpu not in GPUS:
        raise InputError(recipes.unknown("GPU", args.gpu, list(GPUS)))
    if not args.against:
        recipe, measured = recipes.load(args.name, args.overlay, args.overrides), {}
    elif args.overlay or args.overrides:
        raise InputError(
            f"{args.against} says with which overlays and keys it was measured: leave them out"
        )
    else:
        recipe, measured = read_measured(args.against, args.name, args.gpu)
    print(text(recipe, args.gpu, measured))
    return COMPLETED


def read_measured(path: Path, variant: str, gpu: str) -> tuple[recipes.Recipe, dict[str, float]]:
    """Read a variant's recipe as it was measured, and seconds of each part. Raises `InputError`
    saying what is not there."""
    try:
        bench = read(path, Bench)
    except RecordError as error:
        raise InputError(f"give a bench.json of the bench: {error}") from None
    if variant not in bench.variants:
        raise InputError(recipes.unknown(f"variant in {path}", variant, list(bench.variants)))
    machine, measured = bench.machine.name, bench.variants[variant]
    if find(machine) != gpu:
        raise InputError(
            f"{path} was measured on {machine}, and --gpu is {gpu}: name the GPU it was measured on"
        )
    if not measured.rounds:
        raise InputError(f"{path} has no measurement of {variant}: {measured.error}")
    name, own = recipes.split_variant(variant)
    return recipes.load(name, bench.overlays, [*bench.overrides, *own]), measured.parts


def text(recipe: recipes.Recipe, gpu_name: str, measured: dict[str, float]) -> str:
    """Show the table of parts, rates of the step, memory, and where the GPU's figures are from.

    Raises `InputError` for a recipe without a roofline on this GPU.
    """
    from experiments.training.plan import plan  # torch: seconds

    planned, gpu = plan(recipe), GPUS[gpu_name]
    table = _table(work(planned), gpu, measured)
    rows = table.to_string(float_format="{:,.1f}".format, na_rep="")
    rates = []
    for source in table.columns.intersection(["datasheet", "sustained", "measured"]):
        rate = planned.tokens / table.loc["step", source] * 1e3
        mfu = rate * planned.flops_per_token / gpu.datasheet.bf16
        rates.append(f"{source:<10} {rate:>8,.0f} tokens/s, {mfu:.1%} MFU of the bf16 peak")
    return TEXT.format(
        name=" ".join([recipe.name, *recipe.overlays, *recipe.overrides]),
        gpu=gpu_name,
        table=rows,
        rates="\n".join(rates),
        needed=planned.memory_needed / 2**30,
        has=gpu.memory / 2**30,
        fits=": probably does not fit" if planned.memory_needed > gpu.memory else "",
        datasheet=gpu.datasheet.source,
        sustained=gpu.sustained.source if gpu.sustained else NOT_MEASURED,
    )


def _table(kernels: list[Work], gpu: Gpu, measured: dict[str, float]) -> pd.DataFrame:
    """Set each part's work beside its least and its measured milliseconds."""
    sums = pd.DataFrame(kernels).groupby("part").sum().reindex(pd.Index(PARTS), fill_value=0.0)
    table = pd.DataFrame({"TFLOP": sums["flops"] / 1e12, "GB": sums["bytes"] / 1e9})
    table["datasheet"] = pd.Series(step_floors(kernels, gpu.datasheet)) * 1e3
    if gpu.sustained:
        table["sustained"] = pd.Series(step_floors(kernels, gpu.sustained)) * 1e3
    if measured:  # with the time in which the GPU idles
        table = pd.concat([table, pd.Series(measured, name="measured") * 1e3], axis="columns")
    table.loc["step"] = table.sum()
    if measured:
        error = table.iloc[:, -2] / table["measured"] - 1
        table["error"] = error.map("{:+.0%}".format, na_action="ignore")
    return table


if __name__ == "__main__":
    leave(main)
