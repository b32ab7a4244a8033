"""Answer from run directories, by a few general rules: should this Llama be trained in FP8?

    python -m analysis.report RUNS [--reference RECIPE] [--verbose] [--json FILE] [--html FILE]

Read in this order; a file imports only files above it:

    runs.py         read a run: how it was made, and a table of its steps
    study.py        read all runs of a study; rule 0: they are one training
    comparable.py   can runs be compared? Rule 1: two recipes' runs differ in nothing except the
                    recipes; rule 2: each run did what its recipe says
    speed.py        is a recipe faster? Tokens/s counted in several ways; rule 3: every honest way
                    to count finds the same lead
    break_even.py   the step from which a recipe has taken less wall time
    losses.py       is its loss the same? Rule 4: runs of a seed begin at one loss; rule 5: they
                    stay near one another; rule 6: no recipe lost more of its runs
    comparison.py   one outcome a recipe
    answer.py       the outcome in sentences
    tables.py       tables of recipes, and of runs
    report.py       the command line, JSON and a page

Then what shows it: plots/ draws; newest.py finds the runs that a notebook opens.

For an analysis of your own: `analysis.load` (docs/your_own_analysis.md).
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # pandas takes a second
    import pandas as pd

    from analysis.comparison import Comparison
    from analysis.study import Study


class StudyData:
    """The data of a study as frames of pandas.

    Args:
        study: the runs that count, and those that do not, with their endings.
    """

    def __init__(self, study: Study):
        self.study = study

    @cached_property
    def steps(self) -> pd.DataFrame:
        """A row for each step of each run. Columns: `recipe`, `seed`, `step`, `loss` (nats a
        token), `step_s`, `tokens` (of the step, padding included), `lr`, and more:
        analysis.runs.PlannedRun describes them. Empty cells are NaN."""
        from analysis.tables import tabulate_steps

        return tabulate_steps(self.study)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """A row for each run. Columns: `recipe`, `seed`, `status`, `final_loss`, `tokens_per_s`,
        `mfu_bf16_peak`, `time_to_first_step_s`, `wall_s`, `fp8_share`, `peak_memory_gib`, and
        more. Empty cells are NaN."""
        from analysis.tables import measure_runs

        return measure_runs(self.study)

    def compare(self, reference: str | None = None) -> Comparison:
        """Compare the recipes with compiled bf16, or with the named reference.

        Raises `analysis.study.StudyError` if no run of that reference was completed.
        """
        from analysis.comparison import compare

        return compare(self.study, reference)


def load(*folders: str | Path) -> StudyData:
    """Load all runs at or below some folders: of your study, of a single run, or kept ones.

    Raises `analysis.study.StudyError` if a folder is missing, holds no run, or mixes trainings.
    """
    from analysis.study import read_study

    return StudyData(read_study(*map(Path, folders)))
