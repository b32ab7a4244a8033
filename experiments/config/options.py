"""Translate options of other trainers, as `--steps 5`, into keys, as `training.steps=5`."""

import difflib
from functools import cache
from pathlib import Path
from shlex import quote

import yaml

from experiments.config.moved_keys import find_move

OPTIONS_FILE = Path(__file__).with_suffix(".yaml")
SWITCH_VALUES = {
    "true": "true",
    "yes": "true",
    "1": "true",
    "false": "false",
    "no": "false",
    "0": "false",
}
"""Values of switches."""


@cache
def read_options() -> dict[str, str]:
    """Read the table: the key of each option, or key=value of a switch."""
    table = yaml.safe_load(OPTIONS_FILE.read_text("utf-8"))
    return {option: key for key, options in table.items() for option in options}


def translate_option(option: str, next_word: str | None) -> str | None:
    """Write an option with its value as `key=value`; None if no key is known for it.

    Args:
        option: as it was typed, as `--steps` or `--steps=5`.
        following: the word behind the option, if there is one.
    """
    name, equals, value = option.lstrip("-").partition("=")
    if not equals:
        is_value = next_word and not next_word.startswith("--") and "=" not in next_word
        value = next_word if is_value else None
    section, dot, last = name.replace("-", "_").rpartition(".")
    is_off = last.startswith("no_")
    last = last.removeprefix("no_")
    if dot:
        return _translate_dotted(f"{section}.{last}", value, is_off)
    key = _find_option_key(last.replace("_", "-"))
    if not key:
        return None
    key, equals, default = key.partition("=")
    if equals:  # a switch: the following word may be a recipe's name
        on = "false" if is_off else SWITCH_VALUES.get((value or "").lower(), "true")
        if on == "false" and default != "true":
            return None
        return f"{key}={default if on == 'true' else 'false'}"
    return _write_override(key, value, is_off)


def _translate_dotted(key: str, value: str | None, is_off: bool) -> str:
    """Write an option by torchtitan's name for a key, perhaps an old one."""
    move = find_move(key)
    if move and move.note:
        return f"{move.key}=…, {move.note}" if move.key else f"{key}, which torchtitan has dropped"
    return _write_override(move.key if move else key, value, is_off)


def _write_override(key: str, value: str | None, is_off: bool) -> str:
    """Write a key with a value; a switch without one is on, unless `no` precedes its name."""
    if is_off:
        value = "false"
    elif _is_switch(key):  # the following word may be a recipe's name
        value = SWITCH_VALUES.get((value or "").lower(), "true")
    return f"{key}=…" if value is None else quote(f"{key}={value}")


def _is_switch(key: str) -> bool:
    """Tell if a key's value is true or false, by its name."""
    last = key.rpartition(".")[2]
    return last.startswith(("enable", "disable")) or last in ("compile", "deterministic")


def _find_option_key(name: str) -> str | None:
    """Find the key of an option by the table, by the names of keys, or by similar options."""
    table = read_options()
    if name in table:
        return table[name]
    from experiments.config.keys import list_keys  # torch: seconds

    last = f".{name.replace('-', '_')}"
    near = [key for key in list_keys() if key.endswith(last)]
    if near:
        return near[0]
    similar = difflib.get_close_matches(name, table, 1, cutoff=0.8)
    return table[similar[0]] if similar else None
