# shellcheck shell=bash
# What the job files share; they source it in the repository's folder.
set -euo pipefail

die() {
  echo "error: $*" >&2
  exit 2
}

# Names are files, so a wrong one is found at once, before a container has to start.
check_names() {
  local name known
  known=$(basename -s .yaml -a experiments/studies/*.yaml recipes/*.yaml)
  for name in "$@"; do
    [ -f "$name/study.yaml" ] || grep -qxF -- "$name" <<<"$known" || die "unknown recipe \`$name\`; $(nearest "$name" "$known")"
  done
}

# The known names, the most similar ones first where there is a python3 to tell.
nearest() {
  python3 -c '
import difflib, sys
known = sys.argv[2].split()
near = difflib.get_close_matches(sys.argv[1], known, n=2)
print("did you mean " + " or ".join(near) + "? " if near else "", "known: " + ", ".join(known), sep="")
' "$1" "$2" 2>/dev/null || echo "known: ${2//$'\n'/, }"
}

# The container of launch/alps.toml, where srun can start one (CSCS's can); elsewhere the step runs in .venv.
container() {
  if srun --help 2>&1 | grep -q -e --environment; then
    [ -f "${EDF:=launch/alps.toml}" ] || die "EDF=$EDF does not exist: name the container's definition file, see launch/README.md"
    echo "--environment=$(realpath "$EDF")"
  fi
}

# End of the job: 75 asks to be started again, which happens MAX_REQUEUES times at most.
finish() {
  if [ "$1" = 75 ]; then
    if [ "${SLURM_RESTART_COUNT:-0}" -ge "${MAX_REQUEUES:=5}" ]; then
      echo "not requeued: $MAX_REQUEUES times is enough (MAX_REQUEUES). Submit again with: $2"
    elif scontrol requeue "$SLURM_JOB_ID"; then
      echo "requeued; the runs go on from their checkpoints"
    else
      echo "could not be requeued. Submit again with: $2"
    fi
  fi
  exit "$1"
}
