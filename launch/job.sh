# shellcheck shell=bash disable=SC2034
# What the job files share; they source it in the repository's folder.
set -euo pipefail
unset SLURM_EXPORT_ENV # after sbatch --export=NONE srun would start the step without PATH and PWD

die() {
  echo "error: $*" >&2
  exit 2
}

# ---- the command line ----

# Prints the job file's head.
usage() { sed -n 's/^# \{0,1\}//p; /^\[/q' "$0" | sed '1,/^$/d'; }

# Reads of a command line what the job itself needs: `out`, the folder of the runs, if it is named; `has_overlay` and
# `dry_run`, which are empty without these options. All else is Python's to check.
read_options() {
  local word before=
  out='' has_overlay='' dry_run=''
  for word in "$@"; do
    [ "$before" != --out ] || out=$word
    case $word in
      -h | --help) usage && exit ;;
      --out=*) out=${word#*=} ;;
      --overlay | --overlay=*) has_overlay=yes ;;
      --dry-run) dry_run=yes ;;
    esac
    before=$word
  done
}

# ---- the container ----

# Finds the option of srun that starts a container by a definition file (EDF): CSCS's --environment, Sarus Suite's --edf.
edf_option() { srun --help 2>&1 | grep -oE -e '--(environment|edf)\b' | head -n 1 || true; }

# Chooses the container of EDF, where srun can start one; elsewhere the step runs in .venv. Checks that the container will
# see the folder of the runs, and each file or folder that a key names.
find_container() { # WORD…: of the command line
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
  for word in "$@"; do
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

# Runs the job's step in the container. Sets `code`. Python leaves the file .progress in the folder of the runs if it
# completed a run or wrote a checkpoint (experiments/jobs/progress.py).
run_step() { # OPTION… COMMAND…: srun's
  local nested=()
  [ -z "${SLURM_STEP_ID-}" ] || nested=(--overlap) # in `srun --pty bash`, whose step holds the allocation
  rm -f "$out/.progress"
  code=0
  srun "${container[@]}" "${nested[@]}" "$@" || code=$?
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
  if [ ! -e "$out/.progress" ]; then
    why="this start completed no run and wrote no checkpoint: ask for more --time, as a start takes minutes until its first step; without checkpoint.enable=true there are no checkpoints"
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
