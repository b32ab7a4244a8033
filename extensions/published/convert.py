"""Convert the logs of the published study into a kept study, results/gh200_2025-05_published/.

    python -m extensions.published.convert FOLDER DIR

FOLDER is a copy of `output/data` of github.com/mak2508/lsai-proj (course project "FP8 Training",
ETH Zurich, May 2025); DIR is a new folder. A log has a line at step 1 and then every five steps:
`time_delta` is the seconds since the previous line, `loss` the last step's,
`training_tokens_percentage` the share of tokens that are not padding. The logged MFU is not taken
over: under torch.compile it counts the input embedding as if it were multiplied.

Exit codes: 0 written; 2 for bad input.
"""

import math
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from analysis.runs import COLUMNS, PACKED_STEPS, PackedRun
from experiments.config.recipes import ROOT
from experiments.config.yaml_with_origins import dump_yaml
from experiments.jobs.command import EXIT_COMPLETED, CommandLine, exit_with
from experiments.records.files import write_whole
from experiments.records.run import (
    NOT_STEADY_STEPS,
    PACKED_RUNS,
    STUDY_FILE,
    Attempt,
    Git,
    Hardware,
    Peak,
    RunRecord,
    StudyFile,
    Timing,
)
from models.architectures import FLAVORS
from models.errors import InputError
from models.gpus import GPUS

# Recipes by the beginning of a log's name, in the order of the study.
RECIPES = {
    "baseline": "baseline",
    "baseline-compile": "baseline_compiled",
    "fp8-rowwise-compile": "rowwise_fp8_compiled",
    "fp8-tensorwise-compile": "tensorwise_fp8_compiled",
}
RUNS = ROOT / "results" / "gh200_2025-05_published"
FLAVOR = "8B-published"
SEQ_LEN = 4096
UNKNOWN = "unknown"
# A GH200 of Alps: 96 GB of HBM3, and a Grace CPU of 72 cores, by the documentation of CSCS.
HARDWARE = Hardware(type="cuda", name="NVIDIA GH200", memory_bytes=96 * 10**9, threads=72)


def main(argv: list[str] | None = None) -> int:
    parser = CommandLine("extensions.published.convert", __doc__)
    parser.add_argument("logs", type=Path, metavar="FOLDER", help="folder with the published logs")
    parser.add_argument("folder", type=Path, metavar="DIR", help="new folder")
    args = parser.parse_arguments(argv)
    if args.folder.exists():
        raise InputError(f"{args.folder}: is there already: name a new folder")
    recipes = convert_logs(args.logs, args.folder)
    print(f"{len(recipes)} runs: {args.folder / PACKED_RUNS}, {args.folder / PACKED_STEPS}")
    return EXIT_COMPLETED


def convert_logs(logs: Path, folder: Path) -> list[str]:
    """Write the logs in a folder, and below it, as a kept study; return the recipes.

    Raises `InputError` if there is no log, and for a file that is not a log of that project.
    """
    path_by_recipe = {find_recipe(path): path for path in sorted(logs.rglob("*.jsonl"))}
    if not path_by_recipe:
        raise InputError(f"{logs}: holds no *.jsonl file: name a folder with the published logs")
    recipes = [recipe for recipe in RECIPES.values() if recipe in path_by_recipe]
    tables = []
    records = []
    for recipe in recipes:
        lines = read_log(path_by_recipe[recipe])
        packed_run = PackedRun(
            folder=recipe, record=make_record(recipe, lines), recipe="{}", environments={}
        )
        records.append(packed_run.model_dump_json() + "\n")
        table = tabulate_steps(lines)
        table.insert(0, "run", recipe)
        tables.append(table)
    study = StudyFile(
        recipes=recipes, reference="baseline", clock_start="training, not with the process"
    )
    folder.mkdir(parents=True)
    write_whole(folder / PACKED_RUNS, "".join(records))
    write_whole(folder / STUDY_FILE, dump_yaml(study.model_dump()))
    steps = pd.concat(tables)
    steps.to_parquet(folder / PACKED_STEPS, index=False, compression="zstd")
    return recipes


def find_recipe(path: Path) -> str:
    """Find the recipe of a log by the beginning of its name, or by the recipe's. Raises
    `InputError`."""
    name = path.stem.partition("_2025")[0]
    if name in RECIPES.values():
        return name
    if name not in RECIPES:
        raise InputError(f"{path}: is not a log of the published project: move it elsewhere")
    return RECIPES[name]


def read_log(path: Path) -> pd.DataFrame:
    """Read the lines of a log, by step. Raises `InputError`."""
    try:
        lines = pd.read_json(path, lines=True, precise_float=True).set_index("step")
        return lines[
            [
                "timestamp",
                "loss",
                "tokens_per_second",
                "training_tokens_percentage",
                "learning_rate",
                "time_delta",
            ]
        ]
    except (ValueError, KeyError) as error:
        raise InputError(f"{path}: is not a log of the published project") from error


def tabulate_steps(lines: pd.DataFrame) -> pd.DataFrame:
    """Make the table of a log: a row for each step, with `COLUMNS`.

    A line's seconds are spread evenly over its steps, and all of them have its loss, which is the
    last step's. Learning rate and clock are those of the line's last step.
    """
    step_s = lines["time_delta"] / lines.index.diff().fillna(1)
    steps = lines.assign(step_s=step_s).reindex(range(1, lines.index[-1] + 1)).bfill()
    tokens = steps["tokens_per_second"] * steps["step_s"]
    table = steps.assign(
        attempt=1,
        step=steps.index,
        is_steady=steps.index > NOT_STEADY_STEPS,
        memory_was_short=False,
        data_wait_s=0.0,
        tokens=tokens,
        valid_tokens=tokens * steps["training_tokens_percentage"] / 100,
        peak_memory_bytes=math.nan,
        lr=lines["learning_rate"],
        grad_norm=math.nan,
        elapsed_s=lines["time_delta"].cumsum(),
    )
    return table[[*COLUMNS]].astype(COLUMNS)


def make_record(recipe: str, lines: pd.DataFrame) -> RunRecord:
    """Make the record of a run: what its log and the published project say. The rest is unknown."""
    model = FLAVORS[FLAVOR]
    compiled = recipe != "baseline"
    peak = GPUS["gh200"]
    attempt = Attempt(
        number=1,
        status="completed",
        start=find_time(lines["timestamp"].iloc[0]),
        end=find_time(lines["timestamp"].iloc[-1]),
        command=UNKNOWN,
        host=UNKNOWN,
        pid=0,
        python=UNKNOWN,
        packages={},
        environment=UNKNOWN,
        git=Git(commit=None, changes=None),
        fp8_matmul=None,
        hardware=HARDWARE,
        peak_flops=Peak(bf16=peak.bf16, fp8=peak.fp8, source=peak.source),
        cuda=None,
        timing=Timing(
            time_to_first_step_s=lines["time_delta"].iloc[0],
            startup={},
            compile_cache="cold" if compiled else "none",
        ),
    )
    return RunRecord(
        recipe=recipe,
        base=None,
        overlays=[],
        description="A run of the published study",
        seed=None,
        steps=int(lines.index[-1]),
        compiled=compiled,
        world_size=1,
        flavor=FLAVOR,
        parameters=model.parameters(),
        flops_per_token=model.flops_per_token(SEQ_LEN),
        flops_per_token_causal=model.flops_per_token(SEQ_LEN, causal=True),
        seq_len=SEQ_LEN,
        dataset="of the published project",
        data=None,
        attempts=[attempt],
    )


def find_time(timestamp: datetime) -> datetime:
    """Give a log's time a zone. The logs have none; their machine's is not on record."""
    return pd.Timestamp(timestamp).to_pydatetime().replace(tzinfo=UTC)


if __name__ == "__main__":
    exit_with(main)
