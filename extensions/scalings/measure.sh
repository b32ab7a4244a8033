# shellcheck shell=bash disable=SC2154
# Parts of launch/measure_all.sh, which sources this file and has its variables.
part scalings 1
scalings() { study scalings --out "extensions/scalings/results/scalings/$at" "$small"; }
part formats 1
formats() { study formats --out "extensions/scalings/results/formats/$at" "$small"; }
