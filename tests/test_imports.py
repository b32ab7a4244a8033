"""Imports go down only, room by room; and a command imports what it needs and no more."""

import ast
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests import processes
from tests.processes import ROOT

# A room is a folder. What each may import besides itself; a file directly in experiments/ is a
# command and may use all.
ROOMS = {
    "models": set(),
    "experiments/config": {"models"},
    "experiments/records": set(),
    "experiments/jobs": {"models", "experiments/records"},
    "experiments/corpus": {"models", "experiments/config", "experiments/jobs"},
    "experiments/training": {
        "models",
        "experiments/records",
        "experiments/config",
        "experiments/corpus",
        "experiments/jobs",
    },
    "experiments/profiling": {
        "models",
        "experiments/records",
        "experiments/config",
        "experiments/jobs",
        "experiments/training",
    },
    "analysis": {"models/flops", "models/gpus", "experiments/records"},
}
COMMANDS = {path.stem for path in ROOT.glob("experiments/[a-z]*.py")}
FOR_ANALYSIS = {"pandas", "scipy", "matplotlib"}


def imports_of(path: Path) -> set[str]:
    """What of this project a file imports, as paths without their ending."""
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{a.name}" for a in node.names]
        imported |= {
            name.replace(".", "/")
            for name in names
            if name.split(".")[0] in ("experiments", "models", "analysis")
        }
    return imported


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_from_rooms_below(room):
    for path in (ROOT / room).rglob("*.py"):
        for name in imports_of(path):
            allowed = any(
                name == below or name.startswith(f"{below}/") for below in {room, *ROOMS[room]}
            )
            assert allowed, f"{path.relative_to(ROOT)} imports {name}"


def test_no_file_imports_itself_by_way_of_others():
    files = [
        path
        for room in ("models", "experiments", "analysis")
        for path in (ROOT / room).rglob("*.py")
    ]
    modules = {
        str(path.relative_to(ROOT).with_suffix("")).removesuffix("/__init__"): path
        for path in files
    }
    graph = {
        module: {name if name in modules else str(Path(name).parent) for name in imports_of(path)}
        & modules.keys()
        for module, path in modules.items()
    }
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_no_command_imports_another(command):
    names = imports_of(ROOT / f"experiments/{command}.py")
    assert COMMANDS.isdisjoint(
        name.split("/")[1] for name in names if name.startswith("experiments/")
    )


def imported_with(module: str, then: str = "") -> set[str]:
    """Names of all modules that importing one imports, and of their packages; `then` is run
    afterwards."""
    line = f"import sys, {module}; print(*sys.modules, *{{name.split('.')[0] for name in sys.modules}}); {then}"
    return set(processes.run([sys.executable, "-c", line]).stdout.split())


@pytest.mark.parametrize(
    ("module", "needless"),
    [
        ("experiments.run", FOR_ANALYSIS | {"torch", "torchtitan", "pyarrow", "datasets"}),
        ("experiments.study", {"torch", "torchtitan", "datasets"}),
        ("analysis.report", {"torch", "torchtitan", "datasets"}),
    ],
)
def test_what_is_not_imported(module, needless):
    assert needless.isdisjoint(imported_with(module))


def test_training_imports_no_loaders_and_no_kernels_but_torchtitans_loaders_can_be():
    others = FOR_ANALYSIS | {"datasets", "huggingface_hub", "torchvision", "transformers"}
    kernels = {"models.adamw_kernels", "models.fp8_cast_kernel"}
    loaders = "from torchtitan.hf_datasets.text_datasets import build_text_dataloader as build; build.__name__"
    assert (others | kernels).isdisjoint(imported_with("experiments.training.trainer", loaders))
