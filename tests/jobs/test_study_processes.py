"""A study that fails and goes on; apart from test_study so that they share the cores."""

import json
import tempfile

import pytest
import yaml

from experiments.jobs import runner
from tests.runs import SMALL, run_study

pytestmark = pytest.mark.slow


def test_study_goes_on_after_a_failure_and_later_from_where_it_was(tmp_path, monkeypatch):
    """The first recipe misses a compiler, the second needs none; called again, only the first is run.

    It compiles its loss in a cache of its own, which is gone afterwards: whatever was compiled before, it starts cold.
    """
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(runner, "set_by_user", lambda variable: False)
    out, fast = tmp_path / "study", [*SMALL, "training.steps=3", "compile.components=[loss]"]
    out.mkdir()
    plan = {"description": "x", "recipes": ["baseline_compiled", "baseline"], "baseline": "baseline", "seeds": [0]}
    (out / "study.yaml").write_text(yaml.safe_dump(plan | {"overlays": ["cpu"], "overrides": fast}))
    code, said = run_study(out)
    assert code == 1
    assert "baseline_compiled seed 0: failed" in said and "needs a C++ compiler" in said
    assert "baseline seed 0: completed at step 3" in said
    assert f"python -m experiments.study {out}" in said
    monkeypatch.delenv("CXX")
    code, said = run_study(out)
    assert code == 0
    assert f"complete already: {out / 'baseline' / 'seed0'}" in said
    assert "baseline_compiled seed 0: completed at step 3" in said
    assert json.loads((out / "baseline_compiled/seed0/timing.json").read_text())["compile_cache"] == "cold"
    assert not list((tmp_path / "tmp").glob("compile-cache-*"))
