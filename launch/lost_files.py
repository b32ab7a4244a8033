"""Look for packages of a virtual environment whose files are gone.

    python3 launch/lost_files.py .venv

A scratch file system that is cleaned deletes files and leaves folders: pip then takes a package for
installed, and Python takes its empty folder for a package.

Exit codes: 0 if all files are there, or no environment, 1 if some are gone.
"""

import csv
import os
import sys
from collections import defaultdict
from pathlib import Path


def find_missing_files(packages: Path) -> list[str]:
    """List the files of packages' RECORDs not in a site-packages folder.

    Compiled files (.pyc) do not count: Python writes them again.
    """
    lost, recorded = [], defaultdict(set)
    for package in packages.glob("*.dist-info"):
        record = package / "RECORD"
        if not record.exists():
            lost.append(f"{package.name}/RECORD")
            continue
        for name, *_ in csv.reader(record.read_text("utf-8").splitlines()):
            if not name.startswith(("..", "/")) and not name.endswith(".pyc"):
                recorded[os.path.dirname(name)].add(os.path.basename(name))
    for folder, files in recorded.items():  # listed once, as a cluster's file system is slow
        there = os.listdir(packages / folder) if (packages / folder).is_dir() else []
        lost += [f"{folder}/{file}" for file in files.difference(there)]
    return lost


environment = Path(sys.argv[1])
lost = []
for packages in environment.glob("lib/python3*/site-packages"):
    lost += find_missing_files(packages)
python = environment / "bin/python"
if lost:
    sys.exit(f"{len(lost)} files of {environment}'s packages are gone, such as {min(lost)}")
if python.is_symlink() and not python.exists():
    sys.exit(f"{python} links to {os.readlink(python)}, which is gone")
