#!/usr/bin/env bash
# The study on this machine: one run per GPU, and further runs wait for a free GPU; without a GPU one run after the other.
#
#   launch/local.sh                                        the four recipes, into a new folder under runs/
#   launch/local.sh NAME… [--seeds 3] [key.path=value …]   some; all that python -m experiments.study takes
#   timeout --preserve-status -s USR1 600 launch/local.sh NAME… checkpoint.enable=true   stops after 600 s, and keeps where it was
#   timeout --preserve-status -s USR1 600 launch/local.sh DIR                            resumes it in the next slot
set -euo pipefail
cd "$(dirname "$0")/.."
make --silent install
exec .venv/bin/python -m experiments.study "$@"
