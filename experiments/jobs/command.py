"""Begin, stop and end a command: its arguments, its log, the signals that stop it, its exit code,
and its message about bad input."""

import _thread
import argparse
import ctypes
import difflib
import io
import itertools
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from experiments.records.files import RETRY_HINT, describe_full_disk
from models import gpus
from models.errors import PYTHON, InputError, explain_missing_package

EXIT_COMPLETED = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_DIVERGED = 3
EXIT_RESUME = 75  # EX_TEMPFAIL of sysexits.h
EXIT_STOPPED = 130  # a shell's exit code for Ctrl-C
# Similarity of an unknown option's name and an option's name, by difflib: 1 for the same name
SIMILAR_NAME = 0.7  # the option is suggested
MISSPELT_NAME = 0.9  # the option is suggested, and no key
# Options that only one command has
OPTIONS_BY_COMMAND = {
    "analysis.report": ("--html", "--json", "--reference"),
    "experiments.study": ("--seeds",),
    "experiments.run": ("--seed",),
    "experiments.recipe": ("--all",),
}
PROJECT_PACKAGES = ("analysis", "experiments", "extensions", "models")


# ---- arguments ----


class CommandLine(argparse.ArgumentParser):
    """A command's arguments. Its help is the docstring of its module.

    `takes_keys`: the command takes `key.path=value` of recipes.
    """

    def __init__(self, module: str, docstring: str, takes_keys: bool = False):
        super().__init__(
            prog=f"python -m {module}",
            description=docstring,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.takes_keys = takes_keys

    def parse_arguments(self, argv: list[str] | None) -> argparse.Namespace:
        """Parse arguments. Options may stand between a recipe and its keys. Raises `InputError`."""
        words = sys.argv[1:] if argv is None else argv
        self._check_options(words)
        args, unknown = self.parse_known_intermixed_args(words)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        if self.takes_keys:
            _warn_of_repeated_keys(words)
        return args

    def _check_options(self, words: list[str]) -> None:
        """Refuse unknown options, and suggest options, keys and commands. Raises `InputError`."""
        unknown = []
        suggested_options = []
        suggested_keys = []
        suggested_commands = []
        for word, next_word in itertools.zip_longest(words, words[1:]):
            is_number = re.match(r"-[.\d]", word)
            if is_number or not re.match("--?[^-]", word):
                continue
            if word.partition("=")[0] in self._option_string_actions:
                continue
            unknown.append(word)
            option = self._find_similar_option(word, SIMILAR_NAME)
            is_misspelt = self._find_similar_option(word, MISSPELT_NAME) is not None
            key = None
            if self.takes_keys and not is_misspelt:
                from experiments.config.options import translate_option

                key = translate_option(word, next_word)
            if key:
                suggested_keys.append(key)
            elif option:
                suggested_options.append(option)
            else:
                suggested_commands += _name_commands(word)
        if not unknown:
            return
        sentence = f"unrecognized arguments: {' '.join(unknown)}"
        if suggested_options:
            sentence += f"; take {' '.join(suggested_options)}"
        if suggested_keys:
            sentence += f"; keys have no dashes: {' '.join(suggested_keys)}"
        elif suggested_commands:
            sentence += f"; {', '.join(suggested_commands)}"
        elif self.takes_keys and not suggested_options:
            sentence += "; keys have no dashes, as training.steps=200"
        self.error(sentence)

    def _find_similar_option(self, word: str, min_similarity: float) -> str | None:
        """Find the option of this command that is most similar to a word with dashes."""
        name = word.partition("=")[0].replace("_", "-")
        options = [option for option in self._option_string_actions if option.startswith("--")]
        matches = difflib.get_close_matches(name, options, 1, cutoff=min_similarity)
        return matches[0] if matches else None

    def add_recipe(self, nargs: str | None = None) -> None:
        """Add a recipe's name, its overlays and keys."""
        self.takes_keys = True
        self.add_argument(
            "name",
            nargs=nargs,
            metavar="RECIPE",
            help="a recipe, as `experiments.recipe list` names them, or the path of a recipe.yaml",
        )
        self.add_overlays()
        self.add_argument(
            "overrides",
            nargs="*",
            default=[],
            metavar="key.path=value",
            help="e.g. training.steps=200",
        )

    def add_overlays(self) -> None:
        """Add the repeatable option `--overlay`."""
        self.add_argument(
            "--overlay",
            action="append",
            default=[],
            metavar="O",
            help="where or how big, e.g. cpu, in place of a study's; may be repeated",
        )

    def error(self, message: str) -> NoReturn:
        """Raise argparse's message as `InputError`."""
        raise InputError(f"{message}; -h lists arguments, options and keys")


def _warn_of_repeated_keys(words: list[str]) -> None:
    """Warn of a key with two values in one command: the last value counts."""
    value_by_key: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or word.startswith("-"):
            continue
        if value_by_key.get(key, value) != value:
            logging.getLogger().warning(f"{key} is given twice: {word} counts")
        value_by_key[key] = value


def _name_commands(word: str) -> list[str]:
    """Name the command that has an option, in a part of a sentence; empty if none has it."""
    option = word.partition("=")[0]
    return [
        f"{option} is an option of `{PYTHON} -m {command}`"
        for command, options in OPTIONS_BY_COMMAND.items()
        if option in options
    ]


def parse_seeds(text: str) -> list[int]:
    """Parse `--seeds`: a number of seeds, which count from 0, or a list with a comma. Raises
    ArgumentTypeError."""
    if re.fullmatch(r"[1-9]\d?", text):
        return [*range(int(text))]
    if re.fullmatch(r"(\d{1,18},)+(\d{1,18})?", text):
        return [int(seed) for seed in text.split(",") if seed]
    raise argparse.ArgumentTypeError(
        f"expected 1 to 99, as 3 for seeds 0, 1 and 2, or a list with a comma, got {text}"
    )


def parse_gpu(text: str) -> str:
    """Parse `--gpu`: any name of a GPU of models/gpus.py. Returns its key. Raises
    ArgumentTypeError."""
    key = gpus.find(text)
    if key is None:
        raise argparse.ArgumentTypeError(gpus.explain_unknown_gpu(text))
    return key


def require_single_process() -> None:
    """Refuse to be one of several processes that torchrun started. Raises `InputError`.

    Only the environment variable WORLD_SIZE is looked at.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError(
            "WORLD_SIZE is set, as under torchrun, and this takes one process: unset it, or start "
            "this without torchrun"
        )


def configure_log(file: Path | None, line_filter: logging.Filter | None = None) -> None:
    """Send the log to a file and to the screen; without a file, only warnings to the screen.

    `line_filter` selects and corrects the lines. Raises OSError.
    """
    screen = logging.StreamHandler(sys.stdout)
    handlers: list[logging.Handler] = [screen]
    if file:
        handlers.append(logging.FileHandler(file, encoding="utf-8"))
    else:
        screen.setLevel(logging.WARNING)
    if line_filter:
        for handler in handlers:
            handler.addFilter(line_filter)
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
        level="INFO",
        handlers=handlers,
        force=True,
    )
    logging.captureWarnings(True)
    logging.raiseExceptions = False  # on a full disk the run goes on without lines in its log


# ---- requests to stop ----
#
# SIGUSR1 (a cluster's time limit is near) ends a run or a study with EXIT_RESUME: its starter may
# start it again. SIGTERM and SIGINT (Ctrl-C) end it with EXIT_STOPPED. Training ends
# after its current step. Before the first step there is nothing to save, so a request ends the
# process at once; so does a second Ctrl-C at any time.

# A variable in the environment of the processes of a study or a run: the id of the process that
# they must not outlive
STARTER_PID = "STARTER_PID"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Interrupted(Exception):
    """Training ended after a step because of a request to stop; the process ends with
    `exit_code`."""

    def __init__(self, exit_code: int, sentence: str):
        super().__init__(sentence)
        self.exit_code = exit_code


class StopRequest:
    """The first request to stop: `exit_code` is 0, EXIT_RESUME or EXIT_STOPPED."""

    def __init__(self):
        # True while a request waits until `exit_code` is read, by training after a step or by
        # `run_all`. While False, a request ends the process at once.
        self.waits_for_step_end = False
        self.exit_code = 0
        self.signal_name = ""
        self._requested_at = 0.0

    def listen(self) -> None:
        """Handle SIGINT, SIGTERM and SIGUSR1. A program calls this before it has other threads."""
        # SIGUSR1 is blocked, and a thread waits for it. Children inherit the block: a cluster may
        # signal every process of a job, and a compile worker would die of it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        threading.Thread(target=_forward_usr1, daemon=True).start()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self.handle)
        starter_pid = os.environ.get(STARTER_PID)
        if starter_pid:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if starter_pid != str(os.getppid()):  # the starter has died already
                sys.exit(EXIT_STOPPED)

    def handle(self, number: int, frame) -> None:
        """Record a request; raise KeyboardInterrupt unless it waits for the end of a step.

        The first request decides on the exit code: a cluster may send SIGTERM after SIGUSR1. A
        second Ctrl-C does not wait. A study passes it on as SIGINT; without a study, a SIGINT
        within a second is the same Ctrl-C by another way.
        """
        has_study = STARTER_PID in os.environ
        is_same_ctrl_c = not has_study and time.monotonic() <= self._requested_at + 1
        is_second_ctrl_c = self.exit_code and number == signal.SIGINT and not is_same_ctrl_c
        if not self.exit_code:
            self.exit_code = EXIT_RESUME if number == signal.SIGUSR1 else EXIT_STOPPED
            self.signal_name = signal.Signals(number).name
            self._requested_at = time.monotonic()
        if is_second_ctrl_c or not self.waits_for_step_end:
            # The next request must not disturb the end that this one begins
            self.waits_for_step_end = True
            raise KeyboardInterrupt(self.exit_code)


def _forward_usr1() -> None:
    signal.sigwait({signal.SIGUSR1})
    _thread.interrupt_main(signal.SIGUSR1)


# ---- the end ----


class _UncheckedOutput(io.FileIO):
    """A file whose errors are not raised: a closed pipe ends no training."""

    def write(self, data) -> int:
        with suppress(OSError):
            return super().write(data)
        return len(data)


def run_command(command: Callable[[], int]) -> int:
    """Run a command; return its exit code. Prints a sentence about bad input."""
    try:
        return command()
    except InputError as error:
        message = str(error)
    except OSError as error:
        message = _describe_system_error(error)
    except ImportError as error:  # files are missing, as on a scratch file system that is cleaned
        package = (error.name or "").partition(".")[0]
        if package in PROJECT_PACKAGES:
            raise
        message = explain_missing_package(error)
    except KeyboardInterrupt as interrupt:  # with the exit code of a `StopRequest` that listens
        print("stopped", file=sys.stderr)
        return interrupt.args[0] if interrupt.args else EXIT_STOPPED
    print(f"error: {message}", file=sys.stderr)
    return EXIT_BAD_INPUT


def _describe_system_error(error: OSError) -> str:
    """Say what the system refused, and what to do."""
    disk = describe_full_disk(error, [Path()])
    if disk:
        return f"{disk}: {RETRY_HINT}"
    place = error.filename or "the system"
    reason = error.strerror or error  # an error of a library may have only a text
    return f"{place}: {reason}: fix that, or choose another"


def exit_with(command: Callable[[], int]) -> NoReturn:
    """Run a command, and end the process with its exit code, without Python's clean-up.

    The clean-up can wait for 300 s for inductor's pool of compile workers (pytorch issue 162199),
    and with several ranks gloo sometimes aborts in it. The pool ends by itself once its pipe is
    closed.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        output = io.BufferedWriter(_UncheckedOutput(stream.fileno(), "w", closefd=False))
        # "backslashreplace": a locale may lack a letter
        text = io.TextIOWrapper(output, stream.encoding, "backslashreplace", line_buffering=True)
        setattr(sys, name, text)
    try:
        exit_code = run_command(command)
    except Exception:
        sys.excepthook(*sys.exc_info())
        exit_code = EXIT_FAILED
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
