"""What a run leaves behind reads back as it was written, or is refused by file and field."""

import json
from pathlib import Path

import pytest

from experiments.records import files
from experiments.records.run import (
    MANIFEST,
    METRICS,
    PROOF,
    TIMING,
    Manifest,
    Proof,
    Timing,
    Window,
)

ROOT = Path(__file__).resolve().parents[2]
KEPT = sorted(path.parent for path in (ROOT / "results").rglob(MANIFEST))


def line(number: int, **changes) -> dict:
    return {
        "step": number,
        "elapsed_s": 10.0 + number,
        "loss": 5.0,
        "losses": [5.0],
        "grad_norm": 1.0,
        "lr": 1e-3,
        "tokens_per_s": 100.0,
        "valid_tokens_per_s": 90.0,
        "step_s": [0.5],
        "data_wait_s": [0.0],
        "not_steady": [],
        "peak_memory_bytes": 1,
        "mfu_bf16_peak": 0.1,
        "mfu_fp8_peak": None,
        "mfu_mixed_peak": None,
    } | changes


def write_lines(folder: Path, lines: list[dict], torn: str = "") -> Path:
    path = folder / METRICS
    path.write_text("".join(json.dumps(each) + "\n" for each in lines) + torn)
    return path


def test_every_kept_run_fits_the_contract():
    assert KEPT
    for run in KEPT:
        manifest = files.read(run / MANIFEST, Manifest)
        assert (run.parents[1] / manifest.environment).is_file()
        files.read(run / TIMING, Timing)
        files.read(run / PROOF, Proof)
        assert files.read_windows(run / METRICS)[-1].step == manifest.steps


def test_windows_read_back_as_they_were_appended(tmp_path):
    windows = [Window(**line(1, loss=None, losses=[None])), Window(**line(2))]
    for window in windows:
        files.append(tmp_path / METRICS, window)
    assert files.read_windows(tmp_path / METRICS) == windows
    assert files.last_window(tmp_path) == windows[-1]


def test_a_torn_last_line_is_left_out(tmp_path):
    path = write_lines(tmp_path, [line(1), line(2)], torn='{"step": 3, "elap')
    assert [window.step for window in files.read_windows(path)] == [1, 2]
    assert files.last_window(tmp_path).step == 2


def test_a_log_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(files.RecordError, match=str(tmp_path)):
        files.read_windows(tmp_path)


def test_the_last_window_of_long_lines_and_of_no_file(tmp_path):
    assert files.last_window(tmp_path) is None
    steps = 5000
    per_step = {"losses": [5.0] * steps, "step_s": [0.5] * steps, "data_wait_s": [0.0] * steps}
    write_lines(tmp_path, [line(steps, **per_step), line(2 * steps, **per_step)], torn="{")
    assert files.last_window(tmp_path).step == 2 * steps


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"step": "two"}, "step"),
        ({"tokens_per_s": 0.0}, "tokens_per_s"),
        ({"losses": [1.0, 2.0]}, "line 2"),
        ({"not_steady": [9]}, "line 2"),
        ({"surprise": 1}, "surprise"),
        ({"step": 1}, "step"),
    ],
)
def test_a_line_that_does_not_fit_is_named(tmp_path, changes, field):
    path = write_lines(tmp_path, [line(1), line(2, **changes)])
    with pytest.raises(files.RecordError) as error:
        files.read_windows(path)
    assert str(path) in str(error.value)
    assert field in str(error.value)


def test_records_that_are_missing_torn_or_of_another_layout_are_named(tmp_path):
    kept = json.loads((KEPT[0] / MANIFEST).read_text())
    cases = {
        "gone": None,
        "torn": json.dumps(kept)[:100],
        "layout_version": json.dumps(kept | {"layout_version": 1}),
        "seed": json.dumps(kept | {"seed": None}),
    }
    for name, text in cases.items():
        path = tmp_path / f"{name}.json"
        if text is not None:
            path.write_text(text)
        with pytest.raises(files.RecordError, match=name):
            files.read(path, Manifest)
    assert files.read_if_there(tmp_path / "gone.json", Manifest) is None
