"""Files that a run leaves behind, read and written so that a process that is killed leaves none of them torn."""

import json
from pathlib import Path


def write_whole(path: Path, content: str) -> None:
    """Write a file, whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(content)
    part.replace(path)


def read_json(path: Path) -> dict:
    """Contents of a JSON file, empty if it is missing or torn."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def read_metrics(path: Path) -> list[dict]:
    """Lines of a metrics.jsonl, in order; torn ones are left out."""
    lines = []
    for text in path.read_bytes().splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return [line for line in lines if isinstance(line, dict)]


def read_last_line(path: Path) -> dict:
    """Last whole line of a metrics.jsonl, empty if there is none yet; cheap on a long file."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 65536))
            whole = [line for line in file.read().split(b"\n")[:-1] if line]
        return json.loads(whole[-1]) if whole else {}
    except (OSError, ValueError):
        return {}
