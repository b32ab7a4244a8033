"""The directory a run leaves behind: who may write it, what it says of itself, and how it ended.

recipe.yaml     fully resolved: `python -m experiments.run DIR/recipe.yaml` runs it again
manifest.json   code, versions, machine, command, status: written at the start, completed at the end
metrics.jsonl   one line per log window, see experiments.training.metrics
timing.json     where the warm-up went
proof.json      what ran in FP8, see experiments.training.proof
summary.json    the row of the final table, see analysis.runs
log.txt         everything that was printed
tb/             TensorBoard
checkpoint/     torchtitan's, where the recipe asks for it
"""

import fcntl
import json
import logging
import os
import platform
import shlex
import socket
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path

import yaml

from experiments.jobs.files import read_json, read_metrics, write_whole
from models.errors import InputError

LAYOUT_VERSION = 1  # of the directory; analysis.runs.py refuses versions that it does not know
_RECORDS = ("metrics.jsonl", "timing.json", "proof.json", "summary.json")


def now() -> str:
    """UTC time to the millisecond, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def command() -> str:
    """What this process was started with, for a shell."""
    return shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]])


class RunDirectory:
    """A claimed run directory. The claim is a file lock: it ends with the process, however that ends."""

    def __init__(self, path: Path, recipe_yaml: str, facts: dict):
        """Claim `path` and write recipe.yaml and manifest.json.

        Args:
            path: created if missing. One that holds an unfinished run is taken over, its records set aside.
            recipe_yaml: the fully resolved recipe.
            facts: what else the manifest says from the start.

        Raises:
            InputError: another live process holds it, it holds a completed run, or it is no run directory.
        """
        self.path = Path(path)
        self._lock = self._claim()
        try:
            attempt = self._set_aside_unfinished(recipe_yaml, facts.get("world_size", 1))
        except InputError:
            os.close(self._lock)
            raise
        self.manifest = {
            "layout_version": LAYOUT_VERSION,
            "status": "running",
            "attempt": attempt,
            "start": now(),
            "command": command(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "python": platform.python_version(),
            "packages": dict(sorted((d.name, d.version) for d in distributions() if d.name)),  # broken ones have none
            "git": git_state(),
            **facts,
        }
        try:
            (self.path / "recipe.yaml").write_text(recipe_yaml)
            self.write_json("manifest.json", self.manifest)
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror}: make room, or choose another --out") from None

    def _claim(self) -> int:
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file: choose another --out")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror}: choose another --out") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise InputError(
                f"{self.path} is being written by another run that is alive: choose another --out, or wait for it"
            ) from None
        except OSError as error:  # some parallel file systems are mounted without locks
            logging.getLogger().warning(f"{self.path}: {error.strerror}: nothing keeps a second run out of it")
        return lock

    def _set_aside_unfinished(self, recipe_yaml: str, world_size: int) -> int:
        """Number of this attempt; the records of an earlier, unfinished one are kept under attempt<k>/."""
        strangers = {p.name for p in self.path.iterdir()} - {".lock", "log.txt"}
        if not strangers:
            return 1
        earlier = read_json(self.path / "manifest.json")
        if not earlier and "recipe.yaml" not in strangers:
            raise InputError(f"{self.path} holds files and is no run directory: choose another --out")
        if earlier.get("status") == "completed":
            raise InputError(f"{self.path} holds a completed run: choose another --out, or delete it")
        if "recipe.yaml" in strangers and _but_steps((self.path / "recipe.yaml").read_text()) != _but_steps(
            recipe_yaml
        ):
            raise InputError(
                f"{self.path} holds an unfinished run of another recipe: give the same name, overlays, seed and keys "
                "to go on with it, or choose another --out"
            )
        if earlier.get("world_size", world_size) != world_size:
            raise InputError(
                f"{self.path} holds an unfinished run of {earlier['world_size']} processes, and this one has "
                f"{world_size}: start as many, or choose another --out"
            )
        attempt = earlier.get("attempt", len(list(self.path.glob("attempt*"))) + 1)
        if not earlier and strangers.isdisjoint(_RECORDS):  # a start that was killed after this function's last line
            return attempt
        aside = self.path / f"attempt{attempt}"
        aside.mkdir(exist_ok=True)
        for name in (*_RECORDS, "manifest.json"):  # it last: while it is here, the next start goes on with this
            if (self.path / name).exists():
                (self.path / name).rename(aside / name)
        return attempt + 1

    def take_over(self, step: int) -> None:
        """Resumed from the checkpoint of `step` (0: none): take the earlier attempt's lines up to it, and its proof.

        An attempt that trains far enough writes a proof of its own.
        """
        for attempt in range(self.manifest["attempt"] - 1, 0, -1) if step else ():
            lines = [x for x in read_metrics(self.path / f"attempt{attempt}" / "metrics.jsonl") if x["step"] <= step]
            if lines:  # an attempt that died before its first step has none
                write_whole(self.path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
                if proof := read_json(self.path / f"attempt{attempt}" / "proof.json"):
                    self.write_json("proof.json", proof)
                return

    def write_json(self, name: str, content: dict) -> None:
        """Write one of the directory's JSON files."""
        write_whole(self.path / name, json.dumps(content, indent=2) + "\n")

    def finish(self, status: str, error: str | None = None) -> None:
        """Write the end into the manifest and let go of the directory.

        Args:
            status: completed, interrupted, diverged or failed.
            error: one sentence, where it did not go well.
        """
        self.manifest |= {"status": status, "end": now(), "error": error}
        self.write_json("manifest.json", self.manifest)
        os.close(self._lock)


def _but_steps(recipe_yaml: str) -> dict:
    """A resolved recipe without what may change between two attempts: how long it runs."""
    resolved = yaml.safe_load(recipe_yaml) or {}
    resolved.get("training", {}).pop("steps", None)
    return resolved


def git_state() -> dict[str, str | None]:
    """Commit of this code and what differs from it (tracked files only); None outside a git checkout."""

    def git(*args: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *args], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=20, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout

    commit = git("rev-parse", "HEAD")
    return {"commit": commit and commit.strip(), "diff": git("diff", "HEAD") or None}
