"""What a run asks of this machine before its first step: GPUs, FP8 units, what compiles, memory."""

import errno
import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch._inductor.runtime import cache_dir_utils

from experiments.config import recipes
from experiments.training import compilation, machine, visible_gpus
from experiments.training.plan import plan
from models import device, nvidia_smi
from models.errors import REINSTALL, InputError

UUIDS = ["GPU-0a1b2c3d-1111-2222-3333-444455556666", "MIG-99887766-1111-2222-3333-444455556666"]
LIST = (
    f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {UUIDS[0]})\n  MIG 1g.10gb Device 0: (UUID: {UUIDS[1]})"
)


# ---- what nvidia-smi answers ----


@pytest.mark.parametrize(
    ("answer", "values"),
    [
        ("580.65.06, [N/A], 700.00", ["580.65.06", None, "700.00"]),
        ("580.65.06, [Not Supported], ERR!", ["580.65.06", None, None]),
        ("580.65.06, 1980 MHz, Unknown Error", ["580.65.06", "1980", None]),
        ("WARNING: infoROM is corrupted\n580.65.06, 1980, nan", ["580.65.06", "1980", None]),
        ("580.65.06, 1980, 700\nMore, and, more", ["580.65.06", "1980", "700"]),
        ("No devices were found", [None] * 3),
        ("Sorry, no devices, were found", [None] * 3),
        ("580.65.06, 1980", [None] * 3),
        ("", [None] * 3),
        ("\\377\\376, \\377, 700", [None, None, "700"]),
    ],
)
def test_nvidia_smi_is_read_by_the_form_of_its_answer(answer, values, program):
    program("nvidia-smi", f"printf '{answer}\\n'")
    assert nvidia_smi.query_fields(machine.QUERIED_FIELDS, "GPU-1") == values


@pytest.mark.parametrize("line", ["echo 580.65.06, 1980, 700; exit 18", "exec sleep 60"])
def test_nvidia_smi_that_fails_or_never_answers_says_nothing(line, program, monkeypatch):
    monkeypatch.setattr(nvidia_smi, "TIMEOUT_S", 0.1)
    program("nvidia-smi", line)
    assert nvidia_smi.query_fields(machine.QUERIED_FIELDS, "GPU-1") == [None] * 3
    assert nvidia_smi.list_gpus() == []


def test_the_named_gpu_is_asked_for(program):
    program("nvidia-smi", '[ "$3" = --id=GPU-1 ] && echo "580.65.06, 1980, 700"')
    assert nvidia_smi.query_fields(machine.QUERIED_FIELDS, "GPU-1")[0] == "580.65.06"


def test_gpus_and_their_parts_are_listed_by_uuid(program):
    program("nvidia-smi", f"echo 'WARNING: GPU 1 is lost'; echo '{LIST}'")
    assert [gpu.uuid for gpu in nvidia_smi.list_gpus()] == UUIDS
    assert nvidia_smi.list_gpus()[0].name == "NVIDIA H100 80GB HBM3"


def test_a_manifest_describes_a_gpu_by_what_nvidia_smi_knows(program, monkeypatch):
    monkeypatch.setattr(device, "TYPE", "cuda")
    monkeypatch.setattr(device, "name", lambda: "NVIDIA H100")
    properties = SimpleNamespace(uuid=UUIDS[0].removeprefix("GPU-"), total_memory=2**36)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: properties)
    program("nvidia-smi", "echo '580.65.06, [N/A], 700.50'")
    hardware = machine.hardware()
    assert (hardware["driver"], hardware["sm_clock_max_mhz"]) == ("580.65.06", None)
    assert (hardware["power_limit_w"], hardware["uuid"]) == (700.5, UUIDS[0])


# ---- a GPU that torch does not see ----


@pytest.fixture
def unseen(program, tmp_path, monkeypatch):
    """A machine with GPUs that torch cannot use. Takes the number of device files and the shell
    line of nvidia-smi; gives the sentence of the refusal."""

    def call(files: int = 1, line: str = "exit 9", **variables: str) -> str:
        program("nvidia-smi", line)
        for number in range(files):
            (tmp_path / f"nvidia{number}").touch()
        monkeypatch.setattr(machine, "DEVICE_FILES", str(tmp_path / "nvidia[0-9]*"))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        for name in (
            visible_gpus.CUDA_VARIABLE,
            visible_gpus.CONTAINER_VARIABLE,
            *visible_gpus.ROCM_VARIABLES,
        ):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        try:
            machine.check_driver()
        except InputError as error:
            return str(error)
        return ""

    return call


@pytest.mark.parametrize("line", ["exit 18", "echo Failed to initialize NVML", f"echo '{LIST}'"])
def test_a_gpu_that_torch_cannot_use_is_not_passed_over(line, unseen):
    assert "driver" in unseen(1, line)


def test_a_gpu_without_a_device_file_is_known_by_nvidia_smi(unseen):
    assert "there is NVIDIA H100 80GB HBM3 here" in unseen(0, f"echo '{LIST}'")


@pytest.mark.parametrize("line", ["exit 18", "echo No devices were found"])
def test_a_sentence_of_nvidia_smi_is_no_gpu(line, unseen):
    assert unseen(0, line) == ""


@pytest.mark.parametrize("value", ["", "-1", " "])
def test_no_visible_device_asks_for_the_cpu(value, unseen):
    assert unseen(CUDA_VISIBLE_DEVICES=value) == ""


@pytest.mark.parametrize(
    "value", ["1", " 1", "5,0", "-2", "cuda:0", "all", "none", "NoDevFiles", "GPU-wrong-uuid", ",0"]
)
def test_a_variable_that_names_no_gpu_is_the_reason(value, unseen):
    message = unseen(CUDA_VISIBLE_DEVICES=value)
    assert "CUDA_VISIBLE_DEVICES=" in message.split(";")[0] and "driver" not in message


@pytest.mark.parametrize("value", ["GPU-0badf00d", "MIG-0badf00d-1111-2222-3333-444455556666"])
def test_a_uuid_that_is_not_listed_is_the_reason(value, unseen):
    assert f"CUDA_VISIBLE_DEVICES={value} names" in unseen(
        1, f"echo '{LIST}'", CUDA_VISIBLE_DEVICES=value
    )


@pytest.mark.parametrize("value", ["0", "0,5", "1,0", *(uuid[:12] for uuid in UUIDS)])
def test_a_variable_that_names_a_gpu_is_not_the_reason(value, unseen):
    assert REINSTALL in unseen(2, f"echo '{LIST}'", CUDA_VISIBLE_DEVICES=value)


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"])
def test_a_variable_that_may_be_the_reason_is_named_after_the_driver(name, unseen):
    message = unseen(**{name: "0"})
    assert message.index(REINSTALL) < message.index(f"look whether {name}=0 names a GPU")


def test_a_gpu_named_twice_is_the_reason(unseen):
    assert "names a GPU twice" in unseen(2, CUDA_VISIBLE_DEVICES="1,0,1")


@pytest.mark.parametrize(("value", "seen", "warns"), [("0,5", 1, True), ("0,1,", 2, False)])
def test_gpus_that_cuda_ignores_are_told(value, seen, warns, monkeypatch, caplog):
    monkeypatch.setenv(visible_gpus.CUDA_VARIABLE, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
    visible_gpus.warn_of_ignored_gpus.cache_clear()
    machine.check_driver()
    machine.check_driver()
    assert caplog.text.count(f"CUDA_VISIBLE_DEVICES={value}") == warns


@pytest.mark.parametrize("value", ["void", "none"])
def test_a_container_without_its_gpus_is_told(value, unseen):
    assert f"NVIDIA_VISIBLE_DEVICES={value}" in unseen(NVIDIA_VISIBLE_DEVICES=value)


# ---- FP8 units ----


@pytest.mark.parametrize(
    ("name", "capability", "has_fp8"),
    [
        ("NVIDIA A100-SXM4-80GB", (8, 0), False),
        ("NVIDIA GeForce RTX 3090", (8, 6), False),
        ("NVIDIA L4", (8, 9), True),
        ("NVIDIA H100", (9, 0), True),
        ("NVIDIA GeForce RTX 5090", (12, 0), True),
        ("AMD Instinct MI100", (9, 0), False),
        ("AMD Instinct MI250X", (9, 0), False),
        ("AMD Instinct MI300X", (9, 4), True),
        ("AMD Instinct MI355X", (9, 5), True),
        ("AMD Radeon PRO W6800", (10, 3), False),
        ("AMD Radeon RX 7900 XTX", (11, 0), False),
        ("AMD Radeon RX 9070 XT", (12, 0), True),
    ],
)
def test_gpus_without_fp8_units_are_refused(name, capability, has_fp8, monkeypatch):
    monkeypatch.setattr(device, "TYPE", "cuda")
    monkeypatch.setattr(device, "name", lambda: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(machine, "check_compilation", Mock())
    planned = plan(recipes.load("tensorwise_fp8_compiled", ["cpu"]))
    fp8 = SimpleNamespace(layers=["output"], emulated=False)
    planned = SimpleNamespace(config=planned.config, fp8=fp8)
    if has_fp8:
        machine.check_units(planned)
    else:
        with pytest.raises(InputError, match="no FP8 units"):
            machine.check_units(planned)


# ---- what compiles ----


@pytest.mark.parametrize(
    ("compiler", "headers", "missing"),
    [("clang", "other.h", "python3-devel"), ("none", "Python.h", "gcc")],
)
def test_what_triton_compiles_with_is_asked_for(compiler, headers, missing, tmp_path, monkeypatch):
    (tmp_path / headers).touch()
    monkeypatch.setattr(device, "TYPE", "cuda")
    monkeypatch.setattr(shutil, "which", lambda name: name == compiler)
    monkeypatch.setattr(compilation, "get_paths", lambda scheme: {"include": tmp_path})
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(InputError, match=missing):
        machine.check_units(plan(recipes.load("baseline_compiled")))


def refuse(code: int) -> Mock:
    return Mock(side_effect=OSError(code, os.strerror(code)))


@pytest.mark.parametrize(
    ("function", "code", "reason"),
    [
        ("mmap.mmap", errno.EPERM, "noexec"),
        ("mmap.mmap", errno.EACCES, "noexec"),
        ("os.posix_fallocate", errno.ENOSPC, "no space for"),
        ("os.posix_fallocate", errno.EDQUOT, "no space for"),
        ("tempfile.TemporaryFile", errno.EROFS, "Read-only"),
        ("tempfile.TemporaryFile", errno.EACCES, "Permission denied"),
    ],
)
def test_folders_for_compiled_code_are_tried(function, code, reason, tmp_path, monkeypatch):
    """The folder need not be there yet."""
    folder = str(tmp_path / "caches/triton")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", folder)
    compilation.check_compilation()
    monkeypatch.setattr(function, refuse(code))
    with pytest.raises(InputError, match=rf"caches/triton: .*{reason}.*TORCHINDUCTOR_CACHE_DIR"):
        machine.check_units(plan(recipes.load("baseline_compiled", ["cpu"])))
    machine.check_units(plan(recipes.load("baseline", ["cpu"])))  # compiles nothing


@pytest.mark.parametrize("letter", " '\"\t\\")
def test_paths_that_the_compiler_would_split_are_refused(letter, tmp_path, monkeypatch):
    folder = str(tmp_path / f"my{letter}project")
    for variable in (*compilation.CACHE_VARIABLES, "TMPDIR"):
        with monkeypatch.context() as patch, pytest.raises(InputError, match=variable):
            patch.setenv(variable, folder)
            patch.setattr("tempfile.tempdir", None)
            Path(folder).mkdir(exist_ok=True)
            compilation.check_compilation()
    monkeypatch.setattr(torch, "__path__", [f"{folder}/.venv/torch"])
    with pytest.raises(InputError, match="move the repository"):
        machine.check_units(plan(recipes.load("baseline_compiled", ["cpu"])))
    machine.check_units(plan(recipes.load("baseline", ["cpu"])))  # compiles nothing


@pytest.mark.parametrize(("letter", "is_refused"), [(" ", False), ("'", False), ('"', True)])
def test_a_gpus_compilers_read_paths_with_spaces(letter, is_refused, tmp_path, monkeypatch):
    folder = tmp_path / f"my{letter}project"
    folder.mkdir()
    monkeypatch.setattr(device, "TYPE", "cuda")
    expectation = nullcontext()
    if is_refused:
        expectation = pytest.raises(InputError, match="quotes")
    with expectation:
        compilation.check_code_folder(folder, 2**20)


def test_a_full_folder_for_temporary_files_is_found(tmp_path, monkeypatch):
    """Python takes another one by itself, and the compiler does not."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(compilation, "CACHE_VARIABLES", ())
    monkeypatch.setattr(compilation, "_allocate", refuse(errno.ENOSPC))
    with pytest.raises(InputError, match="TMPDIR"):
        compilation.check_compilation()


def test_a_file_system_that_cannot_reserve_space_is_written_to(tmp_path, monkeypatch):
    monkeypatch.setattr("os.posix_fallocate", refuse(errno.EOPNOTSUPP))
    compilation.check_code_folder(tmp_path, 2**20, loads_code=True)


def test_a_study_compiles_where_temporary_files_are(tmp_path, monkeypatch):
    from experiments.jobs import runner

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in runner.CACHE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    cache_dir_utils.cache_dir()  # sets a variable, as an import of torch does
    assert runner.list_compile_folders() == [str(tmp_path)]
    for name in runner.CACHE_VARIABLES:
        monkeypatch.setenv(name, "/mine")
    assert runner.list_compile_folders() == ["/mine", "/mine"]
