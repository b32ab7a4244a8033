"""Put the runs of a study into two files, to keep them in results/ (read by analysis/runs.py).

    python -m tools.pack_results STUDY DIR

STUDY is the folder of a study, which stays as it is; DIR is a new folder. DIR gets study.yaml,
runs.jsonl and steps.parquet. Write expectation and result into LOG.md beside
DIR.

Example: python -m tools.pack_results runs/four_way-20261122-101500 results/h100_2026-11-22

Exit codes: 0 written; 2 for bad input.
"""

import shutil
from pathlib import Path

import pandas as pd

from analysis.runs import PACKED_STEPS, PackedRun, read_environments, read_run, tabulate_log
from experiments.jobs.command import EXIT_COMPLETED, CommandLine, exit_with
from experiments.records.files import write_whole
from experiments.records.run import (
    METRICS,
    PACKED_RUNS,
    RECIPE,
    RUN_RECORD,
    STUDY_FILE,
    RunRecord,
    read_log,
)
from models.errors import InputError


def main(argv: list[str] | None = None) -> int:
    parser = CommandLine("tools.pack_results", __doc__)
    parser.add_argument("study", type=Path, metavar="STUDY", help="folder of a study")
    parser.add_argument("folder", type=Path, metavar="DIR", help="new folder")
    args = parser.parse_arguments(argv)
    if not (args.study / STUDY_FILE).exists():
        raise InputError(f"{args.study}: holds no {STUDY_FILE}: name the folder of a study")
    if args.folder.exists():
        raise InputError(f"{args.folder}: is there already: name a new folder")
    count = pack(args.study, args.folder)
    print(f"{count} runs: {args.folder / PACKED_RUNS}, {args.folder / PACKED_STEPS}")
    return EXIT_COMPLETED


def pack(study: Path, folder: Path) -> int:
    """Write the runs of a study into a folder; return their number.

    Raises `RecordError` for a run that cannot be read, and OSError.
    """
    lines = []
    tables = []
    for path in sorted(record.parent for record in study.rglob(RUN_RECORD)):
        read_run(path)  # it checks that the records go together
        record = RunRecord.read(path / RUN_RECORD)
        packed = PackedRun(
            folder=path.relative_to(study).as_posix(),
            record=record,
            recipe=(path / RECIPE).read_text("utf-8"),
            environments=read_environments(path, record),
        )
        lines.append(packed.model_dump_json() + "\n")
        log = tabulate_log(read_log(path / METRICS))
        log.insert(0, "run", packed.folder)
        tables.append(log)
    folder.mkdir(parents=True)
    write_whole(folder / PACKED_RUNS, "".join(lines))
    pd.concat(tables).to_parquet(folder / PACKED_STEPS, index=False, compression="zstd")
    shutil.copy(study / STUDY_FILE, folder)
    return len(lines)


if __name__ == "__main__":
    exit_with(main)
