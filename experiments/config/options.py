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
    """Read the key of each option, or key=value of a switch."""
    table = yaml.safe_load(OPTIONS_FILE.read_text("utf-8"))
    key_by_option = {}
    for key, options in table.items():
        for option in options:
            key_by_option[option] = key
    return key_by_option


def translate_option(option: str, next_word: str | None) -> str | None:
    """Write an option with its value as `key=value`; None for an option that is not a key's.

    Args:
        option: as it was typed, as `--steps` or `--steps=5`.
        next_word: the word behind the option, if there is one.
    """
    name, equals, text = option.lstrip("-").partition("=")
    value: str | None = text
    if not equals:
        is_value = next_word and not next_word.startswith("--") and "=" not in next_word
        value = next_word if is_value else None
    section, dot, last_part = name.replace("-", "_").rpartition(".")
    is_off = last_part.startswith("no_")
    last_part = last_part.removeprefix("no_")
    if dot:
        return _translate_dotted(f"{section}.{last_part}", value, is_off)
    table_entry = _find_option_key(last_part.replace("_", "-"))
    if not table_entry:
        return None
    key, equals, value_when_on = table_entry.partition("=")
    if not equals:
        return _write_override(key, value, is_off)
    # a switch: the next word may be a recipe's name
    if not is_off and _read_switch(value) == "true":
        return f"{key}={value_when_on}"
    if value_when_on == "true":
        return f"{key}=false"
    return None


def _read_switch(value: str | None) -> str:
    """Read the value of a switch, as `yes`; `true` for every text that is not a switch's value."""
    return SWITCH_VALUES.get((value or "").lower(), "true")


def _translate_dotted(key: str, value: str | None, is_off: bool) -> str:
    """Write an option by torchtitan's name for a key, perhaps an old one."""
    move = find_move(key)
    if move and not move.key:
        return f"{key}, which torchtitan has dropped"
    if move and move.note:
        return f"{move.key}=…, {move.note}"
    return _write_override(move.key if move else key, value, is_off)


def _write_override(key: str, value: str | None, is_off: bool) -> str:
    """Write a key with a value; a switch without one is on, unless `no` precedes its name."""
    if is_off:
        value = "false"
    elif _is_switch(key):  # the following word may be a recipe's name
        value = _read_switch(value)
    if value is None:
        return f"{key}=…"
    return quote(f"{key}={value}")


def _is_switch(key: str) -> bool:
    """Tell if a key's value is true or false, by its name."""
    last_part = key.rpartition(".")[2]
    return last_part.startswith(("enable", "disable")) or last_part in ("compile", "deterministic")


def _find_option_key(name: str) -> str | None:
    """Find the key of an option by the table, by the names of keys, or by similar options."""
    table = read_options()
    if name in table:
        return table[name]
    from experiments.config.keys import list_keys  # torch: seconds

    key_ending = f".{name.replace('-', '_')}"
    for key in list_keys():
        if key.endswith(key_ending):
            return key
    similar_options = difflib.get_close_matches(name, table, 1, cutoff=0.8)
    return table[similar_options[0]] if similar_options else None
