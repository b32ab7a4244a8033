#!/usr/bin/env bash
# The Python of a job that trains nothing: PYTHON=tests/launch/show.sh. Shows what a step has, and does ACTION.
[ "$1" = -m ] || exit 0
echo "started $*"
printf '%s\n' "core dumps $(ulimit -c)" "HF_HOME ${HF_HOME-}" "NCCL_NET_PLUGIN ${NCCL_NET_PLUGIN-none}" \
  "GPUs ${CUDA_VISIBLE_DEVICES-}" "caches ${TORCHINDUCTOR_CACHE_DIR-}"
for folder in "$SCRATCH" "$SCRATCH/../host" /capstor; do echo "$folder: $(ls "$folder" 2>/dev/null)"; done
eval "${ACTION-}"
