"""launch/missing.py FILE…: what of these requirements this Python lacks, in a sentence, and exit
code 2; or nothing."""

import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement


def there(requirement: Requirement) -> bool:
    """Whether it is installed in a version that fits; triton may have come with torch under another
    name."""
    try:
        return requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        return not requirement.specifier and find_spec(requirement.name) is not None


lines = [
    line
    for file in sys.argv[1:]
    for line in Path(file).read_text().splitlines()
    if not line.startswith("#")
]
if missing := [line for line in lines if not there(Requirement(line))]:
    files = " ".join(f"-r {file}" for file in sys.argv[1:])
    print(
        f"missing: {', '.join(missing)}; where a package index can be reached: {sys.executable} -m pip install {files}"
    )
    sys.exit(2)
