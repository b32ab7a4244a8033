#!/usr/bin/env bash
# launch/install.sh [VENV]: make the environment (default .venv) with everything in requirements.txt.
#   A Python that already has torch keeps it (NVIDIA images, clusters): the environment sees the system's packages.
#   Without a GPU, torch comes from constraints-cpu.txt; with one, from requirements.txt's range.
#   PYTHON names the interpreter to use; otherwise the first of python3, python3.12, python3.11 that fits.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}

fits() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null; }
if [ -n "${PYTHON:-}" ]; then
  fits "$PYTHON" || { echo "error: PYTHON=$PYTHON is no Python 3.11 or 3.12: name another one" >&2; exit 2; }
else
  for PYTHON in python3 python3.12 python3.11 ''; do fits "${PYTHON:-false}" && break; done
  [ -n "$PYTHON" ] || { echo "error: no Python 3.11 or 3.12 here: install one, or name it with PYTHON=..." >&2; exit 2; }
fi

libc() { getconf GNU_LIBC_VERSION 2>/dev/null || echo "another libc"; }
wheels_fit() {
  [[ $(uname -m) =~ ^(x86_64|aarch64)$ ]] && printf '%s\n' "glibc 2.28" "$(libc)" | sort --version-sort --check=silent
}

constraints=()
options=()
# prints the version of a torch that came with this interpreter and is recent enough; a virtual one's cannot be shared
find_torch='
import re, sys
from importlib.metadata import version
found = version("torch")
sys.exit(sys.prefix != sys.base_prefix or tuple(map(int, re.findall(r"\d+", found)[:2])) < (2, 11) or print(found))'
if own_torch=$("$PYTHON" -c "$find_torch" 2>/dev/null); then
  echo "keeping this Python's torch $own_torch"
  options=(--system-site-packages)
  mkdir -p "$venv"
  echo "torch==$own_torch" >"$venv/keep-torch.txt"
  constraints=(-c "$venv/keep-torch.txt")
elif ! wheels_fit; then
  echo "error: torch's wheels need glibc 2.28 or newer on x86_64 or aarch64, and this is $(libc) on $(uname -m): use a" \
    "newer system, or a container (launch/Dockerfile)" >&2
  exit 2
elif ! nvidia-smi >/dev/null 2>&1; then
  echo "no GPU here: torch as in constraints-cpu.txt"
  constraints=(-c constraints-cpu.txt)
fi
echo "installing into $venv, a minute or two"
"$PYTHON" -m venv "${options[@]}" "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${constraints[@]}" -r requirements.txt
touch "$venv/installed"
