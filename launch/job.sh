# shellcheck shell=bash disable=SC2034
# What the job files share; they source it in the repository's folder.
set -euo pipefail
shopt -s extglob
unset SLURM_EXPORT_ENV # after sbatch --export=NONE srun would start the step without PATH and PWD
recipe_files=(recipes/*.yaml recipes/!(overlays|studies)/*.yaml extensions/*/recipes/*.yaml)
study_files=(recipes/studies/*.yaml extensions/*/studies/*.yaml)

die() {
  echo "error: $*" >&2
  exit 2
}

# ---- the command line ----

# Prints the job file's head.
usage() { sed -n 's/^# \{0,1\}//p; /^\[/q' "$0" | sed '1,/^$/d'; }

# Sorts a command line into names, overlays, out, dry_run and the rest.
parse() {
  local key
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
      --verbose) rest+=("$1") && shift ;;
      -*.*) key=${1##+(-)} && die "unrecognized argument: $1; keys have no dashes: ${key//-/_}=${2-true}" ;;
      -*) die "unrecognized argument: $1; keys have no dashes, as training.steps=200" ;;
      *=*) rest+=("$1") && shift ;;
      *) names+=("$1") && shift ;;
    esac
  done
}

# Names are files, so a wrong one is found at once, before a container has to start.
check_name() { # NAME FILE…: it must be the name of one of the files
  local known
  known=$(basename -s .yaml -a "${@:2}")
  grep -xF -e "$1" <<<"$known" >/dev/null && return
  [ ! -d "$1" ] || die "$1 has no study.yaml, so it is not the folder of a study, or a cleaned scratch has lost the file"
  die "\`$1\` is no recipe (\`ls recipes extensions/*/recipes\` lists all)$(nearest "$1" "$known")"
}

# Prints the known names that are most similar, if there is a python3.
# shellcheck disable=SC2016
nearest() { # NAME KNOWN
  python3 -c '
import difflib, sys
near = difflib.get_close_matches(sys.argv[1], sys.argv[2].split(), n=2)
print(": did you mean " + " or ".join(f"`{name}`" for name in near) + "?" if near else "", end="")
' "$1" "$2" 2>/dev/null || true
}

# ---- the container ----

# Finds the option of srun that starts a container by a definition file (EDF): CSCS's --environment, Sarus Suite's --edf.
edf_option() { srun --help 2>&1 | grep -oE -e '--(environment|edf)\b' | head -n 1 || true; }

# Chooses the container of EDF, where srun can start one; elsewhere the step runs in .venv. Checks that the container will
# see the folder of the runs, and each file or folder that a key names.
find_container() {
  local option word
  container=() mounts=()
  command -v srun >/dev/null ||
    die "srun is not here, as inside a container: start the study with ${PYTHON:-.venv/bin/python} -m experiments.study"
  option=$(edf_option)
  if [ -z "$option" ]; then
    echo "no container (srun has no --environment): the step runs on the node itself"
    return
  fi
  EDF=${EDF:-launch/alps.toml}
  if [ -f "$EDF" ]; then
    container=("$option=$(realpath "$EDF")")
  elif [[ $EDF != */* && $EDF != *.toml ]]; then # a name that the container engine looks up in EDF_PATH
    container=("$option=$EDF")
  else
    die "EDF=$EDF does not exist: name the container's definition file, see launch/README.md"
  fi
  echo "container: ${container[*]}"
  read_mounts "$EDF" 0 || return 0 # not readable here, so nothing is known of its mounts
  check_mounted "$out" "the runs' folder"
  for word in "${rest[@]}"; do
    case $word in
      *=*) [ ! -e "${word#*=}" ] || check_mounted "${word#*=}" "$word" ;;
    esac
  done
}

# Adds the places of a definition file's mounts in the container to `mounts`, those of its base environments first.
read_mounts() { # EDF DEPTH; returns 1 for a file that is not found
  local file text word
  [ "$2" -le 10 ] || return 1 # levels of inheritance, as many as the container engine reads
  file=$(find_edf "$1") || return 1
  text=$(sed -E 's/(^|[[:space:]])#.*//' "$file" | tr '\n' ' ')
  while read -r word; do
    word=$(expand "$word") || exit 2
    read_mounts "$word" $(($2 + 1)) || return 1
  done < <(strings_of base_environment "$text")
  while read -r word; do
    word=$(expand "$word") || exit 2
    word=${word#*:} word=${word%%:*} # SOURCE:PLACE:FLAGS, SOURCE:PLACE or a place alone
    mounts+=("$(realpath -ms "$word")")
  done < <(strings_of mounts "$text")
}

# Prints the file of a definition: a path, or a name in the folders of EDF_PATH.
find_edf() { # EDF
  local folder
  [ ! -f "$1" ] || { echo "$1" && return; }
  while read -rd : folder; do
    [ ! -f "$folder/$1.toml" ] || { echo "$folder/$1.toml" && return; }
  done <<<"${EDF_PATH:-${HOME-}/.edf}:"
  return 1
}

# Prints the strings of a TOML key, one a line: of an array, or the one string that is its value.
strings_of() { # KEY TEXT
  grep -oE "(^| )$1 *= *(\[[^]]*\]|\"[^\"]*\"|'[^']*')" <<<"$2" | head -n 1 |
    grep -oE "\"[^\"]*\"|'[^']*'" | sed 's/^.//; s/.$//' || true
}

# Replaces ${NAME} and ${NAME:-default} by the environment's values.
expand() { # TEXT
  local text=$1
  while [[ $text =~ \$\{([A-Za-z_][A-Za-z_0-9]*)(:-([^}]*))?\} ]]; do
    [ -n "${!BASH_REMATCH[1]-}${BASH_REMATCH[2]}" ] ||
      die "$EDF names \${${BASH_REMATCH[1]}}, which the job does not have: export ${BASH_REMATCH[1]}=/path, and submit with --export=ALL"
    text=${text/"${BASH_REMATCH[0]}"/"${!BASH_REMATCH[1]:-${BASH_REMATCH[3]}}"}
  done
  echo "$text"
}

# What a container does not mount is not there to read, and what it writes there ends with it.
check_mounted() { # PATH WHAT
  local path=$1 places=() place
  [[ $path = /* ]] || path=$PWD/$path # not the shell's own path, in which links are resolved
  for place in "${mounts[@]}"; do places+=("$(realpath -m "$place")"); done
  is_below "$(realpath -ms "$path")" "${mounts[@]}" && is_below "$(realpath -m "$path")" "${places[@]}" && return
  die "the container does not see $path ($2): choose a place below $(printf '%s, ' "${mounts[@]}" | sed 's/, $//')," \
    "or add a line to \`mounts\` in a copy of the definition file, and name the copy with EDF=copy.toml"
}

is_below() { # PATH FOLDER…
  local folder
  for folder in "${@:2}"; do [[ $1/ != "${folder%/}"/* ]] || return 0; done
  return 1
}

# ---- the step, and the end of the job ----

# Runs the job's step in the container. Sets `code`, and `progress`: what this start of the job has done for the next one.
run_step() { # OPTION… COMMAND…: srun's
  local before nested=()
  [ -z "${SLURM_STEP_ID-}" ] || nested=(--overlap) # in `srun --pty bash`, whose step holds the allocation
  before=$(list_progress)
  code=0
  srun "${container[@]}" "${nested[@]}" "$@" || code=$?
  progress=$(LC_ALL=C comm -13 <(echo "$before") <(list_progress))
}

# Lists the whole checkpoints below the runs' folder, and the records of completed runs.
list_progress() {
  find "$out" -path '*/step-*/.metadata' -not -path '*/damaged_checkpoints/*' -print -o \
    -name run.json -exec grep -lE '"status": *"completed"' {} \; 2>/dev/null | LC_ALL=C sort || true
}

# Whether runs have started and none of them keeps checkpoints.
starts_anew() {
  local recipes
  recipes=$(find "$out" -name recipe.yaml -exec cat {} + 2>/dev/null) || true
  [ -n "$recipes" ] && ! grep -A1 '^checkpoint:' <<<"$recipes" | grep 'enable: true' >/dev/null
}

# Ends the job with its step's exit code. 75 asks for another start: the job requeues itself, MAX_REQUEUES times at most,
# and only after progress. 138 is that request before Python could listen.
finish() { # CODE COMMAND…: the command resumes the runs
  local code=$1 command why
  command=$(printf '%q ' "${@:2}")
  case $code in
    0 | 2) exit "$code" ;; # 2 is bad input, and the error before this tells what to do
    75 | 138) ;;
    *)
      echo "exit code $code. To resume: $command"
      exit "$code"
      ;;
  esac
  if [ -z "${progress-}" ] && starts_anew; then
    why="unfinished runs have no checkpoints and start again from step 1: ask for more --time, or submit a new study with checkpoint.enable=true"
  elif [ -z "${progress-}" ]; then
    why="this start completed no run and wrote no checkpoint: ask for more --time, as a start takes minutes until its first step"
  elif [ "${SLURM_RESTART_COUNT:-0}" -ge "${MAX_REQUEUES:-5}" ]; then
    why="it has been requeued ${SLURM_RESTART_COUNT:-0} times"
  elif scontrol requeue "$SLURM_JOB_ID"; then
    echo "requeued: the next start skips completed runs and resumes the others"
    exit "$code"
  else
    why="Slurm refused"
  fi
  echo "exit code $code, not requeued ($why). To resume: $command"
  exit "$code"
}
