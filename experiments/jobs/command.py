"""Begin, stop and end a command: its arguments and log, the signals it obeys, its exit code, and
its sentence about bad input."""

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

from experiments.records.files import AGAIN, full_disk
from models import gpus
from models.errors import REINSTALL, InputError

COMPLETED, FAILED, BAD_INPUT, DIVERGED = 0, 1, 2, 3
COME_BACK, FOR_GOOD = 75, 130  # EX_TEMPFAIL of sysexits.h; a shell's for Ctrl-C
OWN_PACKAGES = ("analysis", "experiments", "extensions", "models")


# ---- its arguments ----


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

    def parse(self, argv: list[str] | None) -> argparse.Namespace:
        """Read arguments. Options may stand between a recipe and its keys. Raises `InputError`."""
        words = sys.argv[1:] if argv is None else argv
        self._check_options(words)
        args, unknown = self.parse_known_intermixed_args(words)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return args

    def _check_options(self, words: list[str]) -> None:
        """Refuse unknown options, with what was meant. Raises `InputError`."""
        unknown, options, keys = [], [], []
        for word, following in itertools.zip_longest(words, words[1:]):
            is_number = re.match(r"-[.\d]", word)
            if is_number or not re.match("--?[^-]", word):
                continue
            if word.partition("=")[0] in self._option_string_actions:
                continue
            unknown.append(word)
            option, key = self._suggest(word, following)
            options += [option] if option else []
            keys += [key] if key else []
        if not unknown:
            return
        sentence = f"unrecognized arguments: {' '.join(unknown)}"
        if options:
            sentence += f"; take {' '.join(options)}"
        if keys:
            sentence += f"; keys have no dashes: {' '.join(keys)}"
        elif self.takes_keys and not options:
            sentence += "; keys have no dashes, as training.steps=200"
        self.error(sentence)

    def _suggest(self, word: str, following: str | None) -> tuple[str | None, str | None]:
        """Suggest an option of this command, or a key, for a word with dashes."""
        name = word.partition("=")[0].replace("_", "-")
        options = [option for option in self._option_string_actions if option.startswith("--")]
        same = difflib.get_close_matches(name, options, 1, cutoff=0.9)
        similar = difflib.get_close_matches(name, options, 1, cutoff=0.7)
        if self.takes_keys and not same:
            from experiments.config.options import translate_option

            key = translate_option(word, following)
            if key:
                return None, key
        return (similar[0] if similar else None), None

    def add_recipe(self, nargs: str | None = None) -> None:
        """Add a recipe's name, its overlays and keys."""
        add = self.add_argument
        self.takes_keys = True
        what = "a recipe, as `experiments.recipe list` names them, or the path of a recipe.yaml"
        add("name", nargs=nargs, metavar="RECIPE", help=what)
        self.add_overlays()
        what = "e.g. training.steps=200"
        add("overrides", nargs="*", default=[], metavar="key.path=value", help=what)

    def add_overlays(self) -> None:
        """Add the repeatable option `--overlay`."""
        what = "where or how big, e.g. cpu, in place of a study's; may be repeated"
        self.add_argument("--overlay", action="append", default=[], metavar="O", help=what)

    def error(self, message: str) -> NoReturn:
        """Raise argparse's message as `InputError`."""
        raise InputError(f"{message}; -h lists arguments, options and keys")


def seeds(text: str) -> list[int]:
    """Read `--seeds`: how many of them, from 0; or a list, with a comma. Raises
    ArgumentTypeError."""
    if re.fullmatch(r"[1-9]\d?", text):
        return [*range(int(text))]
    if re.fullmatch(r"(\d{1,18},)+(\d{1,18})?", text):
        return [int(seed) for seed in text.split(",") if seed]
    raise argparse.ArgumentTypeError(
        f"expected 1 to 99, as 3 for seeds 0, 1 and 2, or a list with a comma, got {text}"
    )


def gpu_key(text: str) -> str:
    """Read `--gpu`: any name of a GPU of models/gpus.py. Returns its key. Raises
    ArgumentTypeError."""
    key = gpus.find_gpu(text)
    if key is None:
        raise argparse.ArgumentTypeError(gpus.explain_unknown_gpu(text))
    return key


def require_single_process() -> None:
    """Refuse to be one of several processes started by torchrun. Raises `InputError`.

    The environment variable WORLD_SIZE tells; no other process is looked for.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError(
            "WORLD_SIZE is set, as under torchrun, and this takes one process: unset it, or start "
            "this without torchrun"
        )


def log_to(file: Path | None, lines: logging.Filter | None = None) -> None:
    """Send the log to a file and to the screen; without a file, only warnings to the screen.

    `lines` chooses and corrects the lines. Raises OSError.
    """
    screen = logging.StreamHandler(sys.stdout)
    handlers = [screen]
    if file:
        handlers.append(logging.FileHandler(file, encoding="utf-8"))
    else:
        screen.setLevel(logging.WARNING)
    for handler in handlers if lines else ():
        handler.addFilter(lines)
    line, date = "%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"
    logging.basicConfig(format=line, datefmt=date, level="INFO", handlers=handlers, force=True)
    logging.captureWarnings(True)
    logging.raiseExceptions = False  # on a full disk the run goes on without lines in its log


# ---- asked to stop ----
#
# SIGUSR1 (a cluster's time limit is near) ends a run or a study with COME_BACK: whoever started it
# may start it again. SIGTERM and SIGINT (Ctrl-C) end it with FOR_GOOD. Training
# ends at its next step boundary. Before the first step there is nothing to save, so a request ends
# the process at once; so does a second Ctrl-C at any time.

# In the environment of what a study or a run starts: the process that it must not outlive.
STARTER_PID = "STARTER_PID"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Interrupted(Exception):
    """Training ended at a step boundary because it was asked to; `code` is the exit code."""

    def __init__(self, code: int, sentence: str):
        super().__init__(sentence)
        self.code = code


class Stop:
    """The first request to end: `code` is 0, COME_BACK or FOR_GOOD; `why` the signal."""

    def __init__(self):
        # True while somebody reads `code`: training at a step's end, or `run_all`. Else a request
        # ends the process at once.
        self.deferred = False
        self.code, self.why = 0, ""
        self._asked_at = 0.0

    def listen(self) -> None:
        """Take over SIGINT, SIGTERM and SIGUSR1. Called first in a program, before there are other
        threads."""
        # SIGUSR1 is blocked, and a thread waits for it. Children inherit the block: a cluster may
        # signal every process of a job, and a compile worker would die of it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        threading.Thread(target=_pass_on_usr1, daemon=True).start()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self.handle)
        starter = os.environ.get(STARTER_PID)
        if starter:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if starter != str(os.getppid()):  # it has died since it started this process
                sys.exit(FOR_GOOD)

    def handle(self, number: int, frame) -> None:
        """Note a request; raise at once if nobody defers it, or at a second Ctrl-C.

        The first request wins: a cluster that wants a job to come back may send SIGTERM after it. A
        study passes a second Ctrl-C on as SIGINT; without a study, what comes within a second is
        the same Ctrl-C by another way.
        """
        again = STARTER_PID in os.environ or time.monotonic() > self._asked_at + 1
        insists = self.code and number == signal.SIGINT and again
        if not self.code:
            self.code = COME_BACK if number == signal.SIGUSR1 else FOR_GOOD
            self.why, self._asked_at = signal.Signals(number).name, time.monotonic()
        if insists or not self.deferred:
            self.deferred = True  # the next request must not disturb the end that this one begins
            raise KeyboardInterrupt(self.code)


def _pass_on_usr1() -> None:
    signal.sigwait({signal.SIGUSR1})
    _thread.interrupt_main(signal.SIGUSR1)


# ---- its end ----


class _Output(io.FileIO):
    """A file whose failures raise nothing: a closed pipe ends no training."""

    def write(self, data) -> int:
        with suppress(OSError):
            return super().write(data)
        return len(data)


def code_of(command: Callable[[], int]) -> int:
    """Do a command's work; return its exit code. Bad input is printed as a sentence."""
    try:
        return command()
    except InputError as error:
        sentence = str(error)
    except OSError as error:
        # a library's may have a text alone
        where, what = error.filename or "the system", error.strerror or error
        full = full_disk(error, [Path()])
        sentence = f"{full}: {AGAIN}" if full else f"{where}: {what}: mend that, or choose another"
    except ImportError as error:  # files are gone, as on a scratch file system that is cleaned
        if (error.name or "").partition(".")[0] in OWN_PACKAGES:
            raise
        sentence = f"the installed packages are not whole ({error}): `{REINSTALL}`, on a cluster "
        sentence += "in the container of its jobs"
    except KeyboardInterrupt as request:  # of `Stop`, once it listens
        return request.args[0] if request.args else FOR_GOOD
    print(f"error: {sentence}", file=sys.stderr)
    return BAD_INPUT


def leave(command: Callable[[], int]) -> NoReturn:
    """Do a command's work, and end the process with its exit code, without the interpreter's
    clean-up.

    The clean-up can wait for 300 s for inductor's pool of compile workers (pytorch issue 162199),
    and with several ranks gloo sometimes aborts in it. The pool ends by itself once its pipe is
    closed.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        output = io.BufferedWriter(_Output(stream.fileno(), "w", closefd=False))
        # "backslashreplace": a locale may lack a letter
        text = io.TextIOWrapper(output, stream.encoding, "backslashreplace", line_buffering=True)
        setattr(sys, name, text)
    try:
        code = code_of(command)
    except Exception:
        sys.excepthook(*sys.exc_info())
        code = FAILED
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
