#!/usr/bin/env bash
# launch/install.sh [VENV]: make the environment (default .venv) with everything in requirements.txt and
#   requirements-tools.txt; where no package index can be reached, with what is there, if that is enough for a study.
#   A Python that already has torch keeps it (images, clusters, clouds): the environment sees its packages. What
#   NVIDIA's images pin (PIP_CONSTRAINT) is kept too, but for torchao.
#   Without a GPU, torch is that of constraints-cpu.txt, as PyTorch's own CPU wheel if its index answers within three
#   seconds; with a GPU it is the newest within constraints.txt. Where uv is installed, it replaces pip.
#   PYTHON names the interpreter to use; otherwise the first of python3, python3.12, python3.11 that fits.
#   Example: PYTHON=python3.12 launch/install.sh      Exit codes: 0 installed, 2 something is missing, and said.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1-} in -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' launch/install.sh && exit ;; esac
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

# prints the version of a torch that came with this interpreter; exit code 1 if there is none, 3 if it is too old
find_torch='
import re, sys
from importlib.metadata import version
found = version("torch")
print(found)
sys.exit(3 * (tuple(map(int, re.findall(r"\d+", found)[:2])) < (2, 11)))'
# prints the line of a .pth file that shares the packages of a virtual environment; nothing for another interpreter
share='
import site, sys
if sys.prefix != sys.base_prefix:
    print("import site;", *(f"site.addsitedir({folder!r});" for folder in site.getsitepackages()))'
python=$venv/bin/python keep=$venv/keep-torch.txt code=0
if [ "$("$PYTHON" -c 'import sys; print(sys.prefix)')" -ef "$venv" ]; then
  echo "bringing $venv, which is activated, up to date"
elif own_torch=$("$PYTHON" -c "$find_torch" 2>/dev/null) || code=$?; [ "$code" = 0 ]; then
  echo "keeping this Python's torch $own_torch"
  shared=$("$PYTHON" -c "$share") sees=()
  [ -n "$shared" ] || sees=(--system-site-packages)
  "$PYTHON" -m venv "${sees[@]}" "$venv"
  for packages in "$venv"/lib/python3*/site-packages; do echo "$shared" >"$packages/shared.pth"; done
  if "$PYTHON" -c 'import setuptools' 2>/dev/null; then # an older one that venv brings along would hide it
    "$python" -m pip uninstall -qq --yes setuptools 2>/dev/null || true
  fi
  echo "torch==$own_torch" >"$keep"
  [ ! -f "${PIP_CONSTRAINT-}" ] || sed '/^torchao\b/d' "$PIP_CONSTRAINT" >>"$keep"
elif wheels_fit; then
  if [ "$code" = 3 ]; then
    echo "this Python's torch $own_torch is older than 2.11, so $venv gets a torch of its own, without what PIP_CONSTRAINT pins"
    unset PIP_CONSTRAINT
  fi
  "$PYTHON" -m venv "$venv"
  rm -f "$keep" "$venv"/lib/python3*/site-packages/shared.pth
else
  echo "error: torch's wheels need glibc 2.28 or newer on x86_64 or aarch64, and this is $(libc) on $(uname -m): use a" \
    "newer system, or a container (launch/Dockerfile)" >&2
  exit 2
fi
options=() asked=requirements.txt size="about 3 GB to download" # torch with its CUDA packages
wheels=https://download.pytorch.org/whl/cpu
answers='import sys, urllib.request; urllib.request.urlopen(sys.argv[1] + "/torch/", timeout=3)'
if [ -f "$keep" ]; then
  options=(-c "$keep") size="without torch"
  unset PIP_CONSTRAINT
  if "$python" -c 'import triton' 2>/dev/null; then # under another name, maybe: pip would put a second one over it
    asked=$venv/requirements.txt
    sed '/^triton$/d' requirements.txt >"$asked"
  fi
elif ! nvidia-smi >/dev/null 2>&1 && ! ls /dev/nvidia[0-9]* >/dev/null 2>&1; then # nvidia-smi may be broken, or not on PATH
  options=(-c constraints-cpu.txt) size="0.6 GB to download, or 3 GB where the package index has torch for CUDA only"
  if "$python" -c "$answers" "$wheels" 2>/dev/null; then
    options+=(--extra-index-url "$wheels") size="0.6 GB to download"
  fi
  echo "no GPU here: torch as in constraints-cpu.txt"
elif ! "$python" -c "$find_torch" >/dev/null 2>&1; then # one that is there already stays, however new
  options=(-c constraints.txt)
fi
echo "installing into $venv, a minute or two: $size"
options+=(-r "$asked" -r requirements-tools.txt)
with_uv() { # not over a torch that is kept: uv does not see the packages of another environment
  [ ! -f "$keep" ] && command -v uv >/dev/null &&
    uv pip install -q --python "$python" --index-strategy unsafe-best-match "${options[@]}"
}
with_pip() { "$python" -m pip install -qq --disable-pip-version-check "${options[@]}"; }
if ! said=$(with_uv 2>&1 || with_pip 2>&1); then
  echo "$said" >&2
  missing=$("$python" launch/missing.py requirements.txt) || { echo "error: $missing" >&2; exit 2; }
  echo "pip could not get everything (its reason is here too), but what is there is enough for a study"
fi
# What an editable install comes to, so that a notebook finds `analysis` from any folder. pip would need setuptools for
# it, which an environment without a package index may lack.
for packages in "$venv"/lib/python3*/site-packages; do echo "$PWD" >"$packages/project.pth"; done
touch "$venv/installed"
