"""launch/install.sh: where `python3` is a virtual environment that holds torch and no package index
can be reached; which torch it asks pip for; and what it does with half an installation."""

import itertools
import os
import shutil
import sys
from glob import glob
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from models import device, errors
from tests import processes

INSTALL = "launch/install.sh"
PACKAGES = [Path(folder) for folder in sys.path if folder.endswith("-packages")]


def pretend(packages: Path, name: str, version: str) -> None:
    """Have a folder of packages say that one is there in this version."""
    folder = packages / f"{name}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "RECORD").touch()


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


@pytest.mark.slow
def test_a_torch_of_an_image_is_kept_in_silence_however_new_it_is(install, tmp_path):
    version = "2.16.0a0+nv26.12"
    done = install(torch=version)
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
    assert f"keeping this Python's torch {version}" in done.stdout
    assert len(done.stdout.splitlines()) == 2
    venv = tmp_path / "venv"
    assert f"torch=={version}" in (venv / "keep-torch.txt").read_text()
    # from any folder: a notebook's is its own
    which = "import analysis, importlib.util; print(importlib.util.find_spec('torch').origin)"
    torch = processes.run([venv / "bin/python", "-c", which], cwd=tmp_path).stdout
    assert torch.startswith(str(tmp_path / "image"))
    again = processes.run([INSTALL, venv], env=os.environ | {"PYTHON": venv / "bin/python"})
    assert "which is activated" in again.stdout


def command_for(file: str, venv: Path) -> str:
    """What gets that file's packages."""
    return f"{venv}/bin/python -m pip install -r {file}"


@pytest.mark.slow
def test_an_older_torch_is_named_and_not_kept(install, tmp_path):
    """The environment needs one of its own, which no index has here."""
    done = install(torch="2.10.0a0+nv25.10")
    venv = tmp_path / "venv"
    assert "torch 2.10.0a0+nv25.10 is older than 2.11" in done.stdout
    assert done.returncode == 2 and not (venv / "keep-torch.txt").exists()
    assert not (venv / "installed").exists()
    [sentence] = [line for line in done.stderr.splitlines() if "error: missing: torch" in line]
    assert "torchtitan" in sentence and command_for("requirements.txt", venv) in sentence


@pytest.mark.slow
def test_missing_tools_are_named_and_a_study_needs_none(install, tmp_path):
    venv = tmp_path / "venv"
    assert install("pytest_timeout", "jupytext").returncode == 0 and (venv / "installed").exists()
    file = "requirements-tools.txt"
    said = processes.run([venv / "bin/python", "launch/missing.py", file], check=False).stdout
    assert "pytest-timeout" in said and "jupytext" in said and command_for(file, venv) in said


@pytest.mark.slow
def test_a_new_environment_on_a_gpu_gets_a_torch_that_was_tried(tmp_path, program):
    """And a newer one that somebody has put into the environment stays."""
    program("nvidia-smi", "echo 580.65.06")
    program("uv", f'echo "$*" >>{tmp_path}/asked')
    environment = os.environ | {"GPU": ""}  # which a CI may have set
    python, venv = tmp_path / "image/bin/python", tmp_path / "venv"
    processes.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "image"])
    processes.run([INSTALL, venv], env=environment | {"PYTHON": python})
    [packages] = venv.glob("lib/python*/site-packages")
    pretend(packages, "torch", "2.16.0")
    processes.run([INSTALL, venv], env=environment | {"PYTHON": venv / "bin/python"})
    new, again = (tmp_path / "asked").read_text().splitlines()
    assert "-c constraints.txt" in new and "constraints.txt" not in again

    lines = (processes.ROOT / "constraints.txt").read_text().splitlines()
    [torch] = [Requirement(line).specifier for line in lines if line.startswith("torch")]
    major, minor = device.NEWEST_TORCH
    assert torch.contains(f"{major}.{minor}.1") and not torch.contains(f"{major}.{minor + 1}.0")


# ---- which torch, by pip's arguments ----

CPU, NEWEST = "constraints-cpu.txt", None
CU126, CU128 = "torch==2.13.0+cu126", "torch==2.11.0+cu128"
NO_DEVICES = "No devices were found"
# A Python without packages. Its pip writes down its arguments; its module venv copies this file.
PYTHON = """
for last; do :; done
case "$1 $2" in
  "-m venv") [ -z "$STOP" ] || { mkdir "$last"; echo Traceback >&2; kill -INT 0; exit 130; }
    mkdir -p "$last/bin" "$last/lib/python3.11/site-packages"; cp "$0" "$last/bin/python";;
  "-m pip") echo "$*" >>pip.txt; exit ${PIP-0} ;;
  "-m experiments.recipe") echo "{"; exit ${SCHEMA-0} ;;
  -c*urlopen*) exit ${INDEX-0} ;;
  *) exec %s -S "$@" ;;
esac
"""
# Answers as nvidia-smi does: a line for each GPU, of the field that is asked for.
NVIDIA_SMI = """
case "$*" in
  *driver_version*) printf '%s\\n' "$DRIVER" ;;
  *compute_cap*) printf '%s\\n' "$CAPABILITY" ;;
  *name*) printf '%s\\n' "$NAME" ;;
  *) printf '%s\\n' "$LIST" ;;
esac
exit ${CODE-0}
"""


@pytest.fixture
def project(tmp_path, program, monkeypatch):
    """Installs into the .venv of a copy of what an installation reads; returns its end."""
    folder = tmp_path / "project"
    for name in ("Makefile", "launch", *(path.name for path in processes.ROOT.glob("*.txt"))):
        copy = shutil.copytree if (processes.ROOT / name).is_dir() else shutil.copy
        folder.mkdir(exist_ok=True)
        copy(processes.ROOT / name, folder / name)
    (folder / "recipes").mkdir()
    program("python-without-packages", PYTHON % sys.executable)
    program("uv", "exit 1")
    for name in ("GPU", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHON", str(tmp_path / "python-without-packages"))

    def call(command: str = "launch/install.sh", **variables: str):
        environment = os.environ | variables
        return processes.run(command.split(), check=False, cwd=folder, env=environment)

    call.folder = folder
    return call


def pip_of(project) -> str:
    """The arguments that pip was given; none if it was not started."""
    file = project.folder / "pip.txt"
    return file.read_text() if file.exists() else ""


@pytest.mark.parametrize(
    ("driver", "capability", "torch"),
    [
        ("535.104.05", "9.0", CU126),
        ("550.54.15\n550.54.15", "8.0\n8.9", CU126),
        ("570.86.10", "10.0", CU128),
        ("575.51.03", "12.0", CU128),
        ("570.86.10\n570.86.10", "9.0\n12.0", CU128),  # two kinds of GPUs
        ("580.65.06", "9.0", NEWEST),
        ("590.44.01", "10.3", NEWEST),
        ("580.65.06", "7.0", CU126),  # CUDA 13 has no kernels for a V100
        ("580.65.06\n580.65.06", "7.0\n12.0", NEWEST),
        ("[N/A]", "[N/A]", NEWEST),
    ],
)
def test_torch_is_for_the_gpus_driver(project, program, driver, capability, torch):
    program("nvidia-smi", NVIDIA_SMI)
    gpus = {"DRIVER": driver, "CAPABILITY": capability, "LIST": "GPU 0: NVIDIA H100 (UUID: GPU-1)"}
    done = project(**gpus)
    assert done.returncode == 0, done.stdout + done.stderr
    pip = pip_of(project)
    assert CPU not in pip and ("torch==" in pip) == bool(torch)
    if torch:
        assert torch in pip and f"/whl/{torch.partition('+')[2]} " in pip
        assert torch.replace("==", " ") in done.stdout


@pytest.mark.parametrize(("name", "torch"), [("NVIDIA B200", CU128), ("NVIDIA H100 PCIe", CU126)])
def test_an_nvidia_smi_without_capabilities_has_names(project, program, name, torch):
    program("nvidia-smi", NVIDIA_SMI)
    refusal = 'Field "compute_cap" is not a valid field to query.'
    project(DRIVER="570.86.10", CAPABILITY=refusal, NAME=name)
    assert torch in pip_of(project)


def test_a_driver_that_is_too_old_for_any_torch_downloads_nothing(project, program):
    program("nvidia-smi", NVIDIA_SMI)
    done = project(DRIVER="470.82.01", CAPABILITY="8.0")
    assert done.returncode == 2 and not pip_of(project)
    assert "470.82.01" in done.stderr and "GPU=0 make install" in done.stderr


def test_without_pytorchs_index_nothing_for_another_driver_is_taken(project, program):
    program("nvidia-smi", NVIDIA_SMI)
    old = {"DRIVER": "550.54.15", "CAPABILITY": "9.0", "INDEX": "1"}
    assert project(**old).returncode == 0  # a mirror may have it
    assert CU126 in pip_of(project) and "index-url" not in pip_of(project)
    done = project(**old, PIP="1")
    assert done.returncode == 2 and "PIP_EXTRA_INDEX_URL" in done.stderr
    assert "requirements.txt" not in done.stderr.splitlines()[-1]  # whose torch is not for it


@pytest.mark.skipif(bool(glob("/dev/nvidia[0-9]*")), reason="a GPU is here")
@pytest.mark.parametrize(
    ("variables", "has_sbatch", "torch"),
    [
        ({"DRIVER": NO_DEVICES, "LIST": NO_DEVICES}, False, CPU),
        ({"DRIVER": "", "LIST": "", "CODE": "9"}, False, CPU),
        ({"DRIVER": "", "LIST": "GPU 0: NVIDIA H100 (UUID: GPU-1)"}, False, NEWEST),
        ({"DRIVER": "590.44.01", "GPU": "0"}, False, CPU),
        ({"DRIVER": ""}, True, NEWEST),  # a login node
        ({"DRIVER": "", "GPU": "0"}, True, CPU),
        ({"DRIVER": "", "GPU": "1"}, False, NEWEST),
    ],
)
def test_where_there_is_no_gpu(project, program, monkeypatch, variables, has_sbatch, torch):
    program("nvidia-smi", NVIDIA_SMI)
    if has_sbatch:
        program("sbatch", "")
    else:  # not that of this machine, which tests start jobs with
        folders = os.environ["PATH"].split(os.pathsep)
        monkeypatch.setenv("PATH", os.pathsep.join(without("sbatch", folders, project.folder)))
    done = project(**{"CAPABILITY": "", "NAME": "", "LIST": ""} | variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (CPU in pip_of(project)) == (torch == CPU)
    assert ("GPU=0" in done.stdout) == (has_sbatch and "GPU" not in variables)
    assert "GPU=2" in project(GPU="2").stderr


def without(name: str, folders: list[str], place: Path) -> list[str]:
    """Replace each folder that has a program by one that links to its other programs."""
    replaced = []
    for number, folder in enumerate(map(Path, folders)):
        if (folder / name).exists():
            links = place / f"bin{number}"
            links.mkdir()
            for program in folder.iterdir():
                if program.name != name:
                    (links / program.name).symlink_to(program)
            folder = links
        replaced.append(str(folder))
    return replaced


# ---- the repository's path ----


@pytest.mark.parametrize("name", ["my project", "anna's", "project_2"])
def test_a_moved_repository_runs_the_code_of_its_new_path(project, name):
    """And a path in which torch cannot compile is told."""
    assert "warning" not in project("make install", GPU="0").stderr
    project.folder = project.folder.rename(project.folder.with_name(name))
    folder = project.folder
    processes.run(["make", "help"], cwd=folder)
    [code] = folder.glob(".venv/lib/*/site-packages/project.pth")
    assert code.read_text() == f"{folder}\n"
    processes.run(["touch", "requirements.txt"], cwd=folder)
    done = processes.run(["make", "install"], cwd=folder, env=os.environ | {"GPU": "0"})
    assert ("cannot compile" in done.stderr) == (name != "project_2")


# ---- what is half there ----


def test_an_installation_whose_last_step_fails_is_made_again(project):
    environment = {"GPU": "0"}
    schema, installed = project.folder / "recipes/schema.json", project.folder / ".venv/installed"
    done = project("make install", SCHEMA="1", **environment)
    assert done.returncode == 2 and "rm -r .venv" in done.stderr
    assert not installed.exists() and not [*schema.parent.iterdir()]
    assert project("make install", **environment).returncode == 0
    assert schema.read_text() == "{\n" and installed.exists()
    again = project("make install", **environment)
    assert "Nothing to be done" in again.stdout


def test_an_installation_that_ctrl_c_stops_leaves_nothing_half_made(project):
    environment = {"GPU": "0"}
    done = project("make install", STOP="yes", **environment)
    assert done.returncode and "Traceback" not in done.stderr and "make install" in done.stderr
    assert not (project.folder / ".venv").exists()
    assert project("make install", **environment).returncode == 0


@pytest.mark.parametrize(("index", "is_named"), [("0", True), ("1", False)])
def test_the_origin_of_torch_is_told(project, index, is_named):
    done = project(GPU="0", INDEX=index)
    assert ("does not answer" in done.stdout) != is_named
    assert ("--extra-index-url" in pip_of(project)) == is_named


@pytest.mark.parametrize("lost", ["torch/nn/__init__.py", "torch-2.dist-info/RECORD", "python"])
def test_an_environment_that_lost_files_is_not_taken_for_whole(project, lost):
    """As on a scratch file system whose old files are deleted, and whose folders stay."""
    assert project("make install", GPU="0").returncode == 0
    venv = project.folder / ".venv"
    [packages] = venv.glob("lib/*/site-packages")
    for name in ("torch/nn/__init__.py", "torch/nn/__pycache__/x.pyc", "torch-2.dist-info/x"):
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).touch()
    record = packages / "torch-2.dist-info/RECORD"
    record.write_text('"torch/nn/__init__.py",,\ntorch/nn/y.pyc,,\n../../../bin/torchrun,,\n')
    (venv / "installed").unlink()
    assert project("make install", GPU="0").returncode == 0
    (venv / "installed").unlink()
    if lost == "python":
        (venv / "bin/python").unlink()
        (venv / "bin/python").symlink_to("/nowhere/python3")
    else:
        (packages / lost).unlink()
    before = pip_of(project)
    done = project("make install", GPU="0")
    assert done.returncode == 2 and "rm -r .venv && make install" in done.stderr
    assert lost in done.stderr and pip_of(project) == before


@pytest.mark.parametrize("damage", ["none", "torch", "everything", "python"])
def test_a_step_says_what_to_do_with_an_environment_that_is_half_there(project, damage):
    """`everything`: folders and links stay, also those of the interpreter."""
    (project.folder / "experiments").mkdir()
    (project.folder / "experiments/study.py").write_text("import pydantic\n")
    processes.run([sys.executable, "-m", "venv", "--without-pip", project.folder / ".venv"])
    [packages] = project.folder.glob(".venv/lib/python3*/site-packages")
    for name in ("torch", "torchao", "torchtitan", "pydantic"):
        (packages / name).mkdir()
        (packages / name / "__init__.py").touch()
    for path in [*(project.folder / ".venv").rglob("*"), project.folder / ".venv/bin/python"]:
        is_kept = path.is_symlink() or path.is_dir() or damage != "everything"
        if not is_kept or path.parent.name == damage or path.match(f"bin/{damage}"):
            path.unlink(missing_ok=True)
    done = project("launch/step.sh experiments.study", PYTHON="")
    assert done.returncode == (0 if damage == "none" else 2), done.stdout + done.stderr
    assert ("`rm -r .venv && make install`" in done.stderr) == (damage != "none")


def test_a_package_that_lost_a_module_is_told_in_a_sentence(fails, tmp_path, monkeypatch):
    def lacks(arguments: list[str]):
        [name] = arguments
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(errors, "VENV_FOLDER", tmp_path)
    assert "rm -r .venv && make install" in fails(lacks, "torch._inductor.lowering")
    (tmp_path / "installed").touch()  # a whole environment, and another Python
    sentence = fails(lacks, "torch")
    assert f"{tmp_path}/bin/python" in sentence and "rm -r" not in sentence
    with pytest.raises(ModuleNotFoundError):  # a fault of the project
        fails(lacks, "experiments.typo")
