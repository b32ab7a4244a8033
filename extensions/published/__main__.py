"""Draw the lead of FP8 in the published logs: `python -m extensions.published FOLDER`.

FOLDER has the logs, `output/data` of github.com/mak2508/lsai-proj. Writes lead.png, which the
README shows. Exit codes: 0 drawn, 2 for bad input.
"""

import sys
from pathlib import Path

from analysis import plots
from analysis.comparison import compare
from analysis.report import command_line
from analysis.study import StudyError
from extensions.published.logs import read_published

LEAD = Path(__file__).parent / "lead.png"


def main(argv: list[str] | None = None) -> int:
    parser = command_line("extensions.published", __doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="of the logs")
    try:
        study = read_published(parser.parse_args(argv).folder)
    except (FileNotFoundError, StudyError) as error:
        parser.error(str(error))
    LEAD.write_bytes(plots.to_png(plots.panels([(plots.lead, compare(study))], (8, 4))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
