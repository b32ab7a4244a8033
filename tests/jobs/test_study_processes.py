"""A study that fails and goes on, and a run of two processes; apart from test_study so that they share the cores."""

import json
import sys
import tempfile
from unittest.mock import Mock

import pytest
import yaml

from experiments import study
from experiments.jobs import runner
from tests import processes
from tests.runs import SMALL, run_study

pytestmark = pytest.mark.slow


def test_study_goes_on_after_a_failure_and_later_from_where_it_was(tmp_path, monkeypatch):
    """The first recipe misses a compiler, the second needs none; called again, only the first is run.

    It compiles its loss in a cache of its own, which is gone afterwards: whatever was compiled before, it starts cold.
    """
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # the study's, and not its runs', who share C++ headers
    monkeypatch.setattr(runner, "set_by_user", lambda variable: False)
    monkeypatch.setattr(study, "write_page", Mock())  # which would draw figures for seconds
    out, fast = tmp_path / "study", [*SMALL, "training.steps=3", "compile.components=[loss]"]
    out.mkdir()
    plan = {"description": "x", "recipes": ["baseline_compiled", "baseline"], "baseline": "baseline", "seeds": [0]}
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
    assert json.loads((out / "baseline_compiled/seed0/timing.json").read_text())["compile_cache"] == "cold"
    assert not list(tmp_path.glob("compile-cache-*"))


def test_two_processes_share_one_run(tmp_path):
    """FSDP over gloo, with float8 all-gather and scales computed together; rank 0 writes the records."""
    out, fp8 = tmp_path / "run", "quantize.linear.float8"
    keys = [f"{fp8}.enable_fsdp_float8_all_gather=true", f"{fp8}.precompute_float8_dynamic_scale_for_fsdp=true"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    command = [*torchrun, "-m", "experiments.run", "tensorwise_fp8_compiled", "--overlay", "cpu", "--out", out]
    processes.run([*command, *keys, *SMALL, "training.steps=4", "compile.enable=false"])
    manifest, proof = (json.loads((out / f"{name}.json").read_text()) for name in ("manifest", "proof"))
    assert manifest["world_size"] == 2 and proof["fp8_share_of_matmul_flops"] == pytest.approx(0.75)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert lines[-1]["tokens_per_s"] == pytest.approx(2 * 256 / lines[-1]["step_s"][0], rel=1e-4)
