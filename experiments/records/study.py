"""What a study leaves behind beside its runs."""

from experiments.records.run import Record

STUDY_FILE = (
    "study.yaml"  # what it was started with, in its folder and in that of each cell of a sweep
)
CELL = "cell.json"


class Cell(Record):
    """A cell of a sweep: its value on each axis, the estimate of its memory in bytes, and why it
    cannot run."""

    values: dict[str, str | int]
    needed: float
    available: float
    obstacle: str | None
