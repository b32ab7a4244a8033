"""The roofline's command line: its table, its error against a measurement, and what it refuses."""

import json

import pytest

from experiments import roofline
from models import floors, gpus
from tests.costs import work

STEP = {"step_s": 0.01, "parts": {"attention": 0.001}}


def write_bench(path, variants, device="NVIDIA H200", **facts) -> None:
    variants = {
        label: {"rounds": [{}], "error": None} | variant for label, variant in variants.items()
    }
    bench = {"machine": {"name": device}, "overlays": [], "overrides": [], "variants": variants}
    path.write_text(json.dumps(bench | facts))


def test_command_prints_the_parts_of_a_small_recipe(capsys):
    assert roofline.main(["tensorwise_fp8_compiled", "--overlay", "cpu", "--gpu", "h200"]) == 0
    printed = capsys.readouterr().out
    assert all(part in printed for part in floors.PARTS)
    assert (
        "tokens/s" in printed and "MFU" in printed and "H200 Tensor Core GPU datasheet" in printed
    )
    assert roofline.main(["baseline", "--gpu", "gh200"]) == 0
    assert "no measured rates of this GPU" in capsys.readouterr().out


def test_error_against_measured_parts(tmp_path, capsys):
    least = floors.step_floors(work("baseline_compiled"), gpus.GPUS["h200"].sustained)
    measured = {part: 2 * seconds for part, seconds in least.items()} | {"idle": 0.01}
    step = {"step_s": sum(measured.values()), "parts": measured}
    write_bench(tmp_path / "bench.json", {"baseline_compiled": step})
    assert (
        roofline.main(
            ["baseline_compiled", "--gpu", "h200", "--against", str(tmp_path / "bench.json")]
        )
        == 0
    )
    rows = {
        line.split("  ")[0].strip(): line.split() for line in capsys.readouterr().out.splitlines()
    }
    assert rows["attention"][-1] == "-50%" and rows["idle"] == ["idle", "10.0"]
    assert rows["step"][-1] == f"{sum(least.values()) / sum(measured.values()) - 1:+.0%}"


def test_measurements_stand_beside_the_floors_of_what_was_measured(tmp_path, capsys):
    label = "baseline+compile.enable=true"
    write_bench(
        tmp_path / "bench.json", {label: STEP}, overlays=["cpu"], overrides=["training.seq_len=64"]
    )
    options = [label, "--gpu", "h200", "--against", str(tmp_path / "bench.json")]
    assert roofline.main(options) == 0
    printed = capsys.readouterr().out
    assert "baseline cpu training.seq_len=64 compile.enable=true on h200" in printed
    assert "25,600 tokens/s" in printed  # 4 x 64 in 10 ms
    assert roofline.main([*options, "--overlay", "cpu"]) == 2
    assert "leave them out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["baseline", "--gpu", "h20"], "unknown GPU `h20`; did you mean `h200`"),
        (["baselin", "--gpu", "h200"], "unknown recipe `baselin`"),
        (["tensorwise_fp8_compiled", "--gpu", "a100"], "no FP8 units"),
        (
            ["baseline", "--gpu", "h200", "activation_checkpoint.mode=selective"],
            "set it to none or full",
        ),
        (["baseline", "--gpu", "h200", "--against", "nowhere.json"], "nowhere.json: No such file"),
    ],
)
def test_mistakes_are_a_sentence(arguments, sentence, capsys):
    assert roofline.main(arguments) == 2
    message = capsys.readouterr().err
    assert sentence in message and "Traceback" not in message and len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("figures", "device", "sentence"),
    [
        ({"baseline_compiled": STEP}, "NVIDIA H200", "known: baseline_compiled"),
        ({"baseline": {"rounds": [], "error": "failed: CUDA out of memory."}}, "NVIDIA H200",
         "has no measurement of baseline: failed: CUDA out of memory.\n"),
        ({"baseline": STEP}, "AMD EPYC", "was measured on AMD EPYC"),
        (b"{}", "", "does not hold a measurement"),
        (b"\xff\xfe", "", "does not hold a measurement"),
    ],
)  # fmt: skip
def test_file_without_the_measurement_says_what_it_has(figures, device, sentence, tmp_path, capsys):
    bench = tmp_path / "bench.json"
    bench.write_bytes(figures) if isinstance(figures, bytes) else write_bench(
        bench, figures, device
    )
    assert roofline.main(["baseline", "--gpu", "h200", "--against", str(bench)]) == 2
    assert sentence in capsys.readouterr().err
