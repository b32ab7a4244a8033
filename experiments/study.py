"""Run a study: several recipes and seeds, one process a run, then the table.

    python -m experiments.study NAME [--overlay O]… [--seeds 0,1,2] [--out DIR] [key.path=value …]
    python -m experiments.study DIR        goes on with an unfinished study, skipping what is complete

NAME is a file of experiments/studies/. A run that fails does not stop the others; the exit code is 1 if any did.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.console import Console
from rich.markup import escape

from analysis.report import print_report
from analysis.summary import read_json, read_last_line
from experiments import recipe as recipes
from experiments.progress import describe, progress_bar
from experiments.run import BAD_INPUT
from experiments.yaml_source import find, parse, plain
from models.errors import InputError

STUDIES = Path(__file__).parent / "studies"
AUTO = "auto"  # among the overlays: what this machine can hold
FROZEN = "study.yaml"  # in the study's directory: what it was started with, auto resolved


class Study(BaseModel):
    """A study's YAML: what is compared, with what, at which scale."""

    model_config = ConfigDict(extra="forbid", strict=True)

    description: str
    recipes: list[str]
    baseline: str
    seeds: list[int] = Field(min_length=1)
    overlays: list[str]
    overrides: list[str] = []

    def runs(self) -> Iterator[tuple[str, int]]:
        """(recipe, seed) in the order in which they run: a seed's recipes one after the other."""
        return ((recipe, seed) for seed in self.seeds for recipe in self.recipes)


def load(name: str) -> Study:
    """The study `name`, or the frozen one of the directory `name`. Raises `InputError` with file and line."""
    known = {path.stem: path for path in STUDIES.glob("*.yaml")}
    path = Path(name) / FROZEN if (Path(name) / FROZEN).exists() else known.get(name)
    if path is None:
        raise InputError(recipes.unknown("study", name, sorted(known)))
    problems: list[str] = []
    tree = parse(path.read_bytes(), lambda line: f"{path}:{line}", problems)
    try:
        if tree:
            return Study.model_validate(plain(tree))
    except ValidationError as error:
        for fault in error.errors():
            place = find(tree, fault["loc"][:1]) or tree
            problems.append(f"{place.origin}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}")
    raise InputError("\n".join(problems))


def choose_scale() -> tuple[list[str], str]:
    """Overlays for this machine, and one sentence of why."""
    from experiments import checks, device

    if device.TYPE == "cpu":
        return ["cpu"], "the CPU scale, a small Llama of the same architecture, because there is no GPU here"
    have = f"{device.name()} has {device.memory_bytes() / 2**30:.0f} GiB"
    for overlay in ("h200", "h100"):  # as it is; with its activations recomputed
        need = sum(checks.memory_estimate(recipes.load("baseline", [overlay]).config).values())
        if need <= device.memory_bytes():
            gib = f"about {need / 2**30:.0f} GiB"
            return [overlay], f"the published size (overlay {overlay}), because it needs {gib} and {have}"
    return ["cpu"], f"the CPU scale, because the published size needs {need / 2**30:.0f} GiB even so and {have}"


def run_study(study: Study, out: Path, console: Console) -> int:
    """Run what is not complete below `out`, print the table, and say where everything is. Returns the exit code."""
    codes = {}
    with progress_bar(console) as bar:
        for recipe, seed in study.runs():
            directory = out / recipe / f"seed{seed}"
            if read_json(directory / "manifest.json").get("status") == "completed":
                console.print(escape(f"complete already: {directory}"), soft_wrap=True)
                continue
            codes[directory] = _run_one(study, recipe, seed, directory, bar, console)
            if codes[directory] == 130:
                break
    console.print()
    print_report([out], study.baseline, console)
    console.print(escape(f"\nEverything is in {out}; TensorBoard: tensorboard --logdir {out}"), soft_wrap=True)
    if any(codes.values()):
        again = f"Not all runs completed; to go on with them: python -m experiments.study {out}"
        console.print(escape(again), soft_wrap=True)
    return int(any(codes.values()))


def _run_one(study: Study, recipe: str, seed: int, directory: Path, bar, console: Console) -> int:
    """One run in a process of its own; what it prints is in its log.txt. Returns its exit code."""
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "experiments.run", recipe, "--seed", str(seed), "--out", str(directory)]
    command += [part for overlay in study.overlays for part in ("--overlay", overlay)] + study.overrides
    task = bar.add_task(f"{recipe} seed {seed}", total=None, window="starting")
    if not console.is_terminal:
        console.print(f"{datetime.now():%H:%M:%S} {recipe} seed {seed}: started", soft_wrap=True)
    with open(directory / "log.txt", "a") as log:
        # A session of its own: the terminal's Ctrl-C reaches the study, which passes on one signal and waits.
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True)
    try:
        while process.poll() is None:
            _show(directory, bar, task)
            time.sleep(0.2)
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        return 130
    line = _show(directory, bar, task)
    manifest = read_json(directory / "manifest.json")
    if process.returncode < 0:
        status = f"killed by signal {-process.returncode}"
    else:  # bad input leaves the manifest as it was: another run's, perhaps
        status = "failed" if process.returncode == BAD_INPUT else manifest.get("status", "failed")
    outcome = f"{status} at step {line.get('step', 0)}" + (f", {describe(line)}" if line else "")
    reason = f": {_last_line(directory / 'log.txt')}" if process.returncode else ""
    bar.update(task, window=outcome)
    if process.returncode or not console.is_terminal:
        text = f"{datetime.now():%H:%M:%S} {recipe} seed {seed}: {outcome}{reason}"
        console.print(escape(text), soft_wrap=True)
    return process.returncode


def _last_line(log: Path) -> str:
    lines = log.read_text().split("\n")
    return next((line for line in reversed(lines) if line.strip()), f"see {log}")


def _show(directory: Path, bar, task) -> dict:
    """Move the bar to the run's last log line, and return that."""
    line = read_last_line(directory / "metrics.jsonl")
    if line:
        total = read_json(directory / "manifest.json").get("steps")
        bar.update(task, completed=line["step"], total=total, window=describe(line))
    return line


def prepare(study: Study) -> str:
    """Check every recipe and prepare the data ahead, so that no run's time holds it; says what it found."""
    if study.baseline not in study.recipes:
        raise InputError(f"the study's baseline {study.baseline} is not one of its recipes: {', '.join(study.recipes)}")
    from experiments import checks, device

    os.environ.setdefault(device.MEASURED_PEAK, str(device.peak().bf16))
    configs = [recipes.load(name, study.overlays, study.overrides).config for name in study.recipes]
    return list(dict.fromkeys(checks.check_data(config) for config in configs))[0]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.study", description="Run a study and compare.")
    parser.add_argument("name", help="a study's name, or the directory of an unfinished one")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value", help="for every run")
    parser.add_argument("--overlay", action="append", metavar="O", help="instead of the study's overlays")
    parser.add_argument("--seeds", metavar="0,1,2", help="instead of the study's seeds")
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory (default: a new one under runs/)")
    args = parser.parse_intermixed_args(argv)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: ends the run it waits for, then itself
    try:
        study, out = load(args.name), args.out
        if (Path(args.name) / FROZEN).exists():
            if args.overlay or args.seeds or args.overrides or args.out:
                raise InputError("an unfinished study goes on as it was started: leave the other arguments out")
            out = Path(args.name)
        study.overlays = args.overlay or study.overlays
        study.overrides += args.overrides
        if args.seeds:
            study.seeds = _seeds(args.seeds)
        if AUTO in study.overlays:
            chosen, why = choose_scale()
            place = study.overlays.index(AUTO)
            study.overlays[place : place + 1] = chosen
            console.print(escape(f"Scale: {why}."), soft_wrap=True)
        out = out or Path("runs") / f"{args.name}-{datetime.now():%Y%m%d-%H%M%S}"
        console.print(escape(f"Data: {prepare(study)}.\nInto {out}"), soft_wrap=True)
    except InputError as error:
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"[red]error:[/] {escape(str(error))}")
        return 2
    out.mkdir(parents=True, exist_ok=True)
    (out / FROZEN).write_text(yaml.safe_dump(study.model_dump(), sort_keys=False))
    return run_study(study, out, console)


def _seeds(text: str) -> list[int]:
    try:
        return list(dict.fromkeys(int(seed) for seed in text.split(",")))
    except ValueError:
        raise InputError(f"--seeds {text}: expected numbers, as in --seeds 0,1,2") from None


if __name__ == "__main__":
    sys.exit(main())
