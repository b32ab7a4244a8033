#!/usr/bin/env bash
# The Python of a job whose runs are stand-ins: PYTHON=tests/launch/python.sh, REAL_PYTHON=…
study='import sys
from experiments import study
from experiments.jobs import command, runner
import torch  # after the runner, which looks at the variables that torch sets
torch.cuda.device_count = lambda: 4  # as many as Slurm gives, which has fake ones
runner.RUN_MODULE = "tests.jobs.stand_in"
command.exit_with(study.main)'
if [ "$1 ${2-}" = "-m experiments.study" ]; then
  exec "$REAL_PYTHON" -c "$study" "${@:3}"
fi
exec "$REAL_PYTHON" "$@"
