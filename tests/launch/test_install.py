"""launch/install.sh where `python3` is a virtual environment that holds torch and no package index
can be reached."""

import itertools
import os
import sys
from pathlib import Path

import pytest
from pip._vendor.packaging.requirements import Requirement

from models import device
from tests import processes

pytestmark = pytest.mark.slow

INSTALL = "launch/install.sh"
PACKAGES = [Path(folder) for folder in sys.path if folder.endswith("-packages")]


def pretend(packages: Path, name: str, version: str) -> None:
    """Have a folder of packages say that one is there in this version."""
    folder = packages / f"{name}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.fixture
def install(tmp_path):
    """Installs from a virtual environment that has these packages, without an index and with what
    NVIDIA's images pin; returns how that ended. `torch`: the version that its torch says it has."""

    def call(*lacking: str, torch: str | None = None):
        image, pinned = tmp_path / "image", tmp_path / "constraint.txt"
        processes.run([sys.executable, "-m", "venv", "--without-pip", image])
        [there] = image.glob("lib/python*/site-packages")
        for entry in itertools.chain.from_iterable(map(Path.iterdir, PACKAGES)):
            wanted = entry.suffix != ".pth" and not entry.name.lower().startswith(lacking)
            if wanted and not (there / entry.name).exists():
                (there / entry.name).symlink_to(entry)
        if torch:
            next(there.glob("torch-*.dist-info")).unlink()
            pretend(there, "torch", torch)
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


def test_a_torch_of_an_image_is_kept_however_new_it_is(install, tmp_path):
    version = "2.16.0a0+nv26.12"
    done = install(torch=version)
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
    assert f"keeping this Python's torch {version}" in done.stdout
    assert f"torch=={version}" in (tmp_path / "venv/keep-torch.txt").read_text()


def test_an_older_torch_is_named_and_not_kept(install, tmp_path):
    """The environment needs one of its own, which no index has here."""
    done = install(torch="2.10.0a0+nv25.10")
    assert "torch 2.10.0a0+nv25.10 is older than 2.11" in done.stdout
    assert done.returncode == 2 and not (tmp_path / "venv/keep-torch.txt").exists()


def test_a_new_environment_on_a_gpu_gets_a_torch_that_was_tried(tmp_path, program):
    """And a newer one that somebody has put into the environment stays."""
    program("nvidia-smi", "echo 580.65.06")
    program("uv", f'echo "$*" >>{tmp_path}/asked')
    python, venv = tmp_path / "image/bin/python", tmp_path / "venv"
    processes.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "image"])
    processes.run([INSTALL, venv], env=os.environ | {"PYTHON": python})
    [packages] = venv.glob("lib/python*/site-packages")
    pretend(packages, "torch", "2.16.0")
    processes.run([INSTALL, venv], env=os.environ | {"PYTHON": venv / "bin/python"})
    new, again = (tmp_path / "asked").read_text().splitlines()
    assert "-c constraints.txt" in new and "constraints.txt" not in again

    lines = (processes.ROOT / "constraints.txt").read_text().splitlines()
    [torch] = [Requirement(line).specifier for line in lines if line.startswith("torch")]
    major, minor = device.NEWEST
    assert torch.contains(f"{major}.{minor}.1") and not torch.contains(f"{major}.{minor + 1}.0")


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
