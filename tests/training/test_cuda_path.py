"""What runs on a GPU, tried without one: PyTorch's CUDA build on a stand-in for CUDA that does
nothing.

Inductor and Triton compile for an H200, and all that is launched and waited for is real; only no
kernel computes, and memory reads as zeros. So this finds what crashes and what the host waits for,
and says nothing of losses and speed.

It needs torch's CUDA build (several GB), which this project does not install on a machine without a
GPU. In another virtual environment, from a package index that has it (PyPI, on x86-64):

    pip install torch==2.11.0 -r requirements.txt -r requirements-tools.txt
    python -m pytest tests/training/test_cuda_path.py
"""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch

from tests import processes
from tests.runs import attempt_of, proof_of

PACKAGES = Path(torch.__file__).parent.parent
CUDA_HEADERS, TRITON = PACKAGES / "nvidia/cu13/include", PACKAGES / "triton/backends/nvidia"
KEYS = ["training.steps=6", "metrics.log_freq=3"]
KEYS += ["training.seq_len=64", "training.local_batch_size=1"]
KEYS += ["model.attention_backend=flash"]  # cuDNN's asks more of a GPU than the stand-in has

HAS_ALL = torch.version.cuda and CUDA_HEADERS.exists() and shutil.which("cc") and shutil.which("nm")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_ALL, reason="needs a CUDA build of torch, its headers, cc and nm"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, and tests for it"),
]


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory) -> Path:
    """A library with all that torch and Triton call of CUDA's driver and runtime, cuBLAS and
    NCCL."""
    folder = tmp_path_factory.mktemp("cuda")
    called = processes.run(
        ["nm", "-D", "--undefined-only", *PACKAGES.glob("torch/lib/*.so")]
    ).stdout
    called += (TRITON / "driver.c").read_text()
    names = sorted(set(re.findall(r"\b(?:__cuda|cuda|cublas|nccl|cu[A-Z])\w+", called)))
    rest = folder / "rest.c"
    rest.write_text(
        "".join(f"__attribute__((weak)) int {name}() {{ return 0; }}\n" for name in names)
    )
    library = folder / "libcuda.so.1"
    include = ["-I", CUDA_HEADERS, "-I", TRITON / "include"]  # CUDA's include Triton's
    kind = ["-w", "-shared", "-fPIC", f"-Wl,-soname,{library.name}"]
    processes.run(["cc", *kind, *include, "tests/training/cuda_stand_in.c", rest, "-o", library])
    return library


@pytest.fixture
def train(stand_in, tmp_path):
    """Trains a recipe on the stand-in, with variables for it; gives its run directory, and its
    launches and waits in their order."""

    def call(recipe: str, **variables: str) -> tuple[Path, list[str]]:
        out, calls, caches = tmp_path / "run", tmp_path / "calls", tmp_path / "caches"
        cuda = {"LD_PRELOAD": stand_in, "TRITON_LIBCUDA_PATH": stand_in.parent, "CUDA_CALLS": calls}
        cuda |= dict.fromkeys(["TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"], caches)
        command = [sys.executable, "-m", "experiments.run", recipe, "--overlay", "cpu", *KEYS]
        processes.run([*command, "--out", out], seconds=800, env=os.environ | cuda | variables)
        return out, calls.read_text().splitlines()

    return call


@pytest.mark.parametrize("name", ["baseline", "rowwise_fp8_compiled", "tensorwise_fp8_compiled"])
def test_a_recipe_runs_on_cuda(name, train):
    run, calls = train(name)
    attempt, proof = attempt_of(run), proof_of(run)
    assert attempt["status"] == "completed"
    assert attempt["hardware"]["name"] == "NVIDIA H200 (stand-in)"
    assert "Traceback" not in (run / "log.txt").read_text()
    assert proof.attention == "flash" and not proof.emulated
    assert len(proof.converted_modules) == (28 if "fp8" in name else 0)
    assert proof.fp8_flops == proof.fp8_flops_expected
    assert any(call.startswith("triton_") for call in calls) == ("compiled" in name)

    # After the norm of a step, the host waits for that norm and for nothing else, if it logs
    # nothing: steps 4 and 5, after step 3's
    waits = [call for call in calls if call.startswith("wait")]
    quiet = ["wait for event"] * 3
    assert any(waits[at : at + len(quiet)] == quiet for at in range(len(waits)))
