"""Imports go down only, room by room; and a command imports what it needs and no more."""

import ast
import re
import sys
from pathlib import Path

import pytest

from tests import processes
from tests.processes import ROOT

# What a room, which is a folder, may import besides itself. Commands → rooms → models, and records
# between the two halves: training writes with them, analysis reads with them. A file directly in
# experiments/ is a command and may use all.
BELOW_TRAINING = ["models", "experiments/records", "experiments/config", "experiments/jobs"]
ROOMS = {
    "models": [],
    "experiments/records": ["models/errors"],
    "experiments/config": ["models", "experiments/records"],
    "experiments/jobs": ["models", "experiments/records", "experiments/config"],
    "experiments/corpus": ["models", "experiments/records", "experiments/config"],
    "experiments/training": [*BELOW_TRAINING, "experiments/corpus"],
    # None of these needs torch.
    "analysis": [
        "experiments/config/recipes",
        "experiments/config/yaml_with_origins",
        "experiments/records",
        "experiments/jobs/command",
        "models/errors",
        "models/flops",
        "models/gpus",
        "models/scaling",
    ],
    "tools": ["models", "experiments", "analysis"],
}
OURS = ("experiments.", "models.", "analysis.", "extensions.", "tools.", "tests.")
CORE = ("models", "experiments", "analysis", "launch")
EXTENSIONS = sorted(path.parent.name for path in ROOT.glob("extensions/*/__init__.py"))
COMMANDS = [f"experiments/{path.stem}" for path in sorted(ROOT.glob("experiments/[a-z]*.py"))]
ROOMS |= dict.fromkeys(COMMANDS, list(ROOMS))  # a command uses all rooms, and no other command
FOLDERS = [*dict.fromkeys(room.split("/")[0] for room in ROOMS)]
# Tools use the core, which does not import them. One measures the analysis on studies of the tests.
ROOMS["tools"] = [*FOLDERS, "tests/analysis/planted"]
ROOMS["tests"] = [*FOLDERS, "tools"]
# An extension is imported by itself alone; recipes enter one by its section.
ROOMS |= {f"extensions/{name}": [*FOLDERS, "tools"] for name in EXTENSIONS}
FOR_ANALYSIS = {"pandas", "scipy", "matplotlib"}
TRAINING = {"torch", "torchtitan", "datasets"}


def imports_of(path: Path) -> set[str]:
    """What of this project a file imports, as paths without their ending."""
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", "")
            imported |= {f"{module}.{alias.name}".lstrip(".") for alias in node.names}
    ours = [name for name in imported if name.startswith(OURS)]
    return {name.replace(".", "/") for name in ours}


@pytest.mark.parametrize("room", ROOMS)
def test_imports_go_down_only(room):
    for path in [*(ROOT / room).rglob("*.py"), *ROOT.glob(f"{room}.py")]:
        rooms = [room, *ROOMS[room]]
        if "tests" in path.parent.relative_to(ROOT).parts:
            rooms.append("tests")
        allowed = tuple(f"{below}/" for below in rooms)
        above = [name for name in imports_of(path) if not f"{name}/".startswith(allowed)]
        assert not above, path


def test_the_core_names_no_extension():
    """In code, scripts, recipes and templates; comments, docstrings and descriptions may."""
    words = r'(?m)"""(?:.|\n)*?"""|\{#(?:.|\n)*?#\}|(?<!\S)#.*|^description:.*'
    for room in [*CORE, "recipes"]:
        for path in (ROOT / room).rglob("*.*"):
            if path.suffix in (".py", ".sh", ".sbatch", ".j2", ".yaml"):
                code = re.sub(words, "", path.read_text())
                assert not {*re.findall(r"(?<![\w-])\w+", code)} & {*EXTENSIONS}, path


@pytest.mark.parametrize(
    ("modules", "needless"),
    [
        (
            "experiments.run, experiments.study, experiments.recipe, experiments.data",
            FOR_ANALYSIS | TRAINING | {"pyarrow"},
        ),
        ("analysis.report, tools.readme", TRAINING),
        (
            "experiments.training.trainer",
            FOR_ANALYSIS | {"datasets", "huggingface_hub", "torchvision", "transformers"},
        ),
    ],
)
def test_what_is_not_imported(modules, needless):
    imported = processes.run([sys.executable, "-c", f"import sys, {modules}; print(*sys.modules)"])
    assert needless.isdisjoint(name.split(".")[0] for name in imported.stdout.split())
