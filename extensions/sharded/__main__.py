"""Run one recipe in several processes, a GPU each.

    python -m extensions.sharded NAME --processes 2 …

It is short for `python -m experiments.run NAME sharded.processes=2 …`, whose other arguments it
takes too.
"""

from experiments import run
from experiments.jobs.command import CommandLine, exit_with


def main(argv: list[str] | None = None) -> int:
    """Run with the number of processes as a key. Raises `InputError`."""
    parser = CommandLine("extensions.sharded", __doc__)
    parser.add_argument("--processes", metavar="N", required=True, help="one a GPU")
    args, run_arguments = parser.parse_known_args(argv)
    return run.main([*run_arguments, f"sharded.processes={args.processes}"])


if __name__ == "__main__":
    exit_with(main)
