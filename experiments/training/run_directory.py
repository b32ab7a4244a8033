"""The directory a run leaves behind: who may write it, what it says of itself, and how it ended.

recipe.yaml     fully resolved: `python -m experiments.run DIR/recipe.yaml` runs it again
manifest.json   code, versions, machine, command, data, status: written at the start, completed at
the end metrics.jsonl   one line per log window, see experiments.training.metrics timing.json
where the warm-up went, and what torch.compile took of the steps that switched FP8 on or off
proof.json      what ran in FP8, see experiments.training.proof summary.json    the row of the final
table, see analysis.runs log.txt         everything that was printed tb/             TensorBoard
checkpoint/     torchtitan's, where the recipe asks for it attempt<k>/     records of an earlier
attempt that did not end, as metrics.jsonl
"""

import json
import os
import platform
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path

import torch
import yaml

from experiments.jobs.files import lock, read_json, read_metrics, write_whole
from experiments.jobs.ranks import number
from experiments.jobs.shares import BUDGET
from experiments.training.plan import Plan
from models import device, float8, flops
from models.architectures import label
from models.errors import InputError

LAYOUT_VERSION = 1  # of the directory; analysis.runs.py refuses versions that it does not know
_RECORDS = ("metrics.jsonl", "timing.json", "proof.json", "summary.json")


def now() -> str:
    """UTC time to the millisecond, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def command() -> str:
    """What this process was started with, for a shell."""
    return shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]])


def _packages() -> dict[str, str]:
    """{name: version} of what is installed."""
    read = (
        distribution.metadata for distribution in distributions()
    )  # once each: name and version would do it anew
    return dict(sorted((m["Name"], m["Version"]) for m in read if m["Name"]))  # broken: no name


class RunDirectory:
    """A run directory that no other live process writes to."""

    def __init__(self, path: Path, recipe_yaml: str, facts: dict):
        """Lock `path`, set the records of an unfinished run aside, write recipe.yaml, and
        manifest.json with `facts`.

        Raises `InputError`, and changes nothing in it, if another live process holds it, it holds a
        completed or another run, it is no run directory, or it cannot be written.
        """
        self.path = path
        _check_folder(path)  # before the lock leaves a file in it
        self._lock = lock(self.path, "run")
        try:
            earlier = _unfinished_run(path, recipe_yaml, facts.get("world_size", 1))
            write_whole(
                self.path / "recipe.yaml", recipe_yaml
            )  # first: a full disk stops here, nothing moved
            self.manifest = {
                "layout_version": LAYOUT_VERSION,
                "status": "running",
                "attempt": self._set_aside(earlier),
                "start": now(),
                "command": command(),
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "python": platform.python_version(),
                "packages": _packages(),
                "git": git_state(),
                **facts,
            }
            self.write_json("manifest.json", self.manifest)
        except (OSError, InputError) as error:
            os.close(self._lock)
            if isinstance(error, OSError):
                error = InputError(
                    f"{self.path}: {error.strerror}: make room, or choose another --out"
                )
            raise error from None

    def _set_aside(self, earlier: dict | None) -> int:
        """Number of this attempt; the records of an unfinished one are moved to attempt<k>/."""
        if earlier is None:  # a new directory
            return 1
        attempt = earlier.get("attempt")
        if not isinstance(attempt, int) or attempt < 1:
            attempt = len(list(self.path.glob("attempt*"))) + 1
        if not earlier and not any((self.path / name).exists() for name in _RECORDS):
            return attempt  # a start was killed after its last move below
        aside = self.path / f"attempt{attempt}"
        aside.mkdir(exist_ok=True)
        for name in (
            *_RECORDS,
            "manifest.json",
        ):  # the manifest last: a start that is killed here is repeated
            if (self.path / name).exists():
                (self.path / name).rename(aside / name)
        return attempt + 1

    def take_over(self, step: int) -> dict:
        """Resumed from the checkpoint of `step` (0: none): take the earlier attempt's lines up to
        it, and its proof.

        Returns that proof, empty if there is none. An attempt that trains far enough writes a proof
        of its own.
        """
        for attempt in range(self.manifest["attempt"] - 1, 0, -1) if step else ():
            lines = [
                x
                for x in read_metrics(self.path / f"attempt{attempt}" / "metrics.jsonl")
                if x["step"] <= step
            ]
            if lines:  # an attempt that died before its first step has none
                write_whole(
                    self.path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines)
                )
                if proof := read_json(self.path / f"attempt{attempt}" / "proof.json"):
                    self.write_json("proof.json", proof)
                return proof
        return {}

    def write_json(self, name: str, content: dict) -> None:
        write_whole(self.path / name, json.dumps(content, indent=2) + "\n")

    def finish(
        self,
        status: str,
        error: str | None = None,
        summarize: Callable[[Path, dict], dict] | None = None,
    ):
        """Write summary.json, which `summarize` makes, then the end into the manifest, and unlock
        the directory.

        A run that is killed in between has not ended, so that the next start writes both.
        """
        self.manifest |= {"status": status, "end": now(), "error": error}
        if summarize:
            self.write_json("summary.json", summarize(self.path, self.manifest))
        self.write_json("manifest.json", self.manifest)
        os.close(self._lock)


def check(path: Path, recipe_yaml: str, world_size: int) -> None:
    """Raise `InputError` where `RunDirectory` would, for whoever starts its ranks; adds nothing but
    the lock's file."""
    _check_folder(path)
    os.close(lock(path, "run"))
    _unfinished_run(path, recipe_yaml, world_size)


def _check_folder(path: Path) -> None:
    """Raise `InputError` for a folder of something else, and for a pipe or the like in the place of
    a record."""
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    for entry in map(path.joinpath, names):
        kind = (
            "file" if entry.name in (*_RECORDS, "manifest.json", "recipe.yaml", "log.txt") else ""
        )
        kind = "folder" if entry.name in ("checkpoint", "damaged_checkpoints", "tb") else kind
        kind = "folder" if re.fullmatch(r"attempt\d+", entry.name) else kind
        if kind and not {"file": entry.is_file, "folder": entry.is_dir}[kind]():
            raise InputError(f"{entry} is not a {kind}: move it away, or choose another --out")
    others = {name for name in names if not name.startswith(".")} - {"log.txt", "recipe.yaml"}
    if others and "recipe.yaml" not in names and not read_json(path / "manifest.json"):
        raise InputError(f"{path} holds files and is no run directory: choose another --out")


def _unfinished_run(path: Path, recipe_yaml: str, world_size: int) -> dict | None:
    """The manifest of the run to go on with, empty if it is missing or torn; None in a new
    directory."""
    existing_files = {p.name for p in path.iterdir() if not p.name.startswith(".")} - {"log.txt"}
    if not existing_files:
        return None
    earlier = read_json(path / "manifest.json")
    if earlier.get("status") == "completed":
        raise InputError(f"{path} holds a completed run: choose another --out, or delete it")
    if "recipe.yaml" in existing_files:
        _check_same_recipe(path, recipe_yaml)
    if earlier.get("world_size", world_size) != world_size:
        raise InputError(
            f"{path} holds an unfinished run of {earlier['world_size']} processes, and this one has "
            f"{world_size}: start as many, or choose another --out"
        )
    return earlier


def _check_same_recipe(folder: Path, recipe_yaml: str) -> None:
    path = folder / "recipe.yaml"
    try:
        same = _without_steps(path.read_text(encoding="utf-8")) == _without_steps(recipe_yaml)
    except (ValueError, TypeError, AttributeError, RecursionError, yaml.YAMLError):
        raise InputError(
            f"{path} is damaged: delete it to go on with the run, or choose another --out"
        ) from None
    if not same:
        raise InputError(
            f"{folder} holds an unfinished run of another recipe: give the same name, overlays, seed and keys "
            "to go on with it, or choose another --out"
        )


def _without_steps(recipe_yaml: str) -> dict:
    """A resolved recipe without what may change between two attempts: how long it runs."""
    resolved = yaml.safe_load(recipe_yaml) or {}
    resolved.get("training", {}).pop("steps", None)
    return resolved


def git_state() -> dict[str, str | None]:
    """Commit of this code and what differs from it (tracked files only); None outside a git
    checkout."""
    outputs = []
    for arguments in ["git", "rev-parse", "HEAD"], ["git", "diff", "HEAD"]:
        try:
            done = subprocess.run(
                arguments, cwd=Path(__file__).parent, capture_output=True, timeout=20, check=True
            )
            outputs.append(done.stdout.decode(errors="replace"))
        except (OSError, subprocess.SubprocessError):
            outputs.append("")
    return {"commit": outputs[0].strip() or None, "diff": outputs[1] or None}


def facts_of(planned: Plan) -> dict:
    """What the manifest says of a run from the start: the recipe, the machine, and the figures that
    rates need."""
    recipe, config, args = planned.recipe, planned.config, planned.args
    fp8 = config.quantize.linear.float8
    return {
        "recipe": recipe.name,
        "base": recipe.base,
        "overlays": list(recipe.overlays),
        "description": recipe.description,
        "seed": config.debug.seed,
        "steps": config.training.steps,
        "study_budget_s": number(BUDGET, 0) or None,
        "compiled": config.compile.enable,
        "float8": fp8.recipe_name,
        "fp8_product": asdict(float8.product(device.TYPE, fp8.recipe_name, fp8.emulate))
        if fp8.recipe_name
        else None,
        "world_size": planned.world_size,
        "hardware": device.hardware(),
        "peak_flops": device.peak_record(),
        "flavor": label(config),
        "parameters": flops.parameters(args),
        "flops_per_token": flops.flops_per_token(args, config.training.seq_len),
        "flops_per_token_causal": flops.flops_per_token(args, config.training.seq_len, causal=True),
        "cuda": torch.version.cuda,
    }
