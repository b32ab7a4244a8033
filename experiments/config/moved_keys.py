"""Look up keys of earlier releases of torchtitan in the table moved_keys.yaml."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

MOVES_FILE = Path(__file__).with_suffix(".yaml")


class Move(NamedTuple):
    """What torchtitan has done to a key."""

    key: str  # its new name; empty, if torchtitan has dropped the key
    note: str  # how the new key's value differs, or what to do instead of a dropped key


@cache
def read_moves() -> dict[str, Move]:
    """Read the table: all moves by the old key, or by the old section with a dot at its end."""
    table = yaml.safe_load(MOVES_FILE.read_text("utf-8"))
    dropped = {old: Move("", note) for old, note in table["dropped"].items()}
    moved = {}
    for old_key, new_key in table["moved"].items():
        key, _, note = new_key.partition(" ")
        moved[old_key] = Move(key, note)
    return moved | dropped


def find_move(key: str) -> Move | None:
    """Find the move of a key, or of its section; None if there is none."""
    if key in read_moves():
        return read_moves()[key]
    for old_key, move in read_moves().items():
        if old_key.endswith(".") and f"{key}.".startswith(old_key):
            inner = key[len(old_key) :]
            return move._replace(key=f"{move.key}{inner}".rstrip(".")) if move.key else move
    return None
