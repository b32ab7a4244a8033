#!/usr/bin/env bash
# launch/step.sh MODULE [ARGUMENT…]: what a job's step runs: Python in the place of this shell, because only the direct
# children of Slurm's step daemon get a job's signals. SIGUSR1 waits until Python listens, where env can block it (coreutils
# 8.31); on an older system SIGUSR1 ends a step whose Python does not listen yet, with 138.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" && exit ;; esac
if [ -z "${USR1_BLOCKED-}" ] && env --block-signal=USR1 true 2>/dev/null; then
  USR1_BLOCKED=yes exec env --block-signal=USR1 "$0" "$@"
fi
ulimit -c 0 # a core dump of a training process has its memory's size
python=${PYTHON:-.venv/bin/python}
# Imports the module, and looks for what it imports later. A folder whose files are gone is still a package, of no file.
check='import importlib, sys
from importlib.util import find_spec
try:
    importlib.import_module(sys.argv[1])
except ImportError as error:
    sys.exit(f"{error}")
except Exception:
    sys.exit()  # packages are not the cause, and the step itself shows the error
for name in "torch", "torchao", "torchtitan":
    if not getattr(find_spec(name), "origin", None):
        sys.exit(f"No files of {name}")'
if ! reason=$("$python" -c "$check" "$1" 2>&1); then
  if [ -n "${ADVICE-}" ]; then # of the job file
    fix=$ADVICE
  elif [ -n "${PYTHON-}" ]; then
    fix="name another Python with PYTHON=..., or unset PYTHON"
  elif [ -e .venv ]; then
    fix="\`rm -r .venv && make install\` where jobs run, in their container if they have one (launch/README.md)"
  else
    fix="\`make install\` where jobs run, in their container if they have one (launch/README.md), or name a Python with PYTHON=..."
  fi
  echo "error: $python cannot run the project (${reason##*$'\n'}): $fix" >&2
  exit 2
fi
exec "$python" -m "$@"
