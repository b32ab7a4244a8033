"""For tests that start runs: from where, with which keys, and what a run directory holds."""

import contextlib
import io
import json
import os
import resource
from pathlib import Path
from unittest.mock import patch

from torchtitan.distributed import ParallelDims

from experiments.jobs.command import run_command
from experiments.records.run import Attempt, Proof, RunRecord, read_log
from models.float8 import EMULATED, choose_matmul
from models.scaling import SCALINGS

TINY = ["training.steps=4", "training.seq_len=64", "training.local_batch_size=1"]
SMALL = ["training.seq_len=128", "training.local_batch_size=2"]
SMALLEST = "model.sizes={dim: 64, n_layers: 1, n_heads: 4, n_kv_heads: 2, hidden_dim: 96}"
ONE_DEVICE = ParallelDims(dp_replicate=1, dp_shard=1, cp=1, tp=1, pp=1, ep=1, etp=1, world_size=1)


def lines_of(run: Path) -> list[dict]:
    """Those of metrics.jsonl; none before it is there."""
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def record_of(run: Path) -> dict:
    return json.loads((run / "run.json").read_text())


def attempt_of(run: Path) -> dict:
    """The last attempt on record."""
    return record_of(run)["attempts"][-1]


def proof_of(run: Path) -> Proof:
    return RunRecord.read(run / "run.json").proof


def change_record(run: Path, **values) -> None:
    """Change values of a run's record, or of its last attempt."""
    record = record_of(run)
    for name, value in values.items():
        changed = record["attempts"][-1] if name in Attempt.model_fields else record
        changed[name] = value
    (run / "run.json").write_text(json.dumps(record))


def kill(run: Path) -> None:
    """Make a run look as if it was killed between its last step and its end."""
    change_record(run, status="running")


def call(main, *arguments) -> tuple[int, str]:
    """(exit code, what was printed) of a command, called in this process; a study's runs are
    processes of their own."""
    printed = io.StringIO()
    with (
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        patch.dict(os.environ),
    ):
        code = run_command(lambda: main([*map(str, arguments)]))
    return code, printed.getvalue()


def losses_of(run: Path) -> list[float]:
    """One a step; the last one of a step that was made again."""
    losses = {}
    for interval in read_log(run / "metrics.jsonl"):
        losses |= zip(interval.steps, interval.losses, strict=True)
    return [losses[step] for step in sorted(losses)]


def read_curve(run: Path, name: str) -> list[float]:
    """The values of a curve in TensorBoard's files of a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [folder] = (run / "tb").iterdir()
    curves = EventAccumulator(str(folder)).Reload()
    return [event.value for event in curves.Scalars(name)]


def proves_its_fp8(proof: Proof) -> None:
    """All converted layers ran in FP8; or none did, where this machine has to emulate it, as
    scales of rows on a CPU with torch 2.11."""
    emulated = choose_matmul(SCALINGS[proof.recipe_name], emulate=False).kind == EMULATED
    assert proof.emulated == emulated and proof.fp8_flops_expected > 0
    if emulated:
        assert proof.fp8_flops == 0
    else:
        assert proof.fp8_flops >= proof.fp8_flops_expected


@contextlib.contextmanager
def room_for(size: int):
    """Let a limit on file sizes stand in for a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
