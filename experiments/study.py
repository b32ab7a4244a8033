"""Run a study: several recipes and seeds, one process a run, as many at once as there are GPUs;
then the answer.

    python -m experiments.study [NAME…] [--overlay O]… [--seeds 3] [--out DIR]
                                [key.path=value …]
    python -m experiments.study DIR [--seeds 5]    resumes a study: completed runs are skipped, and
                                                   --seeds may add seeds

NAME is a file of recipes/studies/ (four_way without one), or recipes to compare:
`python -m experiments.recipe list`.
`--seeds 3` is short for `--seeds 0,1,2`; only seed 3 is `--seeds 3,`. A run that fails does not
stop the others. Each run compiles anew, so that all first steps compare.

Example: python -m experiments.study four_way --seeds 3 training.steps=200

Exit codes: 0 completed, 1 if any run or the report failed, 2 for bad input, 75 if runs were stopped
to be continued (SIGUSR1), 130 after SIGTERM or Ctrl-C.
"""

import argparse
import os
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from experiments.config import recipes
from experiments.config.yaml_with_origins import (
    dump_yaml,
    find_by_name,
    make_input_error,
    read_file,
    read_override,
    validate_layer,
    yaml_files,
)
from experiments.jobs.command import (
    EXIT_COMPLETED,
    EXIT_FAILED,
    EXIT_RESUME,
    EXIT_STOPPED,
    CommandLine,
    StopRequest,
    exit_with,
    parse_seeds,
    require_single_process,
)
from experiments.jobs.durations import (
    Duration,
    RunSize,
    Workload,
    describe_estimate,
    find_earlier_duration,
    list_study_folders,
)
from experiments.jobs.progress import is_slurm_job, mark_progress
from experiments.jobs.runner import (
    RunProcess,
    count_parallel_runs,
    list_compile_folders,
    run_all,
)
from experiments.records.files import (
    check_folder,
    lock_folder,
    make_dated_folder,
    name_dated_folder,
    refuse_folder_without,
    write_whole,
)
from experiments.records.run import (
    METRICS,
    PACKED_RUNS,
    RECIPE,
    STUDY_FILE,
    RecordError,
    Seed,
    last_step,
    read_run_record,
)
from models.errors import PYTHON, InputError

if TYPE_CHECKING:
    from experiments.training.plan import OpenedPlan

DEFAULT_STUDY = "four_way"
STUDY_COMMAND = f"{PYTHON} -m experiments.study"
SLURM_COMMAND = "sbatch launch/alps_fp8.sbatch"
FP8_STEP_FACTOR_ON_CPU = 3.0
"""A first guess: the kept runs of CPUs took 2 to 6 times the step time of bf16 in FP8."""


class StudyPlan(BaseModel):
    """A study's YAML."""

    model_config = ConfigDict(extra="forbid", strict=True)

    description: str
    recipes: list[str] = Field(min_length=1)
    reference: str
    seeds: list[Seed] = Field(min_length=1)
    # "auto" chooses, when the study starts, the overlays that suit the machine's memory
    size: Literal["auto"] | None = None
    overlays: list[str] = []
    overrides: list[str] = []

    def to_yaml(self) -> str:
        """Write the study as YAML, which `read_study_plan` reads."""
        return dump_yaml(self.model_dump(exclude_none=True))

    def list_runs(self) -> list[tuple[str, int]]:
        """List (recipe, seed), each once, in the order of their runs.

        A seed's recipes come one after the other. Recipes rotate from seed to seed, so that a
        recipe does not run on the same one of several GPUs every time.
        """
        names = list(dict.fromkeys(self.recipes))
        runs = []
        for seed in dict.fromkeys(self.seeds):
            runs += [(name, seed) for name in names]
            names = names[1:] + names[:1]
        return runs


def main(argv: list[str] | None = None) -> int:
    args = _make_command_line().parse_arguments(argv)
    stop = StopRequest()
    stop.listen()
    require_single_process()
    study, out = _resolve_study(args)
    plans = _prepare_plans(study, args.dry_run)
    if out is None and args.dry_run:
        out = name_dated_folder(_list_names(args)[0])
    elif out is None:
        out = make_dated_folder(_list_names(args)[0])
    runs = _list_incomplete_runs(study, plans, out)
    earlier = _find_earlier_durations(plans, out)
    if runs:
        progresses = [run.read_progress() for run in runs]
        print(f"Time: {describe_estimate(progresses, earlier, count_parallel_runs(runs))}")
    if args.dry_run:
        for run in runs:
            print(
                f"would run {run.title}: {run.steps} steps, {run.description}, into {run.directory}"
            )
        return EXIT_COMPLETED
    with lock_folder(out, "study"):
        write_whole(out / STUDY_FILE, study.to_yaml())
        with mark_progress(out):
            run_all(runs, stop, earlier)
        failure_codes = {run.exit_code for run in runs} - {EXIT_COMPLETED}
        report_code = EXIT_COMPLETED
        was_stopped = bool(failure_codes and stop.exit_code)
        if not was_stopped:
            min_steps = min(plan.config.training.steps for plan in plans.values())
            report_code = _report_study(study, min_steps, out, args.verbose)
    if not failure_codes:
        return report_code
    print(f"Not all runs completed; to resume them: {choose_command()} {quote(str(out))}")
    exit_codes = {stop.exit_code, *failure_codes}
    if EXIT_STOPPED in exit_codes:
        return EXIT_STOPPED
    if EXIT_RESUME in exit_codes:
        return EXIT_RESUME
    return EXIT_FAILED


def _make_command_line() -> CommandLine:
    parser = CommandLine("experiments.study", __doc__, takes_keys=True)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="a study, recipes, or an unfinished study's folder"
    )
    parser.add_overlays()
    parser.add_argument(
        "--seeds",
        type=parse_seeds,
        metavar="N",
        help="how many, from 0; or a list of them, as 0,1,2",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="directory (default: a new one under runs/)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="check recipes and data; list what would run"
    )
    parser.add_argument(
        "--verbose", action="store_true", help="print the other recipes and each run too"
    )
    return parser


# ---- resolve ----


def _list_names(args: argparse.Namespace) -> list[str]:
    """List the study or the recipes of the command line."""
    return [word for word in args.names if "=" not in word] or [DEFAULT_STUDY]


def _resolve_study(args: argparse.Namespace) -> tuple[StudyPlan, Path | None]:
    """Plan the study of the command line, or read the study to resume; name its folder.

    None instead of a folder: the study gets a new one. The folder may have the study already: then
    the seeds of both are joined. Raises `InputError` for a seed among the keys, and if the folder
    holds another study.
    """
    # os.path takes names of any length: an override may have more than 255 characters
    if args.names and os.path.exists(os.path.join(args.names[0], STUDY_FILE)):
        folder = Path(args.names[0])
        overrides = args.names[1:]
        study = read_study_plan(folder / STUDY_FILE)
        out = args.out or folder
    else:
        overrides = [word for word in args.names if "=" in word]
        study = load_study_plan(_list_names(args))
        out = args.out
    if out is not None:
        check_folder(out, "study", STUDY_FILE)
        if (out / PACKED_RUNS).exists():
            raise InputError(
                f"{out} holds a study that is kept in two files, and no runs resume there: to read "
                f"it, {PYTHON} -m analysis.report {quote(str(out))}; to train it again, choose "
                "another --out"
            )
    _refuse_seed(overrides)
    study.overrides = study.overrides + overrides
    study.seeds = args.seeds or study.seeds
    if args.overlay:
        study.overlays = args.overlay
    elif study.size == "auto":
        study.overlays = _choose_overlays(study)
    study.size = None  # the overlays are its choice
    if out is not None and (out / STUDY_FILE).exists():
        _join_started_study(study, out)
    return study, out


def _refuse_seed(overrides: list[str]) -> None:
    """Raise `InputError` for a seed among the keys of the command line."""
    for override in overrides:
        seed = read_override(override).get("debug.seed")
        if seed:
            raise InputError(f"debug.seed: a study sets it; give --seeds {seed.value},")


def _choose_overlays(study: StudyPlan) -> list[str]:
    """Choose the overlays of the size that suits this machine, and print the size."""
    # torch: seconds, which a misspelt name need not wait for
    from experiments.training.machine import check_driver
    from experiments.training.sizes import choose_size

    check_driver()
    names = dict.fromkeys([study.reference, *study.recipes])
    overlays, reason = choose_size([*names], study.overrides)
    print(f"Size: {reason}; --overlay chooses another.")
    return overlays


def _join_started_study(study: StudyPlan, out: Path) -> None:
    """Add the seeds of the study in the folder. Raises `InputError` for a different study."""
    started_study = read_study_plan(out / STUDY_FILE)
    if set(study.seeds) < set(started_study.seeds):
        seeds = ", ".join(map(str, started_study.seeds))
        print(f"The study keeps its seeds {seeds}: --seeds adds seeds and removes none.")
    study.seeds = [*dict.fromkeys(started_study.seeds + study.seeds)]
    started_study.seeds = study.seeds
    if started_study.size == "auto":  # a file that somebody wrote: no run has started
        started_study.size = None
        started_study.overlays = study.overlays
    if started_study != study:
        raise InputError(
            f"{out} holds another study: choose another --out, or resume that study, with more "
            f"--seeds if you like: {choose_command()} {quote(str(out))}"
        )


def load_study_plan(names: list[str]) -> StudyPlan:
    """Read the study of this name, or plan a study of these recipes.

    Raises `InputError` with file and line, or with the nearest names.
    """
    recipe_files = yaml_files(recipes.RECIPES)
    study_files = yaml_files(recipes.STUDIES_FOLDER)
    if len(names) == 1 and names[0] in study_files:
        return read_study_plan(study_files[names[0]])
    if len(names) == 1:
        kind = f"recipe in {recipes.RECIPES.name}/, study, or folder with a {STUDY_FILE}"
        choices = study_files | recipe_files
    else:
        kind = "recipe, and a study cannot be combined with recipes"
        choices = recipe_files
    for name in names:
        if name not in choices:
            refuse_folder_without(Path(name), "study", STUDY_FILE)
        find_by_name(kind, name, choices)
    if "baseline" in names:
        reference = "baseline"
    elif "baseline_compiled" in names:
        reference = "baseline_compiled"
    else:
        reference = names[0]
    return StudyPlan(
        description=", ".join(names),
        recipes=names,
        reference=reference,
        seeds=[0],
        size="auto",
    )


def read_study_plan(path: Path, plan_class: type[StudyPlan] = StudyPlan) -> StudyPlan:
    """Read one file as a `plan_class`. Raises `InputError` with file and line."""
    layer = read_file(path)
    study = validate_layer(plan_class.model_validate, layer, plan_class.model_fields)
    recipe_files = yaml_files(recipes.RECIPES)
    recipes_origin = f"{layer['recipes'].origin}: recipes: "
    for name in study.recipes:  # no paths: each recipe has a folder of its name
        find_by_name("recipe", name, recipe_files, recipes_origin)
    if study.size == "auto" and study.overlays:
        raise make_input_error(
            layer, [("size", "auto chooses the overlays: leave out one of both")]
        )
    if study.size is None and "overlays" not in layer:
        sentence = "is missing; it may be an empty list, or `size: auto` may stand in its place"
        raise make_input_error(layer, [("overlays", sentence)])
    study_recipes = dict.fromkeys(study.recipes)
    reference_origin = f"{layer['reference'].origin}: reference: "
    find_by_name("recipe of this study", study.reference, study_recipes, reference_origin)
    return study


# ---- plan ----


def _prepare_plans(study: StudyPlan, dry_run: bool) -> dict[str, "OpenedPlan"]:
    """Plan the runs of each recipe, check this machine, and write missing token files.

    No run's time includes the writing of a token file. A dry run on a machine without a GPU does
    not check the machine: another one may train.
    """
    from experiments.training.machine import check_driver, check_units
    from experiments.training.plan import open_data, plan
    from experiments.training.wandb_runs import check_wandb
    from models import device

    loaded = recipes.load_recipes(study.recipes, study.overlays, study.overrides)
    plans = {name: plan(recipe) for name, recipe in loaded.items()}
    untried_torch = device.describe_untried_torch()
    if untried_torch:
        print(f"Warning: torch {untried_torch}.")
    if not (dry_run and device.TYPE == "cpu"):
        check_driver()
        compile_folders = list_compile_folders()
        for recipe_plan in plans.values():
            check_units(recipe_plan, compile_folders)
            check_wandb(recipe_plan.config)
    plans_with_data = {}
    data_descriptions = []
    for name, recipe_plan in plans.items():
        plans_with_data[name], description = open_data(recipe_plan)
        data_descriptions.append(description)
    for description in dict.fromkeys(data_descriptions):
        print(f"Data: {description}.")
    return plans_with_data


def _list_incomplete_runs(
    study: StudyPlan, plans: dict[str, "OpenedPlan"], out: Path
) -> list[RunProcess]:
    """List the runs that are not complete; print their number and the folders of complete runs.

    Raises `InputError` for a folder with a run of another recipe.
    """
    runs = []
    for name, seed in study.list_runs():
        folder = out / name / f"seed{seed}"
        plan = plans[name]
        recipe = plan.recipe.with_seed(seed)
        recipes.require_same_recipe(folder, recipe)
        if _is_completed(folder):
            _report_complete_run(folder)
            continue
        run = RunProcess(
            title=f"{name} seed {seed}",
            directory=folder,
            recipe=recipes.to_yaml(recipe),
            steps=plan.config.training.steps,
            workload=_describe_workload(plan),
            world_size=plan.world_size,
            description=plan.description,
            steps_before=last_step(folder),
        )
        runs.append(run)
    print(f"Runs to make: {len(runs)}, into {out}")
    return runs


def _describe_workload(plan: "OpenedPlan") -> Workload:
    """Describe what decides how long a run of a plan takes."""
    from models import device

    in_fp8 = bool(plan.fp8.layers)
    is_slow = in_fp8 and device.TYPE == "cpu"
    return Workload(
        recipe=plan.recipe.name,
        is_compiled=plan.config.compile.compiles_model,
        in_fp8=in_fp8,
        step_factor=FP8_STEP_FACTOR_ON_CPU if is_slow else 1.0,
    )


def _find_earlier_durations(plans: dict[str, "OpenedPlan"], out: Path) -> dict[str, Duration]:
    """Find what the recipes took in earlier runs of this size on this machine, by recipe."""
    from models import device

    folders = list_study_folders(out)
    durations = {}
    for name, plan in plans.items():
        size = RunSize(
            device_name=device.name(),
            parameters=plan.args.parameters(),
            seq_len=plan.config.training.seq_len,
            world_size=plan.world_size,
            step_tokens=plan.tokens * plan.world_size,
        )
        duration = find_earlier_duration(folders, name, size)
        if duration:
            durations[name] = duration
    return durations


def _report_complete_run(folder: Path) -> None:
    """Print the folder of a complete run, and which of its files are missing."""
    print(f"complete already: {folder}")
    missing = [name for name in (RECIPE, METRICS) if not (folder / name).exists()]
    if missing:
        print(f"It lost {' and '.join(missing)}: to make the run again, delete that folder")


def _is_completed(folder: Path) -> bool:
    try:
        record = read_run_record(folder)
    except RecordError:  # the run itself reports the fault of its folder
        return False
    return record is not None and record.status == "completed"


# ---- report ----


def choose_command() -> str:
    """Choose the command that resumes a study: on this machine, or by a job."""
    return SLURM_COMMAND if is_slurm_job() else STUDY_COMMAND


def _report_study(study: StudyPlan, min_steps: int, out: Path, verbose: bool) -> int:
    """Print the answer, write the page, and print the next commands.

    A report that fails costs no run. Returns the exit code.

    Args:
        min_steps: the number of steps of the shortest runs.
    """
    folder = quote(str(out))
    page = out / "report.html"
    try:
        from analysis import report  # pandas: a second
        from analysis.runs import MIN_SEEDS, MIN_STEPS

        arguments = [str(out), "--html", str(page)]
        if verbose:
            arguments.append("--verbose")
        report.main(arguments)
    except Exception as error:
        report_command = f"{PYTHON} -m analysis.report {folder} --html {quote(str(page))}"
        if is_slurm_job():
            report_command = f"{SLURM_COMMAND} {folder}"
        print(
            f"All runs are kept, but their report failed ({type(error).__name__}: {error}): once "
            f"that is fixed, {report_command}"
        )
        return EXIT_FAILED
    notebook_command = f"make lab RUNS={folder}"
    curve_command = f"{PYTHON} -m tensorboard.main"
    if is_slurm_job():  # the user copies the results to another machine
        folder = f"runs/{quote(out.name)}"
        source = quote(f"CLUSTER:{out.absolute()}")
        notebook_command = (
            f"at home: rsync -a --exclude checkpoint {source} runs/ && make lab RUNS={folder}"
        )
        curve_command = ".venv/bin/tensorboard"
    print(f"\nPage       {page}\nNotebooks  {notebook_command}")
    print(f"Curves     {curve_command} --logdir {folder}")
    if len(study.seeds) < MIN_SEEDS and min_steps >= MIN_STEPS:
        print(f"Verdict    {choose_command()} {quote(str(out))} --seeds {MIN_SEEDS}")
    return EXIT_COMPLETED


if __name__ == "__main__":
    exit_with(main)
