"""One run over two nodes of a real Slurm, by CPU processes."""

import pytest

from tests import processes
from tests.launch.jobs import on_slurm, record_of, slurm, steps_of, submit
from tests.runs import TINY

JOB = "extensions/sharded/alps_multinode.sbatch"
STEPS = 20


def test_a_run_of_one_process_is_another_job():
    """Without its number of processes the recipe for several GPUs would be refused."""
    done = processes.run(["bash", JOB, "--dry-run", "tensorwise_fp8_allgather"], check=False)
    assert done.returncode == 2 and "launch/alps_fp8.sbatch --dry-run" in done.stderr


@on_slurm
def test_two_nodes_stop_together_are_requeued_and_go_on(slurm_folder):
    keys = [*TINY, "--overlay", "cpu", f"training.steps={STEPS}", "compile.enable=false"]
    keys += ["model.sizes.n_layers=1", "checkpoint.enable=true", "metrics.enable_tensorboard=false"]
    job = submit(slurm_folder, "--gpus-per-node=1", JOB, "tensorwise_fp8_allgather", *keys)
    run = job.run("", "fp8-multinode")
    job.until(lambda: len(steps_of(run)) > 2)
    slurm("scancel", "--signal=USR1", job.number)
    assert job.end() == "COMPLETED 0:0, 1 restarts", job.log()
    record = record_of(run)
    statuses = [attempt.status for attempt in record.attempts]
    assert (statuses, record.world_size) == (["interrupted", "completed"], 2)
    assert steps_of(run) == [*range(1, STEPS + 1)]
    assert record.proof.fp8_share == pytest.approx(3 / 7)
