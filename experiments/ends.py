"""How the commands end: their exit codes (the two of those that were interrupted are experiments.stop's), and what is
said of bad input."""

from rich.console import Console
from rich.markup import escape

COMPLETED, FAILED, BAD_INPUT, DIVERGED = 0, 1, 2, 3


def complain(error: Exception | str) -> int:
    """Print what is wrong with the input; the exit code."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"[red]error:[/] {escape(str(error))}")
    return BAD_INPUT
