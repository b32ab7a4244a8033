"""launch/install.sh where `python3` is a virtual environment that holds torch and no package index
can be reached."""

import os
import sys
from pathlib import Path

import pytest

from tests import processes

pytestmark = pytest.mark.slow

PACKAGES = [Path(folder) for folder in sys.path if folder.endswith("-packages")]
WHICH = "import pytest, torch, torchtitan; print(torch.__file__)"


@pytest.fixture
def install(tmp_path):
    """Installs from a virtual environment that has these packages, without an index; returns how
    that ended."""

    def call(*lacking: str):
        image = tmp_path / "image"
        processes.run([sys.executable, "-m", "venv", "--without-pip", image])
        there = next(image.glob("lib/python*/site-packages"))
        for entry in (entry for folder in PACKAGES for entry in folder.iterdir()):
            if not (
                entry.name.lower().startswith(lacking)
                or entry.suffix == ".pth"
                or (there / entry.name).exists()
            ):
                (there / entry.name).symlink_to(entry)
        offline = {
            "PIP_NO_INDEX": "1",
            "PIP_CONFIG_FILE": "/dev/null",
            "PYTHON": str(image / "bin/python"),
        }
        return processes.run(
            ["launch/install.sh", tmp_path / "venv"], check=False, env=os.environ | offline
        )

    return call


def test_its_torch_and_all_it_has_are_kept(install, tmp_path):
    done = install()
    assert done.returncode == 0 and "keeping this Python's torch 2." in done.stdout, (
        done.stdout + done.stderr
    )
    assert "missing" not in done.stdout
    which = processes.run([tmp_path / "venv/bin/python", "-c", WHICH]).stdout.strip()
    assert Path(which).is_relative_to(tmp_path / "image")
    python = str(tmp_path / "venv/bin/python")
    again = processes.run(
        ["launch/install.sh", tmp_path / "venv"], env=os.environ | {"PYTHON": python}
    )
    assert "which is activated" in again.stdout
    # in no time: it imported before
    where = "from importlib.util import find_spec; print(find_spec('torch').origin)"
    assert processes.run([python, "-c", where]).stdout.strip() == which


def test_what_is_missing_is_named_with_the_command_that_gets_it(install, tmp_path):
    done = install("torchtitan", "tokenizers")
    assert done.returncode == 2 and not (tmp_path / "venv/installed").exists()
    sentence = done.stderr.splitlines()[-1]
    assert sentence.startswith(
        "error: missing: torchtitan==0.2.2, tokenizers; where a package index can be reached: "
    )
    assert sentence.endswith(f"{tmp_path}/venv/bin/python -m pip install -r requirements.txt")


def test_a_study_needs_no_tools(install, tmp_path):
    done = install("pytest_timeout", "jupytext")
    assert done.returncode == 0 and "enough for a study" in done.stdout, done.stdout + done.stderr
    assert (tmp_path / "venv/installed").exists()
    tools = processes.run(
        [tmp_path / "venv/bin/python", "launch/missing.py", "requirements-tools.txt"], check=False
    )
    assert tools.returncode == 2 and tools.stdout.startswith(
        "missing: jupytext, pytest-timeout; where a package index"
    )
