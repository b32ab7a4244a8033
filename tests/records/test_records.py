"""What a run leaves behind reads back as it was written, or is refused by file and field."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from analysis.newest import PLACES
from experiments.config import recipes
from experiments.records.files import write_whole
from experiments.records.run import (
    MANIFEST,
    METRICS,
    PROOF,
    RECIPE,
    TIMING,
    LogInterval,
    Manifest,
    Proof,
    RecordError,
    Timing,
    last_interval,
    read_log,
)
from tests.make_runs import intervals, write_lines
from tests.processes import ROOT

KEPT = [path.parent for place in PLACES for path in ROOT.glob(f"{place}/**/{MANIFEST}")]


def test_every_kept_run_fits_the_contract():
    assert KEPT
    for run in KEPT:
        manifest = Manifest.read(run / MANIFEST)
        recipes.load(str(run / RECIPE))
        assert (run.parents[1] / manifest.environment).is_file()
        Timing.read(run / TIMING)
        Proof.read(run / PROOF)
        assert read_log(run / METRICS)[-1].step == manifest.steps


def test_a_record_that_a_full_disk_cuts_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "replace", Mock(side_effect=OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / MANIFEST, "{}")
    assert not list(tmp_path.iterdir())


def test_windows_read_back_without_a_torn_last_line(tmp_path):
    assert last_interval(tmp_path) is None and not read_log(tmp_path / METRICS)
    logged = [LogInterval(**line) for line in intervals([0.1] * 20, [3.0] * 20)]
    for interval in logged:
        interval.append_to(tmp_path / METRICS)
    with open(tmp_path / METRICS, "a") as file:
        file.write('{"step": 3, "elap')
    assert read_log(tmp_path / METRICS) == logged
    assert last_interval(tmp_path) == logged[-1]


def test_a_line_that_does_not_fit_is_named(tmp_path):
    first, second = intervals([0.1] * 2, [3.0] * 2, every=1)
    write_lines(tmp_path / METRICS, [first, second | {"losses": [1.0, 2.0]}])
    with pytest.raises(RecordError, match=f"{METRICS}: line 2"):
        read_log(tmp_path / METRICS)
