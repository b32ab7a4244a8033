#!/usr/bin/env bash
# tests/launch/slurm.sh up|down FOLDER: a real Slurm on this host: four nodes of four GPUs that are files, and an srun with
# --environment, as CSCS's: PYTHON starts the step by tests/launch/container.py; without PYTHON the option does nothing.
# Needs Debian's munge, slurmctld, slurmd, slurm-client, libslurm-dev and gcc.
#   up prints the SLURM_CONF to use. PORT (17017) and the four after it are taken.
set -euo pipefail
PATH=$PATH:/usr/sbin
command=$1 here=$(realpath -m "$2") port=${PORT:-17017}

configure() {
  mkdir -p "$here"/{state,spool/node{1..4},gpus}
  (umask 077 && head -c 128 /dev/urandom >"$here/munge.key")
  for gpu in 0 1 2 3; do ln -sfn /dev/null "$here/gpus/nvidia$gpu"; done # Slurm wants character devices
  cat >"$here/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$port
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
# a requeued job starts again only after its credential, 120 s by default, has run out; 5 is the least
AuthInfo=socket=$here/munge.socket,cred_expire=5
StateSaveLocation=$here/state
SlurmdSpoolDir=$here/spool/%n
SlurmctldPidFile=$here/slurmctld.pid
SlurmdPidFile=$here/%n.pid
SlurmctldLogFile=$here/slurmctld.log
SlurmdLogFile=$here/%n.log
PlugStackConfig=$here/plugstack.conf
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
MinJobAge=3600
KillWait=20
GresTypes=gpu
$(for n in {1..4}; do echo "NodeName=node$n NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=$((port + n)) CPUs=288 RealMemory=460000 Gres=gpu:4"; done)
PartitionName=all Nodes=node[1-4] Default=YES MaxTime=60
CONF
  echo "Name=gpu File=$here/gpus/nvidia[0-3]" >"$here/gres.conf"
  cat >"$here/environment.c" <<'C'
#include <slurm/spank.h>
#include <string.h>
#include <unistd.h>
SPANK_PLUGIN(environment, 1)
static char *file;
static int take(int value, const char *argument, int remote) { file = strdup(argument); return 0; }
static struct spank_option option = {"environment", "FILE", "environment definition file", 1, 0, take};
int slurm_spank_init(spank_t spank, int count, char **words) { return spank_option_register(spank, &option); }
int slurm_spank_task_init(spank_t spank, int count, char **words) { // in the task, in place of its command
  int parts;
  char **command, **variables;
  if (!file || count < 3) return 0;
  spank_get_item(spank, S_JOB_ARGV, &parts, &command);
  spank_get_item(spank, S_JOB_ENV, &variables);
  char *all[parts + 5];
  memcpy(all, (char *[]){words[0], words[1], words[2], file}, 4 * sizeof(char *));
  memcpy(all + 4, command, parts * sizeof(char *));
  all[parts + 4] = NULL;
  return execve(words[0], all, variables);
}
C
  gcc -shared -fPIC -o "$here/environment.so" "$here/environment.c"
  echo "required $here/environment.so ${PYTHON:+$PYTHON $PWD/tests/launch/container.py $here}" >"$here/plugstack.conf"
}

case $command in
  up)
    configure
    export SLURM_CONF=$here/slurm.conf
    munged --force --key-file="$here/munge.key" --socket="$here/munge.socket" --pid-file="$here/munged.pid" \
      --log-file="$here/munged.log" --seed-file="$here/munge.seed"
    slurmctld -c
    for n in {1..4}; do slurmd -N "node$n"; done
    for _ in $(seq 100); do
      [ "$(sinfo -h -N -t idle | wc -l)" = 4 ] && echo "$SLURM_CONF" && exit
      sleep 0.1
    done
    tail -n 5 "$here"/*.log >&2
    exit 1
    ;;
  down)
    for pid in "$here"/{node{1..4},slurmctld,munged}.pid; do
      [ -s "$pid" ] && kill "$(cat "$pid")" && while [ -e "$pid" ]; do sleep 0.05; done
    done
    ;;
esac
