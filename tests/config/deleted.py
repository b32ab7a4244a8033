"""Delete each extension's folder in turn, then all, in a copy of the project; use what is left.

    python -m tests.config.deleted key.path=value …    # in the copy; keys of the runs

Each time is a process of its own, forked from one that has imported what takes seconds and knows no
extension. That no extension imports another is a test of tests/test_imports.py.
"""

# ruff: noqa: F401
import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path

import datasets
import hypothesis
import jupytext
import matplotlib.pyplot
import pytest
import scipy.stats

from models import device  # torch and torchtitan


def resolve_what_is_left() -> None:
    """List and resolve recipes and studies, and train one of the four."""
    from experiments import recipe, study
    from experiments.config import recipes

    recipe.main(["list", "--all"])
    for name in recipes.yaml_files(recipes.RECIPES):
        recipes.load(name, ["cpu"])
    for path in recipes.yaml_files(recipes.STUDIES_FOLDER).values():
        study.read_study_plan(path)
    train("tensorwise_fp8_compiled")


def use_the_core() -> None:
    """Do the same, train the other recipes, and collect the tests."""
    resolve_what_is_left()
    for name in ("baseline", "baseline_compiled", "rowwise_fp8_compiled"):
        train(name)
    assert not pytest.main(["--collect-only", "-p", "no:cacheprovider"])


def train(name: str) -> None:
    from experiments import run

    assert not run.main([name, "--overlay", "cpu", *sys.argv[1:]])


def without(packages: list[Path], use: Callable[[], None]) -> None:
    """Delete some extensions, and use what is left in a process of its own."""
    for package in packages:
        package.rename(f"deleted_{package.name}")
    child = os.fork()
    if not child:
        use()
        os._exit(0)
    assert not os.waitpid(child, 0)[1], packages
    for package in packages:
        Path(f"deleted_{package.name}").rename(package)


if __name__ == "__main__":
    assert Path("models/device.py").samefile(device.__file__)
    gc.freeze()  # so that no child looks at what is imported here
    packages = [path.parent for path in Path("extensions").glob("*/__init__.py")]
    for package in packages:
        without([package], resolve_what_is_left)
    without(packages, use_the_core)
