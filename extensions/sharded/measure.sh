# shellcheck shell=bash disable=SC2154
# Parts of launch/measure_all.sh, which sources this file and has its variables.
part ladder 8
ladder() {
  study baseline_compiled tensorwise_fp8_compiled tensorwise_fp8_allgather_amax_each tensorwise_fp8_allgather \
    tensorwise_fp8_allgather_ctas_16 tensorwise_fp8_allgather_ctas_8 "${seeds[@]}" sharded.processes=8 \
    --out "extensions/sharded/results/allgather_ladder/$at"
}
