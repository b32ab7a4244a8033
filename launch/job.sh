# shellcheck shell=bash disable=SC2034,SC2016
# What the job files share; they source it in the repository's folder.
set -euo pipefail
shopt -s extglob
recipe_files=(recipes/*.yaml recipes/!(overlays|studies)/*.yaml extensions/*/recipes/*.yaml)
study_files=(recipes/studies/*.yaml extensions/*/studies/*.yaml)

die() {
  echo "error: $*" >&2
  exit 2
}

# Prints what the head of a job file says of it.
usage() { sed -n 's/^# \{0,1\}//p; /^\[/q' "$0" | sed '1,/^$/d'; }

# Sorts a command line into names, overlays, out, dry_run and the rest.
parse() {
  names=() overlays=() rest=() dry_run=() out=
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help) usage && exit ;;
      --overlay | --out | --seed | --seeds | --gpu)
        [ $# -gt 1 ] || die "$1 needs a value"
        case $1 in
          --overlay) overlays+=("$1" "$2") ;;
          --out) out=$2 ;;
          *) rest+=("$1" "$2") ;;
        esac
        shift 2
        ;;
      --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
      --dry-run) dry_run=("$1") && shift ;;
      -* | *=*) rest+=("$1") && shift ;;
      *) names+=("$1") && shift ;;
    esac
  done
}

# Names are files, so a wrong one is found at once, before a container has to start.
check_name() { # NAME FILE…: it must be the name of one of the files
  local known
  known=$(basename -s .yaml -a "${@:2}")
  grep -xF -e "$1" <<<"$known" >/dev/null ||
    die "\`$1\` is no recipe (\`python -m experiments.recipe list --all\` has all)$(nearest "$1" "$known")"
}

# The known names that are most similar, where there is a python3 to tell.
nearest() {
  python3 -c '
import difflib, sys
near = difflib.get_close_matches(sys.argv[1], sys.argv[2].split(), n=2)
print(": did you mean " + " or ".join(f"`{name}`" for name in near) + "?" if near else "", end="")
' "$1" "$2" 2>/dev/null || true
}

# The container of launch/alps.toml, where srun can start one (CSCS's can); elsewhere the step runs in .venv.
find_container() {
  container=()
  srun --help 2>&1 | grep -e --environment >/dev/null || return 0
  [ -f "${EDF:=launch/alps.toml}" ] || die "EDF=$EDF does not exist: name the container's definition file, see launch/README.md"
  container=("--environment=$(realpath "$EDF")")
  if [ "$EDF" = launch/alps.toml ]; then # what it does not mount would be written into the container, and end with it
    case $(realpath -m "$out")/ in
      "$(realpath -m "${SCRATCH:-/nowhere}")"/* | "$(realpath .)"/*) ;;
      *) die "the container sees \$SCRATCH and this folder only, not $out: choose another, or mount it in a copy of launch/alps.toml and name that with EDF=…" ;;
    esac
  fi
}

# Whether runs have started and none of them keeps checkpoints.
starts_anew() {
  local recipes
  recipes=$(cat "$out"/recipe.yaml "$out"/*/*/recipe.yaml "$out"/*/*/*/recipe.yaml 2>/dev/null) || true
  [ -n "$recipes" ] && ! grep -A1 '^checkpoint:' <<<"$recipes" | grep 'enable: true' >/dev/null
}

# End of the job: 75 asks to be started again, which happens MAX_REQUEUES times at most.
finish() { # CODE COMMAND…: the command resumes the runs
  local command why="${SLURM_RESTART_COUNT:-0} times so far"
  command=$(printf '%q ' "${@:2}")
  if [ "$1" = 75 ] && starts_anew; then
    why="without checkpoint.enable=true unfinished runs start again from step 1"
  elif [ "$1" = 75 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt "${MAX_REQUEUES:-5}" ] && scontrol requeue "$SLURM_JOB_ID"; then
    echo "requeued; the runs go on from their checkpoints"
    exit "$1"
  fi
  if [ "$1" != 0 ] && [ "$1" != 2 ] && [ -d "$out" ]; then # 2 is bad input, and the error before this says what to do
    echo "exit code $1, not requeued ($why). To go on: $command"
  fi
  exit "$1"
}
