"""Kernels that single runs keep for the next one; that they make it start warm is in
tests/jobs/test_study.py."""

import pytest
import torch

from experiments.config import recipes
from experiments.training import compile_cache


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Of a process that found all kernels in inductor's own cache, which stays on its machine."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setitem(compile_cache.counters["inductor"], "fxgraph_cache_hit", 3)
    monkeypatch.setitem(compile_cache.counters["inductor"], "fxgraph_cache_miss", 0)
    monkeypatch.setattr(torch.compiler, "save_cache_artifacts", lambda: (b"kernels", None))
    return recipes.load(
        "baseline_compiled", ["cpu"], [f"compile.artifacts_dir={tmp_path / 'kept'}"]
    ).config


def test_kernels_are_kept_once(config):
    compile_cache.save(config)
    kept = compile_cache.path(config)
    assert kept.read_bytes() == b"kernels"
    kept.write_bytes(b"as it was")
    compile_cache.save(config)
    assert kept.read_bytes() == b"as it was"


@pytest.mark.parametrize("content", [b"kernels of another format", b"PK\3\4 cut off", b""])
def test_a_damaged_file_costs_a_warning(config, content, caplog):
    compile_cache.save(config)
    compile_cache.path(config).write_bytes(content)
    compile_cache.restore(config)
    assert "cannot be used" in caplog.text and "compiling anew" in caplog.text


def test_a_folder_that_cannot_be_written_costs_a_warning(config, tmp_path, caplog):
    (tmp_path / "kept").write_text("a file")
    compile_cache.restore(config)
    compile_cache.save(config)
    assert "could not be kept" in caplog.text


@pytest.mark.usefixtures("config")
def test_kernels_of_different_runs_are_told_apart(monkeypatch):
    def file(name: str = "tensorwise_fp8_compiled", *keys: str):
        return compile_cache.path(recipes.load(name, ["cpu"], keys).config)

    first = file()
    assert (
        file("tensorwise_fp8_compiled", "training.steps=7", "optimizer.lr=1e-4", "debug.seed=3")
        == first
    )
    others = [
        *map(
            file,
            ("rowwise_fp8_compiled", "baseline_compiled", "candidate_adamw_stochastic_rounding"),
        )
    ]
    others.append(file("tensorwise_fp8_compiled", "training.seq_len=128"))
    for module, name in (compile_cache, "version"), (compile_cache.device, "name"):
        with monkeypatch.context() as changed:
            changed.setattr(module, name, lambda *_: "another")
            others.append(file())
    for variable, value in ("WORLD_SIZE", "2"), ("RANK", "1"):
        monkeypatch.setenv(variable, value)
        others.append(file())
    assert len({first, *others}) == 1 + len(others)
    assert file("tensorwise_fp8_compiled", 'compile.artifacts_dir=""') is None
