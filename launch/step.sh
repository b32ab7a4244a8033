#!/usr/bin/env bash
# launch/step.sh MODULE [ARGUMENT…]: what a job's step runs: Python in the place of this shell, because only the direct
# children of Slurm's step daemon get a job's signals. SIGUSR1 waits until Python listens.
set -euo pipefail
python=${PYTHON:-.venv/bin/python}
"$python" -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("torchtitan"))' 2>/dev/null || {
  echo "error: $python is no Python with the project's packages: run \`make install\`, in the container where jobs have one, or name another with PYTHON=..." >&2
  exit 2
}
exec env --block-signal=USR1 "$python" -m "$@"
