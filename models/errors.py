"""Define `InputError`, the one kind of error for the user to fix."""

import re
from collections.abc import Iterable

REINSTALL = "rm -r .venv && make install"
"""Makes the environment anew, with the torch that this machine's driver can use."""


class InputError(ValueError):
    """Bad input: the message says what is wrong and how to fix it.

    It is one sentence, or one line per fault.
    """


def format_name_patterns(names: Iterable[str]) -> str:
    """List module names in a sentence, with a pattern for the blocks' numbers:
    `layers.*.attention.wq, output`."""
    return ", ".join(sorted({re.sub(r"[.][0-9]+[.]", ".*.", name) for name in names}))
