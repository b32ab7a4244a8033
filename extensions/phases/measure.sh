# Parts of launch/measure_all.sh.
part phases 1
phases() { study phases "${seeds[@]}" "$small" --out "extensions/phases/results/phases/$at"; }
