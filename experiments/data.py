"""Write a recipe's token file ahead of a job, for compute nodes without internet:

python -m experiments.data prepare RECIPE [--overlay O]… [key.path=value …]
"""

import argparse
import time

from experiments.config import recipes
from experiments.jobs.exit_codes import COMPLETED, leave


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.data", description="Write a recipe's token file."
    )
    parser.add_argument(
        "command", choices=["prepare"], help="write the token file, if it is not there yet"
    )
    parser.add_argument("name", metavar="RECIPE")
    parser.add_argument(
        "--overlay", action="append", default=[], metavar="O", help="may be repeated"
    )
    parser.add_argument("overrides", nargs="*", metavar="key.path=value")
    arguments = parser.parse_intermixed_args(argv)

    start = time.perf_counter()
    config = recipes.load(arguments.name, arguments.overlay, arguments.overrides).config

    # torch: seconds, which a misspelt name need not wait for
    from torchtitan.tools.logging import init_logger

    from experiments.corpus import rows, tokens

    init_logger()
    token_file = tokens.prepare(config)
    seconds = time.perf_counter() - start
    print(f"{rows.describe(token_file, config)}\n{token_file.path} ({seconds:.1f} s)")
    return COMPLETED


if __name__ == "__main__":
    leave(main)
