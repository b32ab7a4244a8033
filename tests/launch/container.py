"""Stand in for CSCS's container engine: `container.py FOLDER EDF COMMAND…` starts a command where a
definition file's mounts are seen, and nothing else of FOLDER or of the project.

The image is this machine. What it does not have (/capstor) is mounted from FOLDER/host. Needs root.
"""

import ctypes
import os
import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[2]
IMAGE = {"NCCL_NET_PLUGIN": "a plugin of the image", "NVIDIA_PYTORCH_VERSION": "26.06"}
NEW_MOUNTS, BIND, RECURSIVE, PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000  # sched.h, sys/mount.h
C = ctypes.CDLL(None, use_errno=True)


def call(function: str, *arguments) -> None:
    """Call a function of C that returns 0 for success."""
    encoded = [os.fsencode(each) if isinstance(each, str | Path) else each for each in arguments]
    if getattr(C, function)(*encoded):
        sys.exit(f"container: {function} {arguments}: {os.strerror(ctypes.get_errno())}")


def mount(source: str | Path, place: str | Path) -> None:
    """Bind a folder of this machine to a place."""
    os.makedirs(place, exist_ok=True)
    call("mount", source, place, None, BIND | RECURSIVE, None)


def image(folder: str) -> str:
    """Make the image's root, whose top folders are this machine's; hide FOLDER and the project."""
    root = f"{folder}/image"
    os.makedirs(root, exist_ok=True)
    call("mount", "none", root, "tmpfs", 0, None)
    for entry in os.scandir("/"):
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), f"{root}{entry.path}")
        elif entry.is_dir():
            mount(entry.path, f"{root}{entry.path}")
    for hidden in (folder, PROJECT):
        call("mount", "none", f"{root}{hidden}", "tmpfs", 0, None)
    return root


def definition(name: str) -> Path:
    """Find a definition file: by its path, or by its name in EDF_PATH."""
    if name.startswith(("/", "./")):
        return Path(name)
    folders = os.environ.get("EDF_PATH", f"{os.environ.get('HOME')}/.edf").split(":")
    found = [file for folder in folders if (file := Path(folder, f"{name}.toml")).exists()]
    return found[0] if found else sys.exit(f"container: no {name}.toml in EDF_PATH")


def expand(text: str) -> str:
    """Replace ${NAME} by the image's variables, else this machine's."""
    variables = os.environ | IMAGE
    for name in re.findall(r"\$\{(\w+)\}", text):
        if name not in variables:
            sys.exit(f"container: {name} is undefined")
    return re.sub(r"\$\{(\w+)\}", lambda match: variables[match[1]], text)


def main(folder: str, name: str, *command: str) -> None:
    keys = tomllib.loads(definition(name).read_text())
    call("unshare", NEW_MOUNTS)
    call("mount", None, "/", None, RECURSIVE | PRIVATE, None)
    root = image(folder)
    for line in keys["mounts"]:
        source, _, place = expand(line).partition(":")
        here = source if os.path.exists(source) else f"{folder}/host{source}"
        mount(here, f"{root}{place or source}")
    os.environ.update(IMAGE)
    for variable, value in keys.get("env", {}).items():
        os.environ[variable] = expand(value)
        if not value:
            del os.environ[variable]
    os.chroot(root)
    os.chdir(expand(keys["workdir"]))
    os.execvp(command[0], command)


main(*sys.argv[1:])
