"""Turn run directories of layout 4 into layout 5: they read alike and resume alike.

    python -m tools.convert DIR…

DIR is a run's directory, or a folder with some, as a study's. Layout 4 had manifest.json,
timing.json and proof.json in place of run.json, and a folder attempt<k>/ for each earlier attempt.
Started again after it was killed, a conversion goes on. A run with a damaged record stays as it is.

Example: python -m tools.convert runs/four_way-20261122-101500

Exit codes: 0 all runs have layout 5; 2 for bad input, and if a run stays as it is.
"""

import json
from contextlib import suppress
from pathlib import Path

import yaml

from experiments.config.yaml_with_origins import dump_yaml, load_sections
from experiments.jobs.command import EXIT_BAD_INPUT, EXIT_COMPLETED, CommandLine, exit_with
from experiments.records.files import lock_folder, write_whole
from experiments.records.run import MANIFEST_OF_LAYOUT_4 as MANIFEST
from experiments.records.run import (
    METRICS,
    RECIPE,
    RUN_RECORD,
    Attempt,
    LogInterval,
    RecordError,
    RunRecord,
    read_if_there,
)
from models.errors import InputError

TIMING, PROOF = "timing.json", "proof.json"
ATTEMPT_FOLDER = "attempt{}"
# Fields of layout 4 that repeat another field, or belong to features that are gone
DROPPED_FACTS = {"layout_version", "attempt", "float8", "study_budget_s"}
DROPPED_OF_LINES = {"fp8_ranges"}
DROPPED_OF_PROOF = {"fp8_share_of_matmul_flops"}
RUN_FACTS = RunRecord.model_fields.keys() - {"layout_version", "attempts", "proof"}
ATTEMPT_FACTS = Attempt.model_fields.keys() - {"number", "timing"}


def main(argv: list[str] | None = None) -> int:
    parser = CommandLine("tools.convert", __doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="what to convert")
    args = parser.parse_arguments(argv)
    code = EXIT_COMPLETED
    for top in args.folders:
        runs = find_runs(top)
        if not runs and not any(top.rglob(RUN_RECORD)):
            raise InputError(f"{top}: holds no run of layout 4: name a folder that does")
        print(f"Runs of layout 4 in {top}: {len(runs)}")
        for folder in runs:
            try:
                convert(folder)
                print(f"converted: {folder}")
            except RecordError as error:
                code = EXIT_BAD_INPUT
                print(f"stays as it is: {error}")
    return code


def find_runs(top: Path) -> list[Path]:
    """List the run directories of layout 4 at or below a folder.

    A start that was killed while it moved the records of an attempt may have left no manifest but
    the earlier attempts'.
    """
    folders = set()
    for manifest in top.rglob(MANIFEST):
        folder = manifest.parent
        is_earlier = folder.name.startswith("attempt") and (folder.parent / RECIPE).exists()
        folders.add(folder.parent if is_earlier else folder)
    return sorted(folders)


def convert(folder: Path) -> None:
    """Convert a run directory. Raises `RecordError` for a damaged record, `InputError` for a run
    that is alive, and OSError."""
    with lock_folder(folder, "run"):
        if not (folder / RUN_RECORD).exists():
            attempts = find_attempts(folder)
            lines = merge_logs(folder, attempts)
            record = merge_records(folder, attempts)
            write_whole(folder / METRICS, "".join(lines))
            record.write(folder / RUN_RECORD)
        drop_plan(folder / RECIPE)
        delete_old_records(folder)


def find_attempts(folder: Path) -> dict[int, list[Path]]:
    """Find the folders in which the records of each attempt may be, by its number."""
    earlier = [int(path.name.removeprefix("attempt")) for path in attempt_folders(folder)]
    last = max(earlier, default=0)
    manifest = read_json(folder / MANIFEST)
    if manifest:
        if manifest.get("layout_version") != 4:
            raise RecordError(
                f"{folder / MANIFEST}: layout_version: expected 4: make the run again, or read it "
                "with the code of its own commit"
            )
        last = manifest["attempt"]
    attempts = {number: [folder / ATTEMPT_FOLDER.format(number)] for number in range(1, last + 1)}
    if manifest:
        attempts[last].insert(0, folder)
    return attempts


def attempt_folders(folder: Path) -> list[Path]:
    """List the folders of earlier attempts."""
    paths = folder.glob(ATTEMPT_FOLDER.format("*"))
    return [path for path in paths if path.name.removeprefix("attempt").isdecimal()]


def merge_logs(folder: Path, attempts: dict[int, list[Path]]) -> list[str]:
    """Merge the logs of all attempts: lines of the new metrics.jsonl.

    In layout 4 a log began with the lines up to a checkpoint, copied from earlier attempts' logs.
    """
    merged = []
    earlier: set[tuple] = set()
    for number, places in attempts.items():
        path, content = find_record(places, METRICS)
        log = []
        for position, text in enumerate(content.split(b"\n")[:-1], 1):  # the last may be torn
            line = parse_json(text, f"{path}: line {position}")
            if "attempt" in line:  # a conversion was killed after it had merged them
                return [f"{text.decode()}\n" for text in content.split(b"\n")[:-1]]
            kept = {key: value for key, value in line.items() if key not in DROPPED_OF_LINES}
            numbered = json.dumps({"attempt": number} | kept).encode()
            log.append(LogInterval.parse(numbered, f"{path}: line {position}"))
        added = [each for each in log if (each.step, each.elapsed_s) not in earlier]
        merged += [f"{interval.model_dump_json(exclude_defaults=True)}\n" for interval in added]
        earlier.update((interval.step, interval.elapsed_s) for interval in log)
    return merged


def merge_records(folder: Path, attempts: dict[int, list[Path]]) -> RunRecord:
    """Merge the other records of all attempts; an attempt without a manifest is left out."""
    merged: dict = {"attempts": []}
    for number, places in attempts.items():
        path, content = find_record(places, MANIFEST)
        if not content:
            continue
        manifest = parse_json(content, str(path))
        unknown = manifest.keys() - RUN_FACTS - ATTEMPT_FACTS - DROPPED_FACTS
        if unknown:
            raise RecordError(f"{path}: {min(unknown)}: is not a field of layout 4")
        timing, timing_content = find_record(places, TIMING)
        attempt = {key: manifest[key] for key in ATTEMPT_FACTS & manifest.keys()}
        attempt["number"] = number
        attempt["timing"] = parse_json(timing_content, str(timing)) if timing_content else None
        merged |= {"data": None} | {key: manifest[key] for key in RUN_FACTS & manifest.keys()}
        merged["attempts"].append(attempt)
    newest = [folder, *reversed([places[-1] for places in attempts.values()])]
    path, content = find_record(newest, PROOF)
    if content:
        proof = parse_json(content, str(path))
        merged["proof"] = {key: proof[key] for key in proof.keys() - DROPPED_OF_PROOF}
    return RunRecord.parse(json.dumps(merged).encode(), str(folder))


def find_record(places: list[Path], name: str) -> tuple[Path, bytes]:
    """Read a record of an attempt where it is; its content is empty if it is missing."""
    for place in places:
        content = read_if_there(place / name)
        if content is not None:
            return place / name, content
    return places[0] / name, b""


def read_json(path: Path) -> dict | None:
    """Read a file of JSON; None if it is missing."""
    content = read_if_there(path)
    return None if content is None else parse_json(content, str(path))


def parse_json(content: bytes, place: str) -> dict:
    """Read an object of JSON."""
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{place}: {error}") from error
    if not isinstance(values, dict):
        raise RecordError(f"{place}: is not a JSON object")
    return values


def drop_plan(path: Path) -> None:
    """Take what layout 4 had worked out of a recipe out of recipe.yaml."""
    content = read_if_there(path)
    try:
        sections = load_sections(content or b"")
    except (ValueError, yaml.YAMLError):
        return  # it stays damaged, and its reader says so
    resolved = sections.get("resolved")
    if isinstance(resolved, dict) and "plan" in resolved:
        del resolved["plan"]
        write_whole(path, dump_yaml(sections))


def delete_old_records(folder: Path) -> None:
    """Delete the records of layout 4, the manifest last: it says that there is more to do."""
    for earlier in attempt_folders(folder):
        for name in (METRICS, TIMING, PROOF, MANIFEST):
            (earlier / name).unlink(missing_ok=True)
        with suppress(OSError):
            earlier.rmdir()
    for name in (TIMING, PROOF, MANIFEST):
        (folder / name).unlink(missing_ok=True)


if __name__ == "__main__":
    exit_with(main)
