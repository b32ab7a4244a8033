"""How a run or a study is asked to end early: by a signal, or by its time budget.

SIGUSR1 (a cluster's time limit is near) and a spent budget end it with COME_BACK: whoever started
it may start it again. SIGTERM and SIGINT (Ctrl-C) end it with FOR_GOOD. Training ends at its next
step boundary. Before the first step there is nothing to save, so a request ends the process at
once; so does a second Ctrl-C at any time.
"""

import _thread
import ctypes
import math
import os
import signal
import sys
import threading
import time

COME_BACK, FOR_GOOD = 75, 130  # exit codes: EX_TEMPFAIL of sysexits.h; a shell's for Ctrl-C
# In the environment of what a study or a run starts: the process that it must not outlive.
STARTER_PID = "STARTER_PID"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Interrupted(Exception):
    """Training ended at a step boundary because it was asked to; `code` is the exit code."""

    def __init__(self, code: int, sentence: str):
        super().__init__(sentence)
        self.code = code


class Stop:
    """The first request to end: `code` is 0, COME_BACK or FOR_GOOD; `why` the signal or budget."""

    def __init__(self, budget_s: float | None = None):
        self.budget_s = budget_s  # since the process started; None: no limit
        self.deferred = False  # set once a step boundary will come that looks at `code`
        self.why = ""
        self._code = 0
        self._interrupted_at = math.inf  # first Ctrl-C

    def listen(self) -> None:
        """Take over SIGINT, SIGTERM and SIGUSR1. Called first in a program, before there are other
        threads."""
        # SIGUSR1 is blocked, and a thread waits for it. Children inherit the block: a cluster may
        # signal every process of a job, and a compile worker would die of it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        threading.Thread(target=self._await_usr1, daemon=True).start()
        # a library's thread may be older than the block
        signal.signal(signal.SIGUSR1, lambda *_: self._come_back())
        signal.signal(signal.SIGINT, self._handle)
        signal.signal(signal.SIGTERM, self._handle)
        study = os.environ.get(STARTER_PID)
        if study:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if study != str(os.getppid()):  # it has died since it started this process
                sys.exit(FOR_GOOD)

    @property
    def code(self) -> int:
        """0, or the exit code that was asked for."""
        if self.budget_s is not None:
            from models.device import seconds_since_process_start

            if seconds_since_process_start() > self.budget_s:
                self._ask(COME_BACK, f"the time budget of {self.budget_s:g} s")
        return self._code

    def _ask(self, code: int, why: str) -> None:
        """Note a request. The first wins: a cluster that wants a job to come back may send SIGTERM
        after it."""
        if not self._code:
            self._code, self.why = code, why

    def _await_usr1(self) -> None:
        signal.sigwait({signal.SIGUSR1})
        self._come_back()

    def _come_back(self) -> None:
        self._ask(COME_BACK, "SIGUSR1")
        if not self.deferred:
            _thread.interrupt_main()  # as SIGINT

    def _handle(self, number: int, frame) -> None:
        at_once = number == signal.SIGINT and self._is_second_ctrl_c()
        self._ask(FOR_GOOD, signal.Signals(number).name)
        if at_once or not self.deferred:
            self.deferred = True  # the next request must not disturb the end that this one begins
            raise KeyboardInterrupt

    def _is_second_ctrl_c(self) -> bool:
        """Whether the user insists. A study passes the first Ctrl-C on as SIGTERM, the second as
        SIGINT; without one, what comes within a second is the same Ctrl-C by another way."""
        if os.environ.get(STARTER_PID):
            return self._code != 0
        now = time.monotonic()
        self._interrupted_at = min(self._interrupted_at, now)
        return now - self._interrupted_at > 1
