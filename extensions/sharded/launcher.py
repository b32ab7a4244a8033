"""Start the processes of a run by torch's launcher, as torchrun does, and end them together."""

import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from torch.distributed.elastic.agent.server import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from torch.numa.binding import AffinityMode, NumaOptions

from experiments.jobs.command import EXIT_COMPLETED, EXIT_FAILED, STARTER_PID, StopRequest
from experiments.jobs.runner import find_numa_command, list_visible_gpus
from experiments.records.files import make_run_folder
from models.errors import InputError

# What the launcher logs is printed here in fewer words
launcher_log = logging.getLogger("torch.distributed.elastic")
launcher_log.addHandler(logging.NullHandler())
launcher_log.propagate = False


def start(recipe, arguments: list[str], out: Path | None, stop: StopRequest) -> int | None:
    """Start this machine's ranks of a run with the arguments of this process; wait for them.

    Two variables are torchrun's. WORLD_SIZE is set in a rank. PET_RDZV_ENDPOINT stands for its
    `--rdzv-endpoint`, HOST:PORT of the first of several nodes; each node has a rank for each GPU.

    Returns:
        The exit code, or None if this process is a rank.

    Raises:
        InputError: the number of processes does not suit WORLD_SIZE or the GPUs; or `--out` is
            missing, and each rank or node would make a folder of its own.
    """
    world_size = recipe.config.sharded.processes
    started = os.environ.get("WORLD_SIZE", "1")
    endpoint = os.environ.get("PET_RDZV_ENDPOINT")
    if started not in ("1", str(world_size)):
        raise InputError(
            f"sharded.processes is {world_size}, and WORLD_SIZE={started} were started: say "
            f"sharded.processes={started}"
        )
    if world_size > 1 and not out and (started != "1" or endpoint):
        raise InputError("a run of several processes needs --out DIR, one for all of them")
    if started == str(world_size):
        prepare_rank(recipe.config, stop)
        return None
    visible_gpus = list_visible_gpus()
    n_ranks = len(visible_gpus) if endpoint else world_size
    if world_size % n_ranks or (visible_gpus != [None] and n_ranks > len(visible_gpus)):
        raise InputError(
            f"a run takes {world_size} GPUs, and {len(visible_gpus)} are here: have it take fewer "
            "(on several nodes, a multiple), or start it where there are as many"
        )
    if not out:
        out = make_run_folder(recipe.name, recipe.config.debug.seed)
        arguments = [*arguments, "--out", str(out)]
    rendezvous = meet(world_size // n_ranks, endpoint, recipe.config.comm.init_timeout_seconds)
    return launch(["experiments.run", *arguments], n_ranks, rendezvous, stop)


def meet(n_nodes: int, endpoint: str | None, timeout_s: int) -> RendezvousParameters:
    """Have the launchers of all nodes meet at HOST:PORT; None: one node, and any free port."""
    return RendezvousParameters(
        backend="c10d",
        endpoint=endpoint or "localhost:0",
        run_id="run",
        min_nodes=n_nodes,
        max_nodes=n_nodes,
        local_addr=None if endpoint else "localhost",
        join_timeout=timeout_s,
        read_timeout=timeout_s,
    )


def launch(
    command: Sequence[str], n_ranks: int, rendezvous: RendezvousParameters, stop: StopRequest
) -> int:
    """Run `python -m COMMAND` as `n_ranks` ranks on this machine; return the exit code of the first
    that failed, or 0.

    The machine's first rank prints here. The output of another rank follows if that fails first.
    """
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGQUIT"  # `forward_signals` has the others
    n_threads = max(1, len(os.sched_getaffinity(0)) // n_ranks)
    os.environ.setdefault("OMP_NUM_THREADS", str(n_threads))
    numa_options = None
    if find_numa_command(list_visible_gpus()[0]):
        numa_options = NumaOptions(AffinityMode.NODE, should_fall_back_if_binding_fails=True)
    words = [word.replace("$", "$$") for word in command]  # "$" begins a variable of the launcher
    with TemporaryDirectory(prefix="ranks-") as folder:
        output = DefaultLogsSpecs(folder, redirects=dict.fromkeys(range(1, n_ranks), Std.ALL))
        try:
            spec = WorkerSpec(
                role="rank",
                local_world_size=n_ranks,
                rdzv_handler=get_rendezvous_handler(rendezvous),
                entrypoint="env",  # sets a variable for the ranks alone
                args=(f"{STARTER_PID}={os.getpid()}", sys.executable, "-m", *words),
                max_restarts=0,
                monitor_interval=0.05,
                numa_options=numa_options,
            )
            agent = LocalElasticAgent(spec, output)
            forward_signals(agent, stop)
            failures = agent.run().failures
        except RendezvousError as error:
            print(f"error: the nodes of the run do not meet: {error}", file=sys.stderr)
            return stop.exit_code or EXIT_FAILED
        return report_failure(failures, Path(folder), stop) if failures else EXIT_COMPLETED


def report_failure(failures: Mapping[int, ProcessFailure], folder: Path, stop: StopRequest) -> int:
    """Print why the rank that failed first has failed; return its exit code.

    Args:
        failures: rank -> failure.
        folder: of the launcher's files, which hold what ranks have printed.
    """
    rank, failure = ChildFailedError("ranks", failures).get_first_failure()
    code = failure.exitcode
    printed = [each.exitcode for each in failures.values() if each.local_rank == 0]
    if failure.local_rank and (code <= EXIT_FAILED or printed != [code]):
        print(f"---- output of rank {rank}, which failed first ----", file=sys.stderr)
        for file in sorted(folder.glob(f"*/*/{failure.local_rank}/std*.log")):
            print(file.read_text("utf-8", errors="replace"), end="", file=sys.stderr)
    if code > 0:
        return code
    print(f"rank {rank} was killed by {failure.signal_name()}", file=sys.stderr)
    return stop.exit_code or EXIT_FAILED


# ---- requests to stop ----
#
# torch's launcher ends with exit code 1 when it is asked to stop, whatever its ranks end with. So
# requests go to the ranks, and the launcher waits for them. When one rank has failed, the launcher
# sends SIGTERM to the other ranks, and SIGKILL after 30 s. A rank ignores this SIGTERM: the rank
# will fail too, and records why. A request to stop by SIGTERM reaches a rank as SIGUSR2.


def forward_signals(agent: LocalElasticAgent, stop: StopRequest) -> None:
    """Have the first request to stop, and a second Ctrl-C, reach the ranks."""

    def forward(number: int, frame) -> None:
        process_ids = [worker.id for worker in agent.get_worker_group().workers if worker.id]
        is_accepted = not stop.exit_code
        if is_accepted:  # before there are ranks, a request ends this process
            stop.waits_for_step_end = bool(process_ids)
        try:
            stop.handle(number, frame)
        except KeyboardInterrupt:
            is_accepted = True
            raise
        finally:
            for process_id in process_ids if is_accepted else ():
                with suppress(ProcessLookupError):
                    os.kill(process_id, signal.SIGUSR2 if number == signal.SIGTERM else number)

    for number in signal.SIGINT, signal.SIGTERM, signal.SIGUSR1:
        signal.signal(number, forward)


def prepare_rank(config, stop: StopRequest) -> None:
    """Set what NCCL reads, and what the launcher's signals mean."""
    if config.comm.nccl_max_ctas:  # read when a communicator is created
        os.environ["NCCL_MAX_CTAS"] = str(config.comm.nccl_max_ctas)
    launcher = os.getppid()

    def handle(number: int, frame) -> None:
        if number == signal.SIGUSR2 or os.getppid() != launcher:  # the launcher has died
            stop.handle(signal.SIGTERM, frame)

    signal.signal(signal.SIGUSR2, handle)
    if config.sharded.processes > 1 and os.environ.get(STARTER_PID) == str(launcher):
        signal.signal(signal.SIGTERM, handle)  # else a study or torchrun asks by SIGTERM
