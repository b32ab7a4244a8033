"""Compiled kernels kept from one run to the next, also across machines: PyTorch's cache artifacts,
a file a recipe.

They serve single runs and their resumes; a study's runs compile anew, see
experiments/jobs/runner.py. The file's name is a digest of what the kernels depend on: versions,
device, the recipe's model and numerics, the rank. PyTorch checks again what is in it, graph by
graph. On a CPU the artifacts lack what the C++ compiler builds. A file that cannot be used or
written costs a warning and a cold start.
"""

import hashlib
import json
import os
import platform
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import torch
from torch._dynamo.utils import counters
from torchtitan.tools.logging import logger

from experiments.jobs.files import write_whole
from models import device

_PACKAGES = ("torch", "torchao", "torchtitan")
_SECTIONS = ("model", "compile", "quantize", "activation_checkpoint", "parallelism")


def state() -> str:
    """`cold` if inductor compiled any graph anew, `warm` if all came from its cache, `none` if
    nothing was compiled."""
    hits = (
        counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
    )
    misses = counters["inductor"]["fxgraph_cache_miss"]
    return "cold" if misses else "warm" if hits else "none"


def path(config) -> Path | None:
    """The file of this recipe on this device and rank; None where none is kept."""
    if not (config.compile.enable and config.compile.artifacts_dir):
        return None
    training, sections = (
        asdict(config.training),
        {name: asdict(getattr(config, name)) for name in _SECTIONS},
    )
    del sections["compile"]["artifacts_dir"]
    dependencies = {
        "versions": {name: version(name) for name in _PACKAGES}
        | {"python": platform.python_version()},
        "device": [device.TYPE, device.name()],
        "rank": [os.environ["RANK"], os.environ["WORLD_SIZE"]],
        "stochastic_rounding": config.optimizer.stochastic_rounding,  # torchao's AdamW compiles a kernel of its own
        "training": {
            k: training[k]
            for k in ("seq_len", "local_batch_size", "dtype", "mixed_precision_param")
        },
        **sections,
    }
    digest = hashlib.sha256(
        json.dumps(dependencies, sort_keys=True, default=str).encode()
    ).hexdigest()[:16]
    return Path(config.compile.artifacts_dir) / f"{digest}.artifacts"


def restore(config) -> None:
    """Put what an earlier run compiled where inductor looks for it."""
    kept, start = path(config), time.perf_counter()
    if kept is None:
        return
    try:
        if torch.compiler.load_cache_artifacts(kept.read_bytes()) is None:
            raise ValueError("PyTorch could not load it")
        logger.info(f"Compiled kernels restored from {kept} in {time.perf_counter() - start:.1f} s")
    except FileNotFoundError:
        pass
    except Exception as error:  # a damaged file, or one that this PyTorch cannot read
        logger.warning(
            f"The compiled kernels kept in {kept} cannot be used ({error}): compiling anew"
        )


def save(config) -> None:
    """Keep the kernels of this process, unless they all came from the file.

    To be called once: of what a second call saves, PyTorch 2.13 loads only what was compiled since
    the first one. With no file yet, they are kept even if inductor's own cache on this machine had
    them: other machines have not.
    """
    kept = path(config)
    if kept is None or state() == "none":
        return
    try:
        needed = state() == "cold" or not kept.exists()
        if needed and (
            artifacts := torch.compiler.save_cache_artifacts()
        ):  # None: PyTorch could not put them together
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_whole(kept, artifacts[0])
    except OSError as error:
        logger.warning(
            f"The compiled kernels could not be kept in {kept.parent} ({error.strerror})"
        )
