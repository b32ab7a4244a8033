"""Where a run takes place, on record: machines and GPUs of all ranks, variables, vboost."""

from types import SimpleNamespace
from uuid import UUID

import pytest

from experiments.training import places
from models import nvidia_smi
from tests.runs import SMALLEST, TINY, attempt_of

MACHINE, GPU = UUID(int=2**100 + 7), UUID(int=2**127 + 9)
LIST = """cat <<'END'
+-------------------------------------------------+
| GPU Boost Slider                                |
| GPU     Slider       Max Value    Current Value |
|=================================================|
|   0     vboost           4              1       |
+-------------------------------------------------+
END
"""


def test_variables_that_change_code_or_speed_are_on_record_and_no_secret(monkeypatch):
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    monkeypatch.setenv("TORCH_HUB_TOKEN", "hidden")
    monkeypatch.setenv("WANDB_API_KEY", "hidden")
    variables = places.read_variables()
    assert variables["NCCL_ALGO"] == "Ring" and variables["TORCHINDUCTOR_MAX_AUTOTUNE"] == "1"
    assert "hidden" not in variables.values() and "PATH" not in variables


@pytest.mark.parametrize(
    ("gpu", "uuids"),
    [
        (GPU, [f"GPU-{UUID(int=5)}", f"GPU-{GPU}"]),
        (places.UNKNOWN_UUID, [f"GPU-{UUID(int=5)}", None]),
    ],
)
def test_each_rank_adds_its_machine_and_gpu(monkeypatch, gpu, uuids):
    """Rank 1 of two: what the other adds is in the sum."""
    ranks = SimpleNamespace(get_world_size=lambda: 2, get_rank=lambda: 1)
    monkeypatch.setattr(places, "dist", ranks)
    monkeypatch.setattr(places, "read_machine_id", lambda: MACHINE)
    monkeypatch.setattr(places, "read_gpu_id", lambda: gpu)

    def all_reduce(table):
        assert not table[0].any()
        table[0, 15] = 3
        table[0, 31] = 5
        return table

    machines, gpus = places.gather_places(all_reduce)
    assert machines == [str(UUID(int=3)), str(MACHINE)]
    assert gpus == uuids


@pytest.mark.parametrize(
    ("text", "machine"),
    [
        (f"{MACHINE}\n", MACHINE),
        ("", places.UNKNOWN_UUID),
        ("none\n", places.UNKNOWN_UUID),
    ],
)
def test_a_machine_is_its_boot_id(tmp_path, monkeypatch, text, machine):
    (tmp_path / "boot_id").write_text(text)
    monkeypatch.setattr(places, "BOOT_ID_FILE", tmp_path / "boot_id")
    assert places.read_machine_id() == machine


@pytest.mark.parametrize(
    ("line", "value"),
    [(LIST, 1), ("echo Invalid Argument; exit 2", None), ("echo no sliders", None)],
)
def test_vboost_is_what_nvidia_smi_lists(program, line, value):
    program("nvidia-smi", line)
    assert nvidia_smi.query_vboost("GPU-1") == value


def test_a_run_has_its_place_on_record(run_here, tmp_path):
    """The record is written again once the ranks are there."""
    run_here("baseline", "--overlay", "cpu", *TINY, SMALLEST, "training.steps=1", "--out", tmp_path)
    attempt = attempt_of(tmp_path)
    assert attempt["status"] == "completed"
    assert attempt["machines"] == [str(places.read_machine_id())]
    assert attempt["gpus"] == [None] and attempt["variables"] is not None
