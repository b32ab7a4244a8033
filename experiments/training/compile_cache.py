"""Compiled kernels kept from one run to the next, also across machines: PyTorch's cache artifacts in a file a recipe.

The file's name is a digest of what the kernels depend on: versions, device, the recipe's model and numerics, the rank.
What is in it, PyTorch checks again, graph by graph. A file that cannot be used costs a warning and a cold start.
"""

import hashlib
import json
import os
import platform
import time
import zipfile
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import torch
from torch._dynamo.utils import counters
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torchtitan.tools.logging import logger

from models import device

_PACKAGES = ("torch", "torchao", "torchtitan")
_SECTIONS = ("model", "compile", "quantize", "activation_checkpoint", "parallelism")
_ARTIFACTS = "artifacts"  # member of the archive: torch.compiler.save_cache_artifacts
_BUILT = "built/"  # members: shared objects, by their path in inductor's cache folder


def state() -> str:
    """`cold` if inductor compiled any graph anew, `warm` if all came from its cache, `none` if nothing was compiled."""
    hits = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
    misses = counters["inductor"]["fxgraph_cache_miss"]
    return "cold" if misses else "warm" if hits else "none"


def path(config) -> Path:
    """The file of this recipe on this device and rank."""
    training, sections = asdict(config.training), {name: asdict(getattr(config, name)) for name in _SECTIONS}
    del sections["compile"]["artifacts_dir"]
    what = {
        "versions": {name: version(name) for name in _PACKAGES} | {"python": platform.python_version()},
        "device": [device.TYPE, device.name()],
        "rank": [os.environ["RANK"], os.environ["WORLD_SIZE"]],
        "stochastic_rounding": config.optimizer.stochastic_rounding,  # torchao's AdamW compiles a kernel of its own
        "training": {k: training[k] for k in ("seq_len", "local_batch_size", "dtype", "mixed_precision_param")},
        **sections,
    }
    digest = hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:16]
    return Path(config.compile.artifacts_dir) / f"{digest}.zip"


def restore(config) -> None:
    """Put what an earlier run compiled where inductor looks for it."""
    if not (config.compile.enable and config.compile.artifacts_dir and (kept := path(config)).exists()):
        return
    start = time.perf_counter()
    try:
        with zipfile.ZipFile(kept) as archive:
            for member in archive.namelist():
                if member.startswith(_BUILT):
                    _write(Path(cache_dir()) / member.removeprefix(_BUILT), archive.read(member))
            found = torch.compiler.load_cache_artifacts(archive.read(_ARTIFACTS))
        if found is None:
            raise ValueError("PyTorch could not load it")
        logger.info(f"Compiled kernels restored from {kept} in {time.perf_counter() - start:.1f} s")
    except Exception as error:  # a damaged archive, or one that this PyTorch cannot read
        logger.warning(f"The compiled kernels kept in {kept} cannot be used ({error}): compiling anew")


def save(config) -> None:
    """Keep the kernels of this process, unless they all came from what is kept.

    With no file yet, they are kept even if inductor's own cache on this machine had them: other machines have not.
    """
    if not (config.compile.enable and config.compile.artifacts_dir):
        return
    kept = path(config)
    if state() == "none" or (state() == "warm" and kept.exists()):
        return
    if (made := torch.compiler.save_cache_artifacts()) is None:  # PyTorch could not put them together
        return
    part = kept.with_suffix(f".{os.getpid()}.part")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr(_ARTIFACTS, made[0])
            for built in _built_objects():
                archive.write(built, _BUILT + str(built.relative_to(cache_dir())))
        part.replace(kept)
    except OSError as error:
        part.unlink(missing_ok=True)
        logger.warning(f"The compiled kernels could not be kept in {kept.parent} ({error.strerror})")


def _built_objects() -> list[Path]:
    """What a C++ compiler built in inductor's cache folder, which the artifacts lack.

    That is the kernels this process has loaded, and the small probes of the processor's instruction sets, which no
    process keeps loaded: they are told from kernels by their name, and from Triton's files by their folder.
    """
    with open("/proc/self/maps") as maps:
        loaded = {Path(line.split()[-1]) for line in maps if line.rstrip().endswith(".so")}
    probes = {file for file in Path(cache_dir()).glob("??/*.so") if not file.name.endswith(".main.so")}
    return sorted(file for file in probes | loaded if file.is_relative_to(cache_dir()))


def _write(file: Path, content: bytes) -> None:
    """Whole or not at all: other runs look into the same folder."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}.part")
        part.write_bytes(content)
        part.replace(file)
