"""launch/install.sh where `python3` is a virtual environment that holds torch and no package index
can be reached."""

import itertools
import os
import sys
from pathlib import Path

import pytest

from tests import processes

pytestmark = pytest.mark.slow

INSTALL = "launch/install.sh"
PACKAGES = [Path(folder) for folder in sys.path if folder.endswith("-packages")]


@pytest.fixture
def install(tmp_path):
    """Installs from a virtual environment that has these packages, without an index and with what
    NVIDIA's images pin; returns how that ended."""

    def call(*lacking: str):
        image, pinned = tmp_path / "image", tmp_path / "constraint.txt"
        processes.run([sys.executable, "-m", "venv", "--without-pip", image])
        [there] = image.glob("lib/python*/site-packages")
        for entry in itertools.chain.from_iterable(map(Path.iterdir, PACKAGES)):
            wanted = entry.suffix != ".pth" and not entry.name.lower().startswith(lacking)
            if wanted and not (there / entry.name).exists():
                (there / entry.name).symlink_to(entry)
        pinned.write_text("torchao==0.1\n")
        offline = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null", "PIP_CONSTRAINT": pinned}
        environment = os.environ | offline | {"PYTHON": image / "bin/python"}
        return processes.run([INSTALL, tmp_path / "venv"], check=False, env=environment)

    return call


def test_its_torch_and_all_it_has_are_kept_in_silence(install, tmp_path):
    done = install()
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
    assert "keeping this Python's torch 2." in done.stdout and len(done.stdout.splitlines()) == 2
    venv = tmp_path / "venv"
    # from any folder: a notebook's is its own
    which = "import analysis, importlib.util; print(importlib.util.find_spec('torch').origin)"
    torch = processes.run([venv / "bin/python", "-c", which], cwd=tmp_path).stdout
    assert torch.startswith(str(tmp_path / "image"))
    again = processes.run([INSTALL, venv], env=os.environ | {"PYTHON": venv / "bin/python"})
    assert "which is activated" in again.stdout


@pytest.mark.parametrize(
    ("lacking", "file", "code"),
    [
        (("torchtitan", "tokenizers"), "requirements.txt", 2),
        (("pytest_timeout", "jupytext"), "requirements-tools.txt", 0),  # a study needs no tools
    ],
)
def test_what_is_missing_is_named_with_the_command_that_gets_it(
    install, tmp_path, lacking, file, code
):
    venv = tmp_path / "venv"
    assert install(*lacking).returncode == code and (venv / "installed").exists() == (not code)
    said = processes.run([venv / "bin/python", "launch/missing.py", file], check=False).stdout
    assert all(name.replace("_", "-") in said for name in lacking)
    assert f"{venv}/bin/python -m pip install -r {file}" in said
