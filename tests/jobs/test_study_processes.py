"""A study that fails and goes on, and a run of two processes; apart from test_study so that they share the cores."""

import json
import sys
import tempfile

import pytest
import yaml

from experiments.jobs import runner
from tests import processes
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


def test_two_processes_share_one_run(tmp_path):
    """FSDP over gloo, with float8 all-gather and scales computed together; rank 0 writes the records."""
    out, fp8 = tmp_path / "run", "quantize.linear.float8"
    keys = [f"{fp8}.enable_fsdp_float8_all_gather=true", f"{fp8}.precompute_float8_dynamic_scale_for_fsdp=true"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    command = [*torchrun, "-m", "experiments.run", "tensorwise_fp8_compiled", "--overlay", "cpu", "--out", out]
    processes.run([*command, *keys, *SMALL, "training.steps=4", "compile.enable=false"])
    manifest, proof = (json.loads((out / f"{name}.json").read_text()) for name in ("manifest", "proof"))
    assert manifest["world_size"] == 2 and proof["fp8_share_of_matmul_flops"] == pytest.approx(0.75)
    sent = proof["collectives"]
    assert sent["gathered_bytes"] == sent["gathered_bytes_expected"] == 12_591_616  # in bf16 18,883,072
    assert sent["reduced_bytes"] == sent["reduced_bytes_expected"] == 20_980_736
    assert sent["all_reduces"] == 7  # norm, loss, requests to stop; and one for all scales
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert lines[-1]["tokens_per_s"] == pytest.approx(2 * 256 / lines[-1]["step_s"][0], rel=1e-4)
