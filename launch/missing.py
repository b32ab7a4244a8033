"""List the requirements missing in this Python.

    .venv/bin/python launch/missing.py requirements.txt

Exit codes: 0 if it lacks none, 2 if it lacks some.
"""

import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement


def is_installed(requirement: Requirement) -> bool:
    """Look for a fitting version of a requirement.

    triton may have come with torch under another name.
    """
    try:
        return requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        return not requirement.specifier and find_spec(requirement.name) is not None


file = sys.argv[1]
lines = [line for line in Path(file).read_text().splitlines() if not line.startswith("#")]
missing = [line for line in lines if not is_installed(Requirement(line))]
if missing:
    install = f"{sys.executable} -m pip install -r {file}"
    print(f"missing: {', '.join(missing)}; where a package index can be reached: {install}")
    sys.exit(2)
