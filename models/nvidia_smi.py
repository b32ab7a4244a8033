"""Ask nvidia-smi about GPUs. Its answer counts by its form, for it may be any text: a sentence with
exit code 0, a warning above the table, `[N/A]` for a value."""

import re
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

TIMEOUT_S = 20  # with a broken GPU it may never answer
NUMBER_PATTERN = r"(\d+(?:\.\d+)?)(?: \w+)?"  # of MHz, W or MiB
FIELD_PATTERNS = {
    "driver_version": r"(\d+(?:\.\d+)+)",
    "clocks.max.sm": NUMBER_PATTERN,
    "power.limit": NUMBER_PATTERN,
    "memory.free": NUMBER_PATTERN,
}
"""The form of each field that can be asked for, with the value in a group."""
GPU_LINE = re.compile(r"^\s*(?:GPU|MIG)\b(.*?)\(UUID: ((?:GPU|MIG)-[\w/-]+)\)", re.MULTILINE)


class ListedGpu(NamedTuple):
    """A GPU, or a part of one (MIG)."""

    name: str
    uuid: str


def list_gpus() -> list[ListedGpu]:
    """List the GPUs of this machine; none, if nvidia-smi does not list any.

    A line: `GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1234…)`.
    """
    matches = GPU_LINE.finditer(_run_nvidia_smi("--list-gpus"))
    return [ListedGpu(match[1].partition(":")[2].strip(), match[2]) for match in matches]


def query_fields(fields: Sequence[str], gpu: str) -> list[str | None]:
    """Ask for fields of a GPU, by its number or UUID; return their values, None for unknown ones.

    The values are in the first line with as many columns and a value of the right form.
    """
    arguments = ["--format=csv,noheader,nounits", f"--query-gpu={','.join(fields)}", f"--id={gpu}"]
    for line in _run_nvidia_smi(*arguments).splitlines():
        columns = [column.strip() for column in line.split(",")]
        if len(columns) != len(fields):
            continue
        values = [_parse_value(*pair) for pair in zip(fields, columns, strict=True)]
        if any(values):
            return values
    return [None] * len(fields)


def query_vboost(gpu: str) -> int | None:
    """Ask for a GPU's vboost, a trade of memory clock for core clock; None if unknown.

    A line of the answer: `|   0     vboost           4              1       |`, which is GPU,
    slider, highest value, present value.
    """
    line = re.search(r"\bvboost\b.*", _run_nvidia_smi("boost-slider", "--list", "-i", gpu))
    numbers = re.findall(r"\d+", line[0]) if line else []
    return int(numbers[-1]) if numbers else None


def _parse_value(field: str, text: str) -> str | None:
    """Take the value out of a column; None for words such as `[N/A]` and `Unknown Error`."""
    match = re.fullmatch(FIELD_PATTERNS[field], text)
    return match[1] if match else None


def _run_nvidia_smi(*arguments: str) -> str:
    """Return what nvidia-smi prints; nothing where it fails or is not installed."""
    try:
        return subprocess.check_output(
            ["nvidia-smi", *arguments],
            timeout=TIMEOUT_S,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
        )
    except (OSError, subprocess.SubprocessError):
        return ""
