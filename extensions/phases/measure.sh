# shellcheck shell=bash disable=SC2154
# Parts of launch/measure_all.sh, which sources this file and has its variables.
part phases 1
phases() { study phases "${seeds[@]}" "$small" --out "extensions/phases/results/phases/$at"; }
