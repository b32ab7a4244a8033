#!/usr/bin/env bash
# launch/step.sh MODULE [ARGUMENT…]: what a job's step runs: Python in the place of this shell, because only the direct
# children of Slurm's step daemon get a job's signals. SIGUSR1 waits until Python listens.
set -euo pipefail
python=${PYTHON:-.venv/bin/python}
command -v "$python" >/dev/null || {
  echo "error: there is no $python here: run \`make install\`, or name the interpreter with PYTHON=..." >&2
  exit 2
}
exec env --block-signal=USR1 "$python" -m "$@"
