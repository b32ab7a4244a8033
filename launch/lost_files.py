"""Look for packages of a virtual environment with missing files.

    python3 launch/lost_files.py .venv

A scratch file system that is cleaned deletes files and leaves folders: pip then takes a package for
installed, and Python takes its empty folder for a package.

Exit codes: 0 if all files exist, or no environment does; 1 if some are missing.
"""

import csv
import os
import sys
from collections import defaultdict
from pathlib import Path


def find_missing_files(packages: Path) -> list[str]:
    """List the files that packages have recorded (RECORD) and that a site-packages folder lacks.

    Compiled files (.pyc) do not count: Python writes them again.
    """
    missing_files = []
    recorded_names = defaultdict(set)  # by folder
    for package in packages.glob("*.dist-info"):
        record = package / "RECORD"
        if not record.exists():
            missing_files.append(f"{package.name}/RECORD")
            continue
        for name, *_ in csv.reader(record.read_text("utf-8").splitlines()):
            if not name.startswith(("..", "/")) and not name.endswith(".pyc"):
                recorded_names[os.path.dirname(name)].add(os.path.basename(name))
    # A cluster's file system is slow, so each folder is listed once
    for folder, names in recorded_names.items():
        path = packages / folder
        existing_names = os.listdir(path) if path.is_dir() else []
        missing_files += [f"{folder}/{name}" for name in names.difference(existing_names)]
    return missing_files


environment = Path(sys.argv[1])
missing_files = []
for packages in environment.glob("lib/python3*/site-packages"):
    missing_files += find_missing_files(packages)
python = environment / "bin/python"
if missing_files:
    sys.exit(
        f"{len(missing_files)} files of {environment}'s packages are gone, such as "
        f"{min(missing_files)}"
    )
if python.is_symlink() and not python.exists():
    sys.exit(f"{python} links to {os.readlink(python)}, which is gone")
