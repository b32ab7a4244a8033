"""Draw lead.png, which the README shows, from the published runs.

python -m extensions.published.lead
"""

from pathlib import Path

from analysis import plots
from analysis.comparison import compare
from analysis.study import read_study
from extensions.published.convert import RUNS

if __name__ == "__main__":
    comparison = compare(read_study(RUNS))
    figure = plots.draw_panels([(plots.lead, comparison)], (8, 4))
    Path(__file__).with_suffix(".png").write_bytes(plots.to_png(figure))
