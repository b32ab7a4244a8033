# shellcheck shell=bash disable=SC2154
# Parts of launch/measure_all.sh, which sources this file and has its variables.
part decoupling 1
decoupling() {
  study precision_decoupling "${seeds[@]}" "$small" --out "extensions/fp8_lm/results/precision_decoupling/$at"
}
part gradients 8
gradients() {
  study baseline_compiled fp8_gradients "${seeds[@]}" sharded.processes=8 --out "extensions/fp8_lm/results/gradients/$at"
}
part levels 8
levels() { study fp8_lm "${seeds[@]}" sharded.processes=8 --out "extensions/fp8_lm/results/fp8_lm/$at"; }
