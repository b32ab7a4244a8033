"""The roofline's command line: its table, its error against a measurement, and what it refuses."""

import json

import pytest

from experiments import roofline
from models import floors, gpus
from tests.costs import work

STEP = {"step_s": 0.01, "parts": {"attention": 0.001}, "rounds": [{}], "error": None}


@pytest.fixture
def bench(tmp_path):
    """Write a bench.json with one variant; returns the arguments that read it."""

    def write(label, device="NVIDIA H200", step=STEP, **facts) -> list[str]:
        content = {"machine": {"name": device}, "overlays": [], "overrides": [], **facts}
        (tmp_path / "bench.json").write_text(json.dumps(content | {"variants": {label: step}}))
        return ["--gpu", "h200", "--against", str(tmp_path / "bench.json")]

    return write


def test_command_prints_the_parts_of_a_small_recipe(capsys):
    assert roofline.main(["tensorwise_fp8_compiled", "--overlay", "cpu", "--gpu", "h200"]) == 0
    printed = capsys.readouterr().out
    words = [*floors.PARTS, "tokens/s", "MFU", "H200 Tensor Core GPU datasheet"]
    assert all(word in printed for word in words)
    assert roofline.main(["baseline", "--gpu", "gh200"]) == 0
    assert "no measured rates of this GPU" in capsys.readouterr().out


def test_error_against_measured_parts(bench, capsys):
    least = floors.step_floors(work("baseline_compiled"), gpus.GPUS["h200"].sustained)
    measured = {part: 2 * seconds for part, seconds in least.items()} | {"idle": 0.01}
    step = STEP | {"step_s": sum(measured.values()), "parts": measured}
    assert roofline.main(["baseline_compiled", *bench("baseline_compiled", step=step)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split("  ")[0]: line.split() for line in lines}
    assert rows["attention"][-1] == "-50%" and rows["idle"] == ["idle", "10.0"]
    assert rows["step"][-1] == f"{sum(least.values()) / sum(measured.values()) - 1:+.0%}"


def test_a_measurement_brings_its_overlays_and_keys(bench, capsys, fails):
    label = "baseline+compile.enable=true"
    options = [label, *bench(label, overlays=["cpu"], overrides=["training.seq_len=64"])]
    assert roofline.main(options) == 0
    printed = capsys.readouterr().out
    assert "baseline cpu training.seq_len=64 compile.enable=true on h200" in printed
    assert "25,600 tokens/s" in printed  # 4 x 64 in 10 ms
    assert "leave them out" in fails(roofline.main, *options, "--overlay", "cpu")
