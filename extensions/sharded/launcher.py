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
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from torch.numa.binding import AffinityMode, NumaOptions

from experiments.jobs.command import COMPLETED, FAILED, STARTER_PID, Stop
from experiments.jobs.runner import binding, gpus
from experiments.records.files import run_folder
from models.errors import InputError

# The launcher's log repeats what is printed here
logging.getLogger("torch.distributed.elastic").addHandler(logging.NullHandler())
logging.getLogger("torch.distributed.elastic").propagate = False


def start(recipe, arguments: list[str], out: Path | None, stop: Stop) -> int | None:
    """Start this node's processes of a run with the arguments of this one, and wait for them.

    The variables PET_NNODES and PET_RDZV_ENDPOINT are torchrun's, for `--nnodes` and
    `--rdzv-endpoint`. Returns the exit code, or None if this process is a rank: torchrun's
    variable WORLD_SIZE tells.

    Raises:
        InputError: the number of processes does not suit the machine, the nodes or WORLD_SIZE; or
            several starters or ranks have no `--out`.
    """
    config = recipe.config
    world_size = config.sharded.processes
    started = os.environ.get("WORLD_SIZE", "1")
    if started not in ("1", str(world_size)):
        raise InputError(
            f"sharded.processes is {world_size}, and WORLD_SIZE={started} were started: say "
            f"sharded.processes={started}"
        )
    is_rank = started == str(world_size)
    n_nodes = 1 if is_rank else _read_nodes(world_size)
    if not out and world_size > 1 and (is_rank or n_nodes > 1):  # each would make a folder
        raise InputError("a run of several processes needs --out DIR, one for all of them")
    if is_rank:
        if world_size > 1:
            _prepare_rank(config, stop)
        return None
    n_ranks = world_size // n_nodes
    visible_gpus = gpus()
    if visible_gpus != [None] and n_ranks > len(visible_gpus):
        raise InputError(
            f"a run takes {n_ranks} GPUs, and {len(visible_gpus)} are here: have it take fewer, "
            "or start it where there are as many"
        )
    if not out:
        out = run_folder(recipe.name, config.debug.seed)
        arguments = [*arguments, "--out", str(out)]
    rendezvous = meet(n_nodes, config.comm.init_timeout_seconds)
    return launch(["experiments.run", *arguments], n_ranks, rendezvous, stop)


def meet(n_nodes: int = 1, timeout_s: int = 300) -> RendezvousParameters:
    """Say where the launchers of all nodes meet: at torchrun's PET_RDZV_ENDPOINT, HOST:PORT."""
    endpoint = "localhost:0"  # any free port
    local_address = "localhost"
    if n_nodes > 1:
        endpoint = os.environ["PET_RDZV_ENDPOINT"]
        local_address = None  # the node's name
    return RendezvousParameters(
        backend="c10d",
        endpoint=endpoint,
        run_id="run",
        min_nodes=n_nodes,
        max_nodes=n_nodes,
        local_addr=local_address,
        join_timeout=timeout_s,
        read_timeout=timeout_s,
    )


def launch(
    command: Sequence[str], n_ranks: int, rendezvous: RendezvousParameters, stop: Stop
) -> int:
    """Run `python -m COMMAND` as `n_ranks` ranks on this node; return the exit code of the first
    that failed, or 0.

    The node's first rank prints here. The output of another rank follows if that one fails first.
    """
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGQUIT"  # `_forward_signals` has the others
    variables = [f"{STARTER_PID}={os.getpid()}"]
    if "OMP_NUM_THREADS" not in os.environ:  # ranks share the cores
        n_threads = max(1, len(os.sched_getaffinity(0)) // n_ranks)
        variables.append(f"OMP_NUM_THREADS={n_threads}")
    words = [*variables, sys.executable, "-m", *command]
    numa_options = None
    if binding(gpus()[0]):
        numa_options = NumaOptions(AffinityMode.NODE, should_fall_back_if_binding_fails=True)
    with TemporaryDirectory(prefix="ranks-") as folder:
        spec = WorkerSpec(
            role="rank",
            local_world_size=n_ranks,
            rdzv_handler=get_rendezvous_handler(rendezvous),
            entrypoint="env",
            args=tuple(word.replace("$", "$$") for word in words),  # the launcher fills templates
            max_restarts=0,
            monitor_interval=0.05,
            numa_options=numa_options,
        )
        to_files = dict.fromkeys(range(1, n_ranks), Std.ALL)
        agent = LocalElasticAgent(spec, DefaultLogsSpecs(folder, to_files))
        _forward_signals(agent, stop)
        try:
            result = agent.run()
        except RendezvousError as error:
            print(f"error: the nodes of the run lost one another: {error}", file=sys.stderr)
            return stop.code or FAILED
        if not result.is_failed():
            return COMPLETED
        return _report_failure(result.failures, Path(folder), stop)


def _report_failure(failures: Mapping[int, ProcessFailure], folder: Path, stop: Stop) -> int:
    """Print why the first of the failed ranks failed; return its exit code.

    Args:
        failures: global rank -> failure, as of torch's launcher.
        folder: of the launcher's files, which hold what ranks have printed.
    """
    first = min(failures, key=lambda rank: failures[rank].timestamp)
    failure = failures[first]
    code = failure.exitcode
    codes = {each.local_rank: each.exitcode for each in failures.values()}
    is_agreed = code > FAILED and code == codes.get(0)  # the node's first rank has printed why
    if failure.local_rank and not is_agreed:
        print(f"---- output of rank {first}, which failed first ----", file=sys.stderr)
        for file in sorted(folder.glob(f"*/*/{failure.local_rank}/std*.log")):
            print(file.read_text("utf-8", errors="replace"), end="", file=sys.stderr)
    if code > 0:
        return code
    print(f"rank {first} was killed by {failure.signal_name()}", file=sys.stderr)
    return stop.code or FAILED


# ---- requests to stop ----
#
# torch's launcher cannot be asked to stop: it would end with exit code 1, whatever its ranks end
# with. So requests go to the ranks, and the launcher waits for these. It sends SIGTERM to the other
# ranks at once when one has failed, and SIGKILL after 30 s. This must not look like a request: the
# others fail too, and put on record why. So a request by SIGTERM reaches the ranks as SIGUSR2.

SIGNAL_TO_RANKS = {
    signal.SIGINT: signal.SIGINT,
    signal.SIGTERM: signal.SIGUSR2,
    signal.SIGUSR1: signal.SIGUSR1,
}


def _forward_signals(agent: LocalElasticAgent, stop: Stop) -> None:
    """Have the first request, and a second Ctrl-C, go to the ranks."""

    def send(number: int) -> None:
        for worker in agent.get_worker_group().workers:
            if worker.id:  # of the process, once it has started
                with suppress(ProcessLookupError):
                    os.kill(worker.id, number)

    def forward(number: int, frame) -> None:
        is_first = not stop.code
        if is_first:  # before the ranks have started, a request ends this process
            stop.deferred = all(worker.id for worker in agent.get_worker_group().workers)
        try:
            stop.handle(number, frame)
        except KeyboardInterrupt:
            send(signal.SIGINT)
            raise
        if is_first:
            send(SIGNAL_TO_RANKS[number])

    for number in SIGNAL_TO_RANKS:
        signal.signal(number, forward)


def _prepare_rank(config, stop: Stop) -> None:
    """Prepare this process to be a rank."""
    if config.comm.nccl_max_ctas:  # read when a communicator is created
        os.environ["NCCL_MAX_CTAS"] = str(config.comm.nccl_max_ctas)
    launcher = os.getppid()
    if os.environ.get(STARTER_PID) != str(launcher):  # torchrun, whose SIGTERM may be a request
        return

    def end_after_launcher(number: int, frame) -> None:
        if os.getppid() != launcher:
            stop.handle(number, frame)

    signal.signal(signal.SIGTERM, end_after_launcher)
    signal.signal(signal.SIGUSR2, lambda number, frame: stop.handle(signal.SIGTERM, frame))


def _read_nodes(world_size: int) -> int:
    """Read torchrun's PET_NNODES: how many nodes share the ranks evenly. Raises `InputError`."""
    text = os.environ.get("PET_NNODES", "1")
    if not text.isdecimal() or int(text) < 1 or world_size % int(text):
        raise InputError(
            f"PET_NNODES={text}: expected a number of nodes that divides sharded.processes, "
            f"{world_size}"
        )
    if int(text) > 1 and "PET_RDZV_ENDPOINT" not in os.environ:
        raise InputError(
            f"PET_NNODES={text} needs PET_RDZV_ENDPOINT=HOST:PORT, a free port of the first node"
        )
    return int(text)
