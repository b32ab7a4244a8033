# shellcheck shell=bash disable=SC2154
# Parts of launch/measure_all.sh, which sources this file and has its variables.
part candidates 1
candidates() { # our FP8 layer beside torchao's
  study baseline_compiled tensorwise_fp8_compiled candidate_fast_tensorwise rowwise_fp8_compiled candidate_fast_rowwise \
    "${seeds[@]}" --out "extensions/fast_layer/results/candidates/$at"
}
