#!/usr/bin/env bash
# launch/install.sh [VENV]: make the environment (default .venv) with everything in requirements.txt and
#   requirements-tools.txt; where no package index can be reached, with what is there, if that is enough for a study.
#   A Python that already has torch keeps it (images, clusters, clouds): the environment sees its packages. What
#   NVIDIA's images pin (PIP_CONSTRAINT) is kept too, but for torchao.
#   Without a GPU, torch is that of constraints-cpu.txt, as PyTorch's own CPU wheel if its index answers within ten
#   seconds; with a GPU it is the newest within constraints.txt. Where uv is installed, it replaces pip.
#   A driver older than 580 gets a torch for CUDA 12. GPU=1 takes the GPU's torch where there is no GPU, as `sbatch` does,
#   which a cluster's login node has; GPU=0 takes the CPU's.
#   PYTHON names the interpreter to use; otherwise the first of python3, python3.12, python3.11 that fits.
#   Example: PYTHON=python3.12 launch/install.sh      Exit codes: 0 installed, 2 something is missing, and said.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1-} in -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' launch/install.sh && exit ;; esac
venv=${1:-.venv}
case ${GPU-} in '' | 0 | 1) ;; *) echo "error: GPU=$GPU: 1 installs for a GPU, 0 for the CPU" >&2 && exit 2 ;; esac

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

# ---- GPUs and their driver ----

ask() { timeout 30 nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null || true; } # FIELD: a line for each GPU
# prints the driver's version by nvidia-smi, or else by the kernel's module; nothing if neither tells it
driver_version() {
  { ask driver_version | grep -oE '^[0-9]{3}\.[0-9.]+' ||
    grep -oE 'Module .*' /proc/driver/nvidia/version 2>/dev/null | grep -oE '[0-9]{3}\.[0-9.]+' || true; } | head -n 1
}
has_gpu() { # nvidia-smi may be broken, not on PATH, or tell in a sentence with exit code 0 that there is no GPU
  ls /dev/nvidia[0-9]* >/dev/null 2>&1 || ask driver_version | grep -E '^[0-9]{3}\.' >/dev/null ||
    timeout 30 nvidia-smi --list-gpus 2>/dev/null | grep -E '^GPU [0-9]' >/dev/null
}
# sets `release`, the torch for this driver and these GPUs, and `reason`; an empty one is the newest, which is for CUDA 13
choose_release() {
  local driver capabilities names blackwell='' old=''
  release='' reason='' driver=$(driver_version)
  capabilities=$(ask compute_cap | grep -xE '[0-9]{1,2}\.[0-9]' || true)
  names=$(ask name; cat /proc/driver/nvidia/gpus/*/information 2>/dev/null || true)
  if [ -n "$capabilities" ]; then
    blackwell=$(grep -E '^1[0-9]\.' <<<"$capabilities" || true)
    old=$(grep -E '^([1-6]\.|7\.[0-4])' <<<"$capabilities" || true) # older than Turing
  else
    blackwell=$(grep -E 'Blackwell|\bG?B[1-3]0+\b|RTX 50' <<<"$names" || true)
  fi
  if [ -n "$driver" ] && [ "${driver%%.*}" -lt 525 ]; then
    echo "error: the GPU's driver $driver is older than 525, which CUDA 12 needs: install a newer driver and reboot, or" \
      "install for the CPU with \`GPU=0 make install\`" >&2
    exit 2
  elif [ -n "$driver" ] && [ "${driver%%.*}" -lt 580 ]; then
    release=2.13.0+cu126 reason="the driver $driver is older than 580, which CUDA 13 needs"
    [ -z "$blackwell" ] || release=2.11.0+cu128 # the last release for 12.8; those for 12.6 have no kernels for Blackwell
  elif [ -n "$old" ] && [ -z "$blackwell" ]; then
    release=2.13.0+cu126 reason="CUDA 13 has no kernels for GPUs older than Turing"
  fi
}
# whether the torch of PYTHON is of use for the GPU here, or for the one that GPU=1 asks for
can_use_gpu() {
  local check=''
  [ "${GPU-}" != 1 ] || check='torch.version.cuda'
  ! has_gpu || check='torch.cuda.is_available()'
  [ -z "$check" ] || [ "${GPU-}" = 0 ] ||
    env -u CUDA_VISIBLE_DEVICES "$PYTHON" -c "import sys, torch; sys.exit(not $check)" >/dev/null 2>&1
}

# ---- the environment ----

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
if ! lost=$("$PYTHON" launch/lost_files.py "$venv" 2>&1); then
  echo "error: $lost: \`rm -r $venv && make install\`" >&2
  exit 2
fi
own_torch=$("$PYTHON" -c "$find_torch" 2>/dev/null) || code=$?
[ -e "$venv" ] || new_venv=$venv
# Half an environment would be in the way of the next installation; what pip has downloaded stays in its cache
stop() {
  [ -z "${new_venv-}" ] || rm -rf "$new_venv"
  echo "stopped; to install: make install" >&2
  exit 130
}
trap stop INT TERM
make_venv() { # OPTION…: shows an error, and no traceback after Ctrl-C
  local errors
  errors=$("$PYTHON" -m venv "$@" "$venv" 2>&1) || { echo "$errors" >&2 && exit 2; }
}
if [ "$("$PYTHON" -c 'import sys; print(sys.prefix)')" -ef "$venv" ]; then
  echo "bringing $venv, which is activated, up to date"
elif [ "$code" = 0 ] && can_use_gpu; then
  echo "keeping this Python's torch $own_torch"
  shared=$("$PYTHON" -c "$share") sees=()
  [ -n "$shared" ] || sees=(--system-site-packages)
  make_venv "${sees[@]}"
  for packages in "$venv"/lib/python3*/site-packages; do echo "$shared" >"$packages/shared.pth"; done
  if "$PYTHON" -c 'import setuptools' 2>/dev/null; then # an older one that venv brings along would hide it
    "$python" -m pip uninstall -qq --yes setuptools 2>/dev/null || true
  fi
  echo "torch==$own_torch" >"$keep"
  [ ! -f "${PIP_CONSTRAINT-}" ] || sed '/^torchao\b/d' "$PIP_CONSTRAINT" >>"$keep"
elif wheels_fit; then
  if [ "$code" = 3 ]; then
    echo "this Python's torch $own_torch is older than 2.11, so $venv gets another torch, without what PIP_CONSTRAINT pins"
    unset PIP_CONSTRAINT
  elif [ -n "$own_torch" ]; then
    echo "this Python's torch $own_torch cannot use the GPU, so $venv gets another torch"
    unset PIP_CONSTRAINT # which would pin that torch
  fi
  make_venv
  rm -f "$keep" "$venv"/lib/python3*/site-packages/shared.pth
else
  echo "error: torch's wheels need glibc 2.28 or newer on x86_64 or aarch64, and this is $(libc) on $(uname -m): use a" \
    "newer system, or a container (launch/Dockerfile)" >&2
  exit 2
fi
options=() asked=requirements.txt size="about 3 GB to download" # torch with its CUDA packages
wheels=https://download.pytorch.org/whl release=''
answers='import sys, urllib.request; urllib.request.urlopen(sys.argv[1] + "/torch/", timeout=10)'
# the newest torch that was tried; one that the environment has already stays, however new
limit_torch() { "$python" -c "$find_torch" >/dev/null 2>&1 || options=(-c constraints.txt); }
# takes PyTorch's own index too, if it can be reached
add_index() { # NAME
  ! "$python" -c "$answers" "$wheels/$1" 2>/dev/null || options+=(--extra-index-url "$wheels/$1")
}
if [ -f "$keep" ]; then
  options=(-c "$keep") size="without torch"
  unset PIP_CONSTRAINT
  if "$python" -c 'import triton' 2>/dev/null; then # under another name, maybe: pip would put a second one over it
    asked=$venv/requirements.txt
    sed '/^triton$/d' requirements.txt >"$asked"
  fi
elif [ "${GPU-}" != 0 ] && has_gpu; then
  choose_release
  if [ -n "$release" ]; then
    echo "$reason: torch $release"
    options=("torch==$release")
    add_index "${release#*+}"
  else
    limit_torch
  fi
elif [ "${GPU-}" = 1 ]; then
  limit_torch
  echo "no GPU here: torch for a GPU all the same, as GPU=1 asks"
elif [ -z "${GPU-}" ] && command -v sbatch >/dev/null; then
  limit_torch
  echo "no GPU here, but sbatch: torch for the GPUs of the cluster's nodes; \`rm -r $venv && GPU=0 make install\` takes the CPU's"
else
  options=(-c constraints-cpu.txt)
  add_index cpu
  if [ ${#options[@]} -gt 2 ]; then
    size="0.6 GB to download"
    echo "no GPU here: torch as in constraints-cpu.txt, for the CPU, of $wheels/cpu"
  else
    size="0.6 GB to download, or 3 GB where the package index has torch for CUDA only"
    echo "no GPU here: torch as in constraints-cpu.txt, of the package index, because $wheels/cpu does not answer"
  fi
fi
if [[ $PWD/$venv =~ [[:space:]\'\"\\] ]]; then
  echo "warning: for a CPU torch cannot compile in a path with spaces or quotes, so without a GPU only recipes that are not" \
    "compiled will run in $PWD: move the repository to a path without them and run \`make install\` there" >&2
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
  if [ -n "$release" ] && [ "$("$python" -c "$find_torch" 2>/dev/null)" != "$release" ]; then
    echo "error: torch $release is not there to install ($reason): it needs $wheels/${release#*+}, or a mirror of that" \
      "which PIP_EXTRA_INDEX_URL names; or a newer driver, after a reboot" >&2
    exit 2
  fi
  missing=$("$python" launch/missing.py requirements.txt) || { echo "error: $missing" >&2; exit 2; }
  echo "pip could not get everything (its reason is here too), but what is there is enough for a study"
fi
# What an editable install comes to, so that a notebook finds `analysis` from any folder. pip would need setuptools for
# it, which an environment without a package index may lack.
for packages in "$venv"/lib/python3*/site-packages; do echo "$PWD" >"$packages/project.pth"; done
if [ "$venv" = .venv ]; then # editors complete and check recipes by it
  "$python" -m experiments.recipe schema >recipes/schema.json.part || {
    rm -f recipes/schema.json.part
    echo "error: the installed packages do not work, see above: \`rm -r .venv && make install\`" >&2
    exit 2
  }
  mv recipes/schema.json.part recipes/schema.json
fi
touch "$venv/installed"
