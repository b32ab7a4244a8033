"""Look up former keys of torchtitan, and former overlays, in the table moved_keys.yaml."""

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
def read_table() -> dict[str, dict[str, str]]:
    """Read the table: what became of each name, by the kind of change."""
    return yaml.safe_load(MOVES_FILE.read_text("utf-8"))


@cache
def read_moves() -> dict[str, Move]:
    """Read all moves by the old key, or by the old section with a dot at its end."""
    table = read_table()
    moves = {}
    for old_key, text in table["moved"].items():
        new_key, _, note = text.partition(" ")
        moves[old_key] = Move(new_key, note)
    for old_key, note in table["dropped"].items():
        moves[old_key] = Move("", note)
    return moves


def find_move(key: str) -> Move | None:
    """Find the move of a key, or of its section; None if there is none."""
    if key in read_moves():
        return read_moves()[key]
    for old_key, move in read_moves().items():
        if old_key.endswith(".") and f"{key}.".startswith(old_key):
            if not move.key:
                return move
            rest_of_key = key[len(old_key) :]
            return move._replace(key=f"{move.key}{rest_of_key}".rstrip("."))
    return None


def find_overlay_replacement(name: str) -> str | None:
    """Say what to do instead of an overlay of before; None if there was no overlay of this name."""
    return read_table()["overlays"].get(name)
