#!/usr/bin/env bash
# Measure on this machine's GPUs what no GPU has shown yet, and bring tables and notebooks up to date with it.
#
#   launch/measure_all.sh [--gpu NAME] [PART…]   all parts that this machine has GPUs for, or some
#   launch/measure_all.sh --dry-run [PART…]      lists the commands, each of which can be pasted, and runs none
#
# An extension has its parts in extensions/NAME/measure.sh.
# A part that was stopped resumes where it was, if it is started again with --at FOLDER, the name that it printed.
# The GPU's name in models/gpus.py begins the folders' names; --gpu gives another. Results go into results/, an
# extension's into its own.
# Exit codes: 0 all measured, 1 a command failed (the others went on), 2 bad input, 75 and 130 asked to stop.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
python=${PYTHON:-.venv/bin/python}
parts='' gpu='' at='' dry_run='' chosen=() failed=()

declare -A needed=()
part() { parts+="$1 " needed[$1]=$2; } # NAME GPUS: the function of that name measures it
die() { echo "error: $*" >&2; exit 2; }

# Sizes: the four recipes at the published 8.05 B, studies of the loss with Llama 3.2 1B.
small=model.flavor=llama3.2-1B seeds=(--seeds "0,1,2")

part speed 1
speed() { study four_way "${seeds[@]}" --out "results/$at"; }
part loss 1
loss() { # parameters that can hold every update; and one seed in pure bf16
  study four_way --overlay fp32_master "${seeds[@]}" "$small" --out "results/loss_fp32/$at"
  study four_way --overlay no_recompute "$small" --out "results/loss_bf16/$at"
}
shopt -s nullglob
# shellcheck source=/dev/null
for file in extensions/*/measure.sh; do source "$file"; done

while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" && exit ;;
    --dry-run) dry_run=yes ;;
    --gpu | --at)
      [ $# -gt 1 ] || die "$1 needs a value"
      declare "${1#--}=$2" && shift
      ;;
    *)
      [[ " $parts " == *" $1 "* ]] || die "unknown part \`$1\`; known: $parts"
      chosen+=("$1")
      ;;
  esac
  shift
done
[ ${#chosen[@]} -gt 0 ] || read -ra chosen <<<"$parts"
version=$("$python" -c 'from importlib.metadata import version; print(version("torch").split("+")[0])') ||
  die "$python has no torch: run \`make install\`, or name another Python with PYTHON=..."
# The number of GPUs and the first one's name in models/gpus.py, as runs find them
ask='from experiments.jobs.command import exit_with; from experiments.training.machine import print_gpus; exit_with(print_gpus)'
answer=$("$python" -c "$ask") || [ -n "$dry_run" ] || exit 2
read -r gpus found <<<"${answer:-0 None}"
[ -n "$dry_run" ] || [ "$gpus" -gt 0 ] || die "no GPU here: --dry-run lists what a machine with GPUs would run"
gpu=${gpu:-${found/None/gpu}}
at=${at:-${gpu}_$(date +%F)_torch$version}

run() { # COMMAND…: print it, and run it
  local code=0
  printf '%q ' "$python" -m "$@" && echo
  [ -n "$dry_run" ] || "$python" -m "$@" || code=$?
  case $code in
    0) ;;
    75 | 130) exit "$code" ;; # it was asked to stop
    *) failed+=("$(printf '%q ' "$python" -m "$@")") ;;
  esac
}
study() { run experiments.study "$@"; }

echo "# into folders named $at; to resume: --at $at"
for part in "${chosen[@]}"; do
  echo "# $part, GPUs: ${needed[$part]}"
  if [ -z "$dry_run" ] && [ "$gpus" -lt "${needed[$part]}" ]; then
    echo "# left out: $gpus here"
  else
    "$part"
  fi
done
echo "# tables and notebooks"
run tools.readme
run tools.notebooks
if [ ${#failed[@]} -gt 0 ]; then
  printf 'failed: %s\n' "${failed[@]}" >&2
  exit 1
fi
