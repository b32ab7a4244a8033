"""Draw the lead of FP8 in the published logs: `python -m extensions.published FOLDER`.

FOLDER has the logs, `output/data` of github.com/mak2508/lsai-proj. Writes lead.png, which the
README shows. Exit codes: 0 drawn, 2 for bad input.
"""

from pathlib import Path

from analysis import plots
from analysis.comparison import compare
from experiments.jobs.command import COMPLETED, CommandLine, leave
from extensions.published.logs import read_published


def main(argv: list[str] | None = None) -> int:
    parser = CommandLine("extensions.published", __doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="of the logs")
    comparison = compare(read_published(parser.parse(argv).folder))
    figure = plots.panels([(plots.lead, comparison)], (8, 4))
    Path(__file__).with_name("lead.png").write_bytes(plots.to_png(figure))
    return COMPLETED


if __name__ == "__main__":
    leave(main)
