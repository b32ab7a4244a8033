"""Run a study: several recipes and seeds, one process a run, as many at once as there are GPUs;
then the answer.

    python -m experiments.study [NAME…] [--overlay O]… [--seeds 3] [--out DIR]
                                [key.path=value …]
    python -m experiments.study DIR [--seeds 5]    goes on with a study, skipping what is complete;
                                                   with more seeds, if they are named

NAME is a file of recipes/studies/ (four_way without one), or recipes to compare:
`python -m experiments.recipe list`.
`--seeds 3` is short for `--seeds 0,1,2`; seed 3 alone is `--seeds 3,`. A run that fails does not
stop the others. Each run compiles anew, so that all first steps compare.

Example: python -m experiments.study four_way --seeds 3 training.steps=200

Exit codes: 0 completed, 1 if any run or the report failed, 2 for bad input, 75 if runs were stopped
to be continued (SIGUSR1), 130 after SIGTERM or Ctrl-C.
"""

import argparse
import os
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from experiments.config import recipes
from experiments.config.yaml_with_origins import (
    dump,
    find,
    read_file,
    read_override,
    validated,
    yaml_files,
)
from experiments.jobs.command import (
    COME_BACK,
    COMPLETED,
    FAILED,
    FOR_GOOD,
    CommandLine,
    Stop,
    leave,
    require_single_process,
    seeds,
)
from experiments.jobs.runner import Job, compile_folders, run_all
from experiments.records.files import (
    check_folder,
    check_mark,
    dated_folder,
    lock_folder,
    write_whole,
)
from experiments.records.run import (
    MANIFEST,
    METRICS,
    RECIPE,
    STUDY_FILE,
    Manifest,
    RecordError,
    Seed,
    last_step,
)
from models.errors import PYTHON, InputError

if TYPE_CHECKING:
    from experiments.training.plan import Plan

DEFAULT = "four_way"
AUTO = "auto"  # in place of overlays: what this machine can hold
PROGRAM = f"{PYTHON} -m experiments.study"
JOB = "sbatch launch/alps_fp8.sbatch"
FOR_A_VERDICT = 3  # seeds


class Study(BaseModel):
    """A study's YAML."""

    model_config = ConfigDict(extra="forbid", strict=True)

    description: str
    recipes: list[str] = Field(min_length=1)
    reference: str
    seeds: list[Seed] = Field(min_length=1)
    overlays: list[str]
    overrides: list[str] = []

    def runs(self) -> list[tuple[str, int]]:
        """List (recipe, seed), each once, in the order of their runs.

        A seed's recipes come one after the other. Recipes rotate from seed to seed: otherwise a
        recipe could keep to one of several GPUs.
        """
        names, runs = list(dict.fromkeys(self.recipes)), []
        for seed in dict.fromkeys(self.seeds):
            runs += [(name, seed) for name in names]
            names = names[1:] + names[:1]
        return runs


def main(argv: list[str] | None = None) -> int:
    args = _command_line().parse(argv)
    stop = Stop()
    stop.listen()
    require_single_process()
    study, out = _resolve(args)
    plans = _plan(study, args.dry_run)
    runs = _runs_to_make(study, plans, out)
    if args.dry_run:
        for run in runs:
            work = plans[run.directory.parent.name].description
            print(f"would run {run.title}: {run.steps} steps, {work}, into {run.directory}")
        return COMPLETED
    with lock_folder(out, "study"):
        write_whole(out / STUDY_FILE, dump(study.model_dump()))
        run_all(runs, stop)
        codes = {run.code for run in runs} - {COMPLETED}
        steps = min(plan.config.training.steps for plan in plans.values())
        reported = COMPLETED if codes and stop.code else _report(study, steps, out, args.verbose)
    if not codes:
        return reported
    print(f"Not all runs completed; to resume them: {choose_command()} {quote(str(out))}")
    return next((code for code in (FOR_GOOD, COME_BACK) if code in (stop.code, *codes)), FAILED)


def _command_line() -> CommandLine:
    parser = CommandLine("experiments.study", __doc__, takes_keys=True)
    add = parser.add_argument
    add(
        "names", nargs="*", metavar="NAME", help="a study, recipes, or an unfinished study's folder"
    )
    parser.add_overlays()
    add("--seeds", type=seeds, metavar="N", help="how many, from 0; or a list of them, as 0,1,2")
    add("--out", type=Path, metavar="DIR", help="directory (default: a new one under runs/)")
    add("--dry-run", action="store_true", help="check recipes and data; list what would run")
    add("--verbose", action="store_true", help="print what the answer rests on too")
    return parser


# ---- resolve ----


def _resolve(args: argparse.Namespace) -> tuple[Study, Path]:
    """Make the study of the command line, or read the one to go on with; name its folder.

    If the folder has the study already, seeds of the command line are added to the study's. Raises
    `InputError` for a seed among the keys, and if the folder holds another study.
    """
    # os.path, which takes names of any length: an override may have more than 255 characters
    if args.names and os.path.exists(os.path.join(args.names[0], STUDY_FILE)):
        overrides, out = args.names[1:], args.out or Path(args.names[0])
        study = read(Path(args.names[0], STUDY_FILE))
    else:
        overrides = [name for name in args.names if "=" in name]
        names = [name for name in args.names if "=" not in name] or [DEFAULT]
        study, out = load(names), args.out or dated_folder(names[0])
    check_folder(out, "study", STUDY_FILE)
    for override in overrides:
        seed = read_override(override).get("debug.seed")
        if seed:
            raise InputError(f"debug.seed: a study sets it; say --seeds {seed.value},")
    study.overlays = args.overlay or study.overlays
    study.overrides = study.overrides + overrides
    study.seeds = args.seeds or study.seeds
    if study.overlays == [AUTO]:
        # torch: seconds, not for a wrong name
        from experiments.training.machine import check_driver
        from experiments.training.sizes import choose_size

        check_driver()
        names = dict.fromkeys([study.reference, *study.recipes])
        study.overlays, why = choose_size([*names], study.overrides)
        print(f"Size: {why}; --overlay chooses another.")
    if (out / STUDY_FILE).exists():
        started = read(out / STUDY_FILE)
        started.seeds = study.seeds = [*dict.fromkeys(started.seeds + study.seeds)]
        if started != study:
            raise InputError(
                f"{out} holds another study: choose another --out, or go on with that one, and "
                f"more --seeds if you like: {choose_command()} {quote(str(out))}"
            )
    return study, out


def load(names: list[str]) -> Study:
    """Read the study of this name, or make a study of these recipes.

    Raises `InputError` with file and line, or with the nearest names.
    """
    known, there = yaml_files(recipes.RECIPES), yaml_files(recipes.STUDIES)
    kind = f"recipe in {recipes.RECIPES.name}/, study, or folder with a {STUDY_FILE}"
    if len(names) > 1:
        kind, there = "recipe, and a study cannot be combined", {}
    if names[0] in there:
        return read(there[names[0]])
    for name in names:
        if name not in there | known:
            check_mark(Path(name), "study", STUDY_FILE)
        find(kind, name, there | known)
    by_preference = ["baseline", "baseline_compiled", *names]
    return Study(
        description=", ".join(names),
        recipes=names,
        reference=next(name for name in by_preference if name in names),
        seeds=[0],
        overlays=[AUTO],
    )


def read(path: Path, kind: type[Study] = Study) -> Study:
    """Read one file as a study of a `kind`. Raises `InputError` with file and line."""
    keys = read_file(path)
    study = validated(kind.model_validate, keys, kind.model_fields)
    known = yaml_files(recipes.RECIPES)
    for name in study.recipes:  # no paths: each recipe has a folder of its name
        find("recipe", name, known, f"{keys['recipes'].origin}: recipes: ")
    its_own, origin = dict.fromkeys(study.recipes), f"{keys['reference'].origin}: reference: "
    find("recipe of this study", study.reference, its_own, origin)
    return study


# ---- plan ----


def _plan(study: Study, dry_run: bool) -> dict[str, "Plan"]:
    """Plan the runs of each recipe, check this machine, and write missing token files.

    The token files are written here, so that no run's time holds that. A dry run on a machine
    without a GPU checks no machine: another one may train.
    """
    from experiments.corpus.rows import open_data
    from experiments.training.machine import check_driver, check_units
    from experiments.training.plan import plan
    from models import device

    loaded = recipes.load_compared(study.recipes, study.overlays, study.overrides)
    plans = {name: plan(recipe) for name, recipe in loaded.items()}
    untried = device.describe_untried_torch()
    if untried:
        print(f"Warning: torch {untried}.")
    if not (dry_run and device.TYPE == "cpu"):
        check_driver()
        caches = compile_folders()
        for planned in plans.values():
            check_units(planned, caches)
    for name, planned in plans.items():
        plans[name], finding = open_data(planned)
    print(f"Data: {finding}.")
    return plans


def _runs_to_make(study: Study, plans: dict[str, "Plan"], out: Path) -> list[Job]:
    """List the runs still to make, and print their number and the folders of complete runs.

    Raises `InputError` for a folder with a run of another recipe.
    """
    runs = []
    for name, seed in study.runs():
        folder, plan = out / name / f"seed{seed}", plans[name]
        recipe = plan.recipe.with_seed(seed)
        recipes.check_recipe(folder, recipe)
        if _completed(folder):
            lost = [name for name in (RECIPE, METRICS) if not (folder / name).exists()]
            print(f"complete already: {folder}")
            if lost:
                print(f"It lost {' and '.join(lost)}: to make the run again, delete that folder")
            continue
        text, steps = recipes.to_yaml(recipe, plan), plan.config.training.steps
        title, before = f"{name} seed {seed}", last_step(folder)
        runs.append(Job(title, folder, text, steps, plan.world_size, before))
    print(f"Runs to make: {len(runs)}, into {out}")
    return runs


def _completed(run: Path) -> bool:
    try:
        return Manifest.read(run / MANIFEST).status == "completed"
    except RecordError:  # not there; or the run itself says what is wrong with its folder
        return False


# ---- report ----


def is_job() -> bool:
    """Look for a job of Slurm. The node it was submitted on may lack the job's Python."""
    return "SLURM_JOB_ID" in os.environ


def choose_command() -> str:
    """Choose the command to resume a study: here, or by a job."""
    return JOB if is_job() else PROGRAM


def _report(study: Study, steps: int, out: Path, verbose: bool) -> int:
    """Print the answer, write the page, and say what to look at next.

    A report that fails costs no run. Returns the exit code.
    """
    folder, page = quote(str(out)), out / "report.html"
    try:
        from analysis import report  # pandas: a second
        from analysis.runs import MIN_STEPS

        report.main([str(out), "--html", str(page), *["--verbose"] * verbose])
    except Exception as error:
        again = f"{PYTHON} -m analysis.report {folder} --html {quote(str(page))}"
        if is_job():
            again = f"{JOB} {folder}"
        print(
            f"All runs are kept, but their report failed ({type(error).__name__}: {error}): once "
            f"that is fixed, {again}"
        )
        return FAILED
    notebooks, curves = f"make lab RUNS={folder}", f"{PYTHON} -m tensorboard.main"
    if is_job():  # nobody sits at this machine
        folder = f"runs/{quote(out.name)}"
        source = quote(f"CLUSTER:{out.absolute()}")
        notebooks = f"at home: rsync -a --exclude checkpoint {source} runs/"
        notebooks += f" && make lab RUNS={folder}"
        curves = ".venv/bin/tensorboard"
    print(f"\nPage       {page}\nNotebooks  {notebooks}")
    print(f"Curves     {curves} --logdir {folder}")
    if len(study.seeds) < FOR_A_VERDICT and steps >= MIN_STEPS:
        print(f"Verdict    {choose_command()} {quote(str(out))} --seeds {FOR_A_VERDICT}")
    return COMPLETED


if __name__ == "__main__":
    leave(main)
