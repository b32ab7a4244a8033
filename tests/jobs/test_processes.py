"""A test that waits too long leaves nothing running."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import processes

CHILD = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True); sys.stdin.read()"


def runs(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def ends(pid: int) -> bool:
    deadline = time.monotonic() + 20
    while runs(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not runs(pid)


def test_a_time_limit_ends_the_whole_group():
    with pytest.raises(subprocess.TimeoutExpired) as late:
        processes.run([sys.executable, "-c", CHILD], seconds=3, stdin=subprocess.PIPE)
    assert ends(int(late.value.stdout))


def test_a_test_run_that_is_killed_ends_what_it_started():
    code = (
        "from tests import processes\n"
        "with processes.started(['sleep', '600']) as process:\n"
        "    print(process.pid, flush=True)\n"
        "    process.wait()"
    )
    with processes.started([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        pid = int(process.stdout.readline())
        while Path(f"/proc/{pid}/comm").read_text() != "sleep\n":  # setpriv has done its part and become it
            time.sleep(0.01)
        os.kill(process.pid, 9)
        assert ends(pid)
