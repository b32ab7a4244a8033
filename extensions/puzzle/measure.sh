# shellcheck shell=bash disable=SC2154
# Parts of launch/measure_all.sh, which sources this file and has its variables.
part puzzle 1
puzzle() { study one_gpu_puzzle "${seeds[@]}" "$small" --out "extensions/puzzle/results/one_gpu_puzzle/$at"; }
