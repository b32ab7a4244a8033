"""The figures of a benchmark of FP8 on four B200, compared with each other."""

import pandas as pd
import yaml

from extensions.sweep.cells import FOLDER
from models.flops import Sizes

B200 = yaml.safe_load((FOLDER / "published_b200.yaml").read_text())


def lengths() -> pd.DataFrame:
    """Predict tokens/s by length, over those at 2,048, if a FLOP took as long at each length.

    A row a model; the benchmark prints halves.
    """
    table = pd.DataFrame(columns=[*B200["lengths"]])
    for name, sizes in B200["models"].items():
        flops = pd.Series(
            [Sizes(**sizes).flops_per_token(length) for length in table], table.columns
        )
        table.loc[name] = flops.iloc[0] / flops
    table.loc["printed"] = B200["lengths"]
    return table.astype(float).round(2)
