#!/usr/bin/env bash
# The study on this machine: one run per GPU, and further runs wait for a free GPU; without a GPU one run after the other.
#
#   launch/local.sh                                        the four recipes, into a new folder under runs/
#   launch/local.sh NAME… [--seeds 3] [key.path=value …]   some; all that python -m experiments.study takes
#   launch/local.sh NAME… --budget 600 checkpoint.enable=true   ends within 600 s, all runs after equally many steps
#   launch/local.sh DIR --budget 600                       goes on with them in the next slot
set -euo pipefail
cd "$(dirname "$0")/.."
make --silent install
exec .venv/bin/python -m experiments.study "$@"
