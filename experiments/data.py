"""Write a recipe's token file ahead of a job, for compute nodes without internet.

    python -m experiments.data prepare RECIPE [--overlay O]… [key.path=value …]

Example: python -m experiments.data prepare baseline --overlay alps data.cache_dir=/scratch/tokens

Exit codes: 0 if the token file exists at the end, 2 for bad input.
"""

from experiments.config import recipes
from experiments.jobs.command import EXIT_COMPLETED, CommandLine, exit_with


def main(argv: list[str] | None = None) -> int:
    parser = CommandLine("experiments.data", __doc__)
    parser.add_argument("command", choices=["prepare"])
    parser.add_recipe()
    args = parser.parse_arguments(argv)
    config = recipes.load(args.name, args.overlay, args.overrides).config

    # torch: seconds, which a misspelt name need not wait for
    from torchtitan.tools.logging import init_logger

    from experiments.corpus import rows, tokens

    init_logger()
    token_file = tokens.prepare_token_file(config)
    print(f"{rows.describe_data(token_file, config)}\n{token_file.path}")
    return EXIT_COMPLETED


if __name__ == "__main__":
    exit_with(main)
