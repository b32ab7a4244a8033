"""A study that fails and goes on; apart from test_study so that they share the cores."""

import json
import tempfile
from unittest.mock import Mock

import pytest
import yaml

from experiments import study
from experiments.jobs import runner
from tests.runs import SMALL, run_study

pytestmark = pytest.mark.slow


def test_study_goes_on_after_a_failure_and_later_from_where_it_was(tmp_path, monkeypatch):
    """The first recipe misses a compiler, the second needs none; called again, only the first is
    run.

    It compiles its loss in a cache of its own, which is gone afterwards: whatever was compiled
    before, it starts cold.
    """
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(
        tempfile, "tempdir", str(tmp_path)
    )  # the study's, and not its runs', who share C++ headers
    monkeypatch.setattr(runner, "set_by_user", lambda variable: False)
    monkeypatch.setattr(study, "write_page", Mock())  # which would draw figures for seconds
    out, fast = tmp_path / "study", [*SMALL, "training.steps=3", "compile.components=[loss]"]
    out.mkdir()
    plan = {
        "description": "x",
        "recipes": ["baseline_compiled", "baseline"],
        "baseline": "baseline",
        "seeds": [0],
    }
    (out / "study.yaml").write_text(yaml.safe_dump(plan | {"overlays": ["cpu"], "overrides": fast}))
    code, printed = run_study(out)
    assert code == 1
    assert "baseline_compiled seed 0: failed" in printed and "needs a C++ compiler" in printed
    assert "baseline seed 0: completed at step 3" in printed
    assert f"python -m experiments.study {out}" in printed
    monkeypatch.delenv("CXX")
    code, printed = run_study(out)
    assert code == 0
    assert f"complete already: {out / 'baseline' / 'seed0'}" in printed
    assert "baseline_compiled seed 0: completed at step 3" in printed
    assert (
        json.loads((out / "baseline_compiled/seed0/timing.json").read_text())["compile_cache"]
        == "cold"
    )
    assert not list(tmp_path.glob("compile-cache-*"))
