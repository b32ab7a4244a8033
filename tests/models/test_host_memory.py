"""How much memory a process may use: the limits of its control groups, and of ulimit."""

import os
import resource
import subprocess
import sys

import pytest

from models import host_memory
from tests.processes import ROOT

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
V1 = "memory.limit_in_bytes"
V2 = "memory.max"
UNLIMITED = 9223372036854771712


@pytest.fixture
def allowed(tmp_path, monkeypatch):
    """Takes the kind of a mount, the group that is mounted, this process's group, and the limits by
    file; gives the bytes that the process may use."""

    def call(kind: str, root: str, group: str, limits: dict[str, object]) -> int:
        folder = tmp_path / "cgroup"
        options = "cgroup rw,memory" if kind == "cgroup" else "cgroup2 rw"
        mounts, groups = tmp_path / "mounts", tmp_path / "groups"
        mounts.write_text(
            f"20 1 8:1 / / rw - ext4 /dev/sda rw\n"
            f"30 20 0:26 {root} {folder} rw,nosuid shared:9 - {kind} {options}\n"
            f"31 20 0:27 / {tmp_path} rw - cgroup cgroup rw,cpu,cpuacct\n"
        )
        named = "4:memory" if kind == "cgroup" else "0:"
        groups.write_text(f"9:cpu,cpuacct:/elsewhere\n{named}:{group}\n")
        for name, limit in limits.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"{limit}\n")
        monkeypatch.setattr(host_memory, "MOUNTS", mounts)
        monkeypatch.setattr(host_memory, "GROUPS", groups)
        return host_memory.allowed_memory_bytes()

    return call


@pytest.mark.parametrize(
    ("kind", "root", "group", "limits", "expected"),
    [
        ("cgroup", "/", "/slurm/job_1", {f"slurm/job_1/{V1}": 600 << 20}, 600 << 20),
        ("cgroup2", "/", "/job", {f"job/{V2}": 600 << 20}, 600 << 20),
        ("cgroup2", "/", "/job", {f"job/{V2}": "max", "job/memory.high": 6 << 20}, 6 << 20),
        # of a group around it, as Slurm's job around a step without a limit
        ("cgroup2", "/", "/job/step", {f"job/{V2}": 700 << 20, f"job/step/{V2}": "max"}, 700 << 20),
        ("cgroup", "/", "/a/b", {V1: UNLIMITED, f"a/{V1}": 5 << 20, f"a/b/{V1}": 9 << 20}, 5 << 20),
        # in a container, which sees its own group as the root, or not its own path at all
        ("cgroup2", "/", "/", {V2: 600 << 20}, 600 << 20),
        ("cgroup", "/docker/1", "/docker/1", {V1: 600 << 20}, 600 << 20),
        ("cgroup", "/docker/1", "/docker/1/child", {f"child/{V1}": 6 << 20}, 6 << 20),
        ("cgroup", "/", "/docker/1", {V1: 600 << 20}, 600 << 20),
        ("cgroup2", "/", "/../../other", {V2: 600 << 20}, 600 << 20),
        # no limit: none is set, it is above the machine's memory, or it is another group's
        ("cgroup2", "/", "/job", {f"job/{V2}": "max"}, MACHINE),
        ("cgroup", "/", "/job", {f"job/{V1}": UNLIMITED}, MACHINE),
        ("cgroup", "/", "/job", {f"job/{V1}": MACHINE + 1}, MACHINE),
        ("cgroup2", "/", "/job", {f"other/{V2}": 1}, MACHINE),
        ("cgroup2", "/", "/job", {f"job/{V2}": "?"}, MACHINE),
    ],
)
def test_the_smallest_limit_of_all_groups_counts(kind, root, group, limits, expected, allowed):
    assert allowed(kind, root, group, limits) == expected


def test_a_machine_without_control_groups_has_its_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(host_memory, "MOUNTS", tmp_path / "none")
    monkeypatch.setattr(host_memory, "GROUPS", tmp_path / "none")
    assert host_memory.allowed_memory_bytes() == MACHINE


@pytest.mark.parametrize("kind", [resource.RLIMIT_AS, resource.RLIMIT_DATA])
def test_ulimit_counts(kind):
    """In another process, for the limit cannot be taken back."""
    code = (
        f"import resource; resource.setrlimit({int(kind)}, ({1 << 30}, {1 << 30})); "
        "from models.host_memory import allowed_memory_bytes; print(allowed_memory_bytes())"
    )
    answer = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    assert int(answer) <= 1 << 30
