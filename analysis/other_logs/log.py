"""Make a run of another program's log, which times windows of steps, but no single steps."""

import math
from pathlib import Path

import pandas as pd

from analysis.runs import WINDOW_COLUMNS, Run
from experiments.records.run import NOT_STEADY_STEPS


def make_run(path: Path, log: pd.DataFrame, facts: dict) -> Run:
    """Make a run of what one process logged. The clock begins where the log does.

    Args:
        log: a row a line, in the order of their steps. `step` is a window's last step, `count` the
            number of its steps, `seconds` its duration, which is spread over the steps evenly;
            `data_wait` the share of it that the host waited for data; `loss` is the last
            step's. Other columns are those of `Run.windows`.
        facts: by `analysis.runs.COLUMNS`; what the log tells of the clock is added.
    """
    steady = log["step"][0] - log["count"][0] + 1 + NOT_STEADY_STEPS
    rows = []
    for line in log.itertuples():
        each, first = line.seconds / line.count, line.step - line.count + 1
        rows.append({
            "step_s": [each] * line.count,
            "data_wait_s": [each * line.data_wait] * line.count,
            "losses": [math.nan] * (line.count - 1) + [line.loss],
            "not_steady": [*range(first, line.step + 1)] if first < steady else [],
        })  # fmt: skip
    windows = log.assign(elapsed_s=log["seconds"].cumsum(), **pd.DataFrame(rows))
    clock = {"wall_s": log["seconds"].sum()}
    if log["step"][0] == 1:
        clock["warm_up_s"] = log["seconds"][0]
    return Run(path, facts | clock, windows.reindex(columns=WINDOW_COLUMNS))
