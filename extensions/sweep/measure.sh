# shellcheck shell=bash disable=SC2154
# Parts of launch/measure_all.sh, which sources this file and has its variables.
part sweep 4
sweep() { run extensions.sweep b200_blog "${seeds[@]}" --out "extensions/sweep/results/$at"; } # 45 cells
