"""Find how many bytes of this machine's memory a process may use.

A container, a Slurm job or systemd limits the memory of a control group (cgroup), and the kernel
kills a process of the group which needs more. The limit of a group holds for all groups in it.
"""

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

MOUNTS = Path("/proc/self/mountinfo")
GROUPS = Path("/proc/self/cgroup")
# Versions 1 and 2. Above `memory.high` a process is not killed, but its steps come to a halt
LIMIT_FILES = {"cgroup": ["memory.limit_in_bytes"], "cgroup2": ["memory.max", "memory.high"]}


def allowed_memory_bytes() -> int:
    """Return the smallest of the machine's memory and of all limits of this process."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *cgroup_limits(), *process_limits()])


def process_limits() -> Iterator[int]:
    """Yield the limits of `ulimit -v` and `ulimit -d`, in bytes."""
    for limit_type in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        limit, _ = resource.getrlimit(limit_type)
        if limit != resource.RLIM_INFINITY:
            yield limit


class Hierarchy(NamedTuple):
    """A mounted tree of control groups."""

    version: str  # a key of `LIMIT_FILES`
    root: str  # the group that is mounted: a container's own, where it sees no others
    folder: Path  # where it is mounted


def cgroup_limits() -> Iterator[int]:
    """Yield the memory limits of this process's groups, and of the groups around them, in bytes."""
    for hierarchy in mounted_hierarchies():
        folder = hierarchy.folder / _group_path(hierarchy)
        for group in (folder, *folder.parents):
            for name in LIMIT_FILES[hierarchy.version]:
                # A group without the controller has no file, and `max` means that there is no limit
                with suppress(OSError, ValueError):
                    yield int((group / name).read_text())
            if group == hierarchy.folder:
                break


def mounted_hierarchies() -> Iterator[Hierarchy]:
    """Yield mounted hierarchies with memory limits; none where Linux does not show them.

    A line of mountinfo: `30 25 0:26 ROOT FOLDER rw,nosuid shared:9 - cgroup2 cgroup2 rw,memory`.
    """
    with suppress(OSError):
        for line in MOUNTS.read_text().splitlines():
            mount, _, kind = line.partition(" - ")
            version, _, options = kind.split(" ", 2)
            if version == "cgroup2" or (version == "cgroup" and "memory" in options.split(",")):
                root, folder = mount.split(" ")[3:5]
                yield Hierarchy(version, root, Path(folder))


def _group_path(hierarchy: Hierarchy) -> str:
    """Return the path of this process's group below the mounted group; empty if it is not there.

    A line of /proc/self/cgroup: `4:memory:/docker/1234`, in version 2 `0::/docker/1234`.
    """
    with suppress(OSError, StopIteration):
        lines = [line.split(":", 2) for line in GROUPS.read_text().splitlines()]
        controller = "memory" if hierarchy.version == "cgroup" else ""
        path = next(path for _, kinds, path in lines if controller in kinds.split(","))
        relative_path = os.path.relpath(path, hierarchy.root)
        if not relative_path.startswith(".."):
            return relative_path
    return ""
