"""The roofline's command line: its table, its error against a measurement, and what it refuses."""

import json

import pytest

from experiments import roofline
from models import floors, gpus
from tests.costs import work


def test_command_prints_the_parts_of_a_small_recipe(capsys):
    assert roofline.main(["tensorwise_fp8_compiled", "--overlay", "cpu", "--gpu", "h200"]) == 0
    printed = capsys.readouterr().out
    assert all(part in printed for part in floors.PARTS)
    assert "tokens/s" in printed and "MFU" in printed and "H200 Tensor Core GPU datasheet" in printed
    assert roofline.main(["baseline", "--gpu", "gh200"]) == 0
    assert "no measured rates of this GPU" in capsys.readouterr().out


def write_bench(path, variants, device="NVIDIA H200", **facts) -> None:
    variants = {label: {"rounds": [{}], "error": None} | variant for label, variant in variants.items()}
    bench = {"machine": {"name": device}, "overlays": [], "overrides": [], "variants": variants}
    path.write_text(json.dumps(bench | facts))


def test_error_against_measured_parts_is_printed_and_kept(tmp_path, capsys):
    bench, out = tmp_path / "bench.json", tmp_path / "roofline.json"
    least = floors.step_floors(work("baseline_compiled"), gpus.GPUS["h200"].sustained)
    measured = {part: 2 * seconds for part, seconds in least.items()} | {"idle": 0.01}
    step = {"step_s": sum(measured.values()), "parts": measured}
    write_bench(bench, {"baseline_compiled": step})
    options = ["--gpu", "h200", "--against", str(bench), "--json", str(out)]
    assert roofline.main(["baseline_compiled", *options]) == 0
    printed, kept = capsys.readouterr().out, json.loads(out.read_text())
    assert "-50%" in printed and "idle" in printed
    assert kept["rows"]["attention"]["error"] == pytest.approx(-0.5)
    assert kept["rows"]["idle"] == {"measured": 0.01}
    assert kept["rows"]["step"]["error"] == pytest.approx(sum(least.values()) / step["step_s"] - 1)


def test_measurements_stand_beside_the_floors_of_what_was_measured(tmp_path, capsys):
    bench, out = tmp_path / "bench.json", tmp_path / "roofline.json"
    label = "baseline+compile.enable=true"
    step = {"step_s": 0.01, "parts": {"attention": 0.001}}
    write_bench(bench, {label: step}, overlays=["cpu"], overrides=["training.seq_len=64"])
    options = [label, "--gpu", "h200", "--against", str(bench)]
    assert roofline.main([*options, "--json", str(out)]) == 0
    kept = json.loads(out.read_text())
    assert (kept["overlays"], kept["overrides"]) == (["cpu"], ["training.seq_len=64", "compile.enable=true"])
    assert "25,600 tokens/s" in capsys.readouterr().out  # 4 x 64 in 10 ms
    assert roofline.main([*options, "--overlay", "cpu"]) == 2
    assert "leave them out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["baseline", "--gpu", "h20"], "unknown GPU `h20`; did you mean `h200`"),
        (["baselin", "--gpu", "h200"], "unknown recipe `baselin`"),
        (["tensorwise_fp8_compiled", "--gpu", "a100"], "no FP8 units"),
        (["baseline", "--gpu", "h200", "activation_checkpoint.mode=selective"], "set it to none or full"),
        (["baseline", "--gpu", "h200", "--against", "nowhere.json"], "nowhere.json: No such file"),
    ],
)
def test_mistakes_are_a_sentence(arguments, sentence, capsys):
    assert roofline.main(arguments) == 2
    message = capsys.readouterr().err
    assert sentence in message and "Traceback" not in message and len(message.splitlines()) == 1


def test_file_without_the_measurement_says_what_it_has(tmp_path, capsys):
    bench = tmp_path / "bench.json"

    def error(recipe: str = "baseline") -> str:
        assert roofline.main([recipe, "--gpu", "h200", "--against", str(bench)]) == 2
        return capsys.readouterr().err

    write_bench(bench, {"baseline": {"step_s": 1, "parts": {}}})
    unknown = error("baseline_compiled")
    assert unknown.startswith("error: unknown variant in") and "known: baseline" in unknown
    write_bench(bench, {"baseline": {"rounds": [], "error": "failed: CUDA out of memory."}})
    assert error().endswith("has no measurement of baseline: failed: CUDA out of memory.\n")
    write_bench(bench, {"baseline": {"step_s": 1, "parts": {}}}, device="AMD EPYC")
    assert error().startswith(f"error: {bench} was measured on AMD EPYC")
    for content in (b"{}", b"\xff\xfe"):
        bench.write_bytes(content)
        assert "does not hold a measurement" in error()
