"""Delete each extension's folder in turn, in a copy of the project, and use what is left.

    python -m tests.config.deleted key.path=value …    # in the copy; keys of the runs

Each time is a process of its own, forked from one that has imported what takes seconds and knows no
extension.
"""

# ruff: noqa: F401
import gc
import os
import sys
from pathlib import Path

import datasets
import hypothesis
import jupytext
import matplotlib.pyplot
import pytest
import scipy.stats

from models import device  # torch and torchtitan


def use_what_is_left() -> int:
    """List and resolve recipes and studies, train the four, collect the tests; returns pytest's
    exit code."""
    from experiments import recipe, run, study
    from experiments.config import recipes

    recipe.main(["list", "--all"])
    for name in recipes.yaml_files(recipes.RECIPES):
        recipes.load(name, ["cpu"])
    for path in recipes.yaml_files(recipes.STUDIES).values():
        study.read(path)
    for name in recipes.THE_FOUR:
        assert not run.main([name, "--overlay", "cpu", *sys.argv[1:]])
    return pytest.main(["--collect-only", "-p", "no:cacheprovider"])


if __name__ == "__main__":
    assert Path("models/device.py").samefile(device.__file__)
    gc.freeze()  # so that no child looks at what is imported here
    for package in [*Path("extensions").glob("*/__init__.py")]:
        deleted = package.parent.rename("deleted")
        child = os.fork()
        if not child:
            os._exit(use_what_is_left())
        assert not os.waitpid(child, 0)[1], package
        deleted.rename(package.parent)
