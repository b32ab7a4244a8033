"""What a study leaves behind beside its runs."""

from experiments.records.run import Record

# What a study was started with: in its folder, and in that of each cell of a sweep
STUDY_FILE = "study.yaml"
CELL = "cell.json"


class Fit(Record):
    """Whether a cell of a sweep fits the machine: its value on each axis, the estimate of its
    memory in bytes, and why it cannot run."""

    values: dict[str, str | int]
    needed: float
    available: float
    obstacle: str | None
