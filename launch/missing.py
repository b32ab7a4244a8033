"""List the requirements missing in this Python.

    .venv/bin/python launch/missing.py requirements.txt

Exit codes: 0 if it lacks none, 2 if it lacks some.
"""

import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement


def is_installed(requirement: Requirement) -> bool:
    """True if a fitting version of a requirement is installed.

    torch may have installed triton under another name.
    """
    try:
        return requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        return not requirement.specifier and find_spec(requirement.name) is not None


requirements_file = sys.argv[1]
lines = Path(requirements_file).read_text().splitlines()
requirements = [line for line in lines if not line.startswith("#")]
missing = [line for line in requirements if not is_installed(Requirement(line))]
if missing:
    install_command = f"{shlex.quote(sys.executable)} -m pip install -r {requirements_file}"
    print(f"missing: {', '.join(missing)}; where a package index can be reached: {install_command}")
    sys.exit(2)
