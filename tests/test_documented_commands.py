"""Every command of the documents is one that the project takes: its module or file exists, and its
arguments are read by the command's own parser, its recipes, studies, overlays and keys by the
recipes' reader. Nothing is trained.

Commands that are not checked, and why, are in `NOT_CHECKED`.
"""

import argparse
import importlib
import importlib.util
import os
import re
import shlex
from pathlib import Path

import pytest

from experiments import study
from experiments.config import recipes
from experiments.jobs.command import CommandLine
from models.errors import InputError
from tests.processes import ROOT

# results/LOG.md and its likes are history: they name commands of their time.
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "launch/README.md"]
PAGES += [*ROOT.glob("docs/*.md"), *ROOT.glob("extensions/*/README.md")]
# What a command begins with, after variables
STARTS = r"\.venv/bin/python|python|make|sbatch|srun|bash|launch/\w+\.sh|timeout"
COMMAND = re.compile(rf"(?:\$ )?((?:[A-Z_]+=\S* )*(?:{STARTS})(?: .*|$))")
# Words that stand for something of the reader's
PLACEHOLDERS = {"NAME": "baseline", "RECIPE": "baseline", "O": "cpu", "$EDF": "launch/alps.toml"}
# Commands by how they begin or what is in them
NOT_CHECKED = {
    ".venv/bin/python -m pip ": "another project's options, and the network",
    ".venv/bin/python -m pytest ": "another project's options",
    ".venv/bin/python -m torch.": "PyTorch's own command",
    " -m ipykernel ": "another project's, which JupyterHub needs",
    "baseline_ema": "tests/config/test_extensions.py makes and runs it",
    "--pty bash": "an interactive shell",
    "timeout -s USR1": "a part of a command that the same page has whole",
}
OPTIONS_OF_PROGRAMS = {
    "sbatch": {
        "--account", "--chdir", "--dependency", "--export", "--nodes", "--partition", "--time",
    },
    "srun": {
        "--cpus-per-task", "--environment", "--gpus-per-node", "--partition", "--time",
    },
}  # fmt: skip
# Lines of blocks with commands that begin with these are not checked: programs of the system, of a
# cluster or of a container, and the shell's own words
SYSTEM_PROGRAMS = {
    "cd", "enroot", "exit", "export", "git", "mkdir", "podman", "rm", "rsync", "tail",
}  # fmt: skip
MODULE_OF_SCRIPT = {
    "launch/alps_fp8.sbatch": "experiments.study",
    "launch/local.sh": "experiments.study",
    "extensions/sharded/alps_multinode.sbatch": "experiments.run",
}


class Parsed(Exception):
    """Ends a command when its arguments are read."""

    def __init__(self, module: str, namespace: argparse.Namespace):
        super().__init__(module)
        self.module = module
        self.namespace = namespace


def commands_of(page: Path) -> list[str]:
    """List the commands of a page: lines of blocks, and words in backticks."""
    text = re.sub(r"\\\n\s+", "", page.read_text())
    indented = re.findall(r"^ {4,}(\S.*)$", text, flags=re.MULTILINE)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    quoted = [" ".join(words.split()) for words in re.findall(r"`((?:[^`\n]|\n(?!\n))+)`", prose)]
    found = []
    for words in [*indented, *quoted]:
        match = COMMAND.fullmatch(words.strip())
        if match:
            found.append(match[1])
    return found


def unknown_lines_of(page: Path) -> list[str]:
    """List lines of blocks with commands that are neither commands nor output."""
    text = re.sub(r"\\\n\s+", "", page.read_text())
    unknown = []
    for block in re.findall(r"(?:^ {4,}\S.*\n)+", text, flags=re.MULTILINE):
        lines = [line.strip() for line in block.splitlines()]
        if not any(COMMAND.fullmatch(line) for line in lines):
            continue
        if any(line.startswith("$ ") for line in lines):
            lines = [line for line in lines if line.startswith("$ ")]
        for line in lines:
            program = line.removeprefix("$ ").split()[0]
            if not COMMAND.fullmatch(line) and program not in SYSTEM_PROGRAMS:
                unknown.append(line)
    return unknown


def is_of_missing_extension(command: str) -> bool:
    names = re.findall(r"extensions[./](\w+)", command)
    return any(not (ROOT / "extensions" / name).exists() for name in names)


def split(command: str) -> list[str]:
    """Split a command as a shell does, without variables before it, comments and placeholders."""
    words = shlex.split(command, comments=True)
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    words = [PLACEHOLDERS.get(word, word) for word in words]
    return [word.rstrip("…") for word in words if word.strip("….[]")]


def check(words: list[str]) -> None:
    """Check a command, or the command within it. Raises AssertionError and InputError."""
    program, *arguments = words
    if program == "timeout":
        check(words[words.index("600") + 1 :])
    elif program in OPTIONS_OF_PROGRAMS:
        while arguments and arguments[0].startswith("-"):
            option = arguments.pop(0).partition("=")[0]
            assert option in OPTIONS_OF_PROGRAMS[program], option
        if arguments:
            check(arguments if program == "srun" else ["bash", *arguments])
    elif program == "make":
        check_make(arguments)
    elif program == "bash":
        check_script(*arguments)
    elif program.startswith("launch/"):
        check_script(program, *arguments)
    elif arguments:
        option, module, *arguments = arguments
        assert option == "-m"
        check_module(module, arguments)


def check_make(arguments: list[str]) -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    for word in arguments:
        assert word in targets or re.match(r"RUNS=|PYTHON=|GPU=", word), word


def check_script(script: str, *arguments: str) -> None:
    assert os.access(ROOT / script, os.R_OK), script
    if script in MODULE_OF_SCRIPT:
        check_module(MODULE_OF_SCRIPT[script], [*arguments])
        return
    assert script == "launch/measure_all.sh", script
    files = [ROOT / script, *ROOT.glob("extensions/*/measure.sh")]
    text = "\n".join(file.read_text() for file in files)
    parts = re.findall(r"^part (\w+) \d", text, flags=re.MULTILINE)
    for before, word in zip(["", *arguments], arguments, strict=False):
        assert before == "--gpu" or word in {*parts, "--dry-run", "--gpu"}, word


def check_module(module: str, arguments: list[str]) -> None:
    """Have a module's own parser read the arguments, then check names and keys."""
    spec = importlib.util.find_spec(module)
    assert spec and spec.origin, module
    if spec.submodule_search_locations:
        spec = importlib.util.find_spec(f"{module}.__main__")
        assert spec and spec.origin, module
    if not arguments or "CommandLine(" not in Path(spec.origin).read_text():
        return  # without arguments a document names a command; another project has its own parser
    try:
        importlib.import_module(spec.name).main(arguments)
    except Parsed as parsed:
        check_names(parsed.module, parsed.namespace)


def check_names(module: str, args) -> None:
    """Check recipes, studies, overlays and keys, as a dry run does."""
    names = [word for word in getattr(args, "names", []) or [] if "=" not in word]
    overrides = getattr(args, "overrides", None)
    if module == "experiments.study":
        overrides = [word for word in args.names if "=" in word]
        is_folder = any(re.match(r"runs/|DIR$", word) for word in names)
        planned = study.load_study_plan(["four_way"] if is_folder else names or ["four_way"])
        recipes.load_recipes(planned.recipes, args.overlay, planned.overrides + overrides)
    elif module in ("experiments.run", "experiments.recipe", "experiments.data") and args.name:
        is_folder = re.search(r"runs/|DIR$|recipe\.yaml$", args.name)
        recipes.load("baseline" if is_folder else args.name, args.overlay, overrides)
    elif module == "extensions.sweep" and not args.name.startswith("runs/"):
        load = importlib.import_module("extensions.sweep.cells").load_sweep
        load(args.name).override(overrides)
    elif module == "tools.notebooks":
        notebooks = importlib.import_module("analysis.notebook_index").NOTEBOOKS
        assert {*names} <= notebooks.keys()


@pytest.fixture
def only_parsing(monkeypatch):
    """Each command ends when its arguments are read."""
    parse = CommandLine.parse_arguments

    def parse_only(self, argv):
        raise Parsed(self.prog.removeprefix("python -m "), parse(self, argv))

    monkeypatch.setattr(CommandLine, "parse_arguments", parse_only)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_of_a_page(page, only_parsing):
    for command in commands_of(page):
        if is_of_missing_extension(command) or any(words in command for words in NOT_CHECKED):
            continue
        try:
            check(split(command))
        except (AssertionError, InputError, ValueError) as error:
            pytest.fail(f"{page.relative_to(ROOT)}: {command}: {error}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_line_of_a_block_of_commands_is_left_out(page):
    assert unknown_lines_of(page) == []


def test_what_is_not_checked_is_in_a_page():
    commands = [command for page in PAGES for command in commands_of(page)]
    for words in NOT_CHECKED:
        assert any(words in command for command in commands), words


@pytest.mark.parametrize(
    "command",
    [
        ".venv/bin/python -m experiments.gone",
        ".venv/bin/python -m experiments.run baseline --sead 1",
        ".venv/bin/python -m experiments.run baselin",
        ".venv/bin/python -m experiments.study four_way --overlay gone",
        ".venv/bin/python -m experiments.study four_way training.stepps=3",
        "sbatch --tyme=1 launch/alps_fp8.sbatch",
        "sbatch launch/alps_fp8.sbatch --sead 3",
        "make gone",
        "launch/measure_all.sh gone",
    ],
)
def test_a_wrong_command_is_found(command, only_parsing):
    with pytest.raises((AssertionError, InputError)):
        check(split(command))
