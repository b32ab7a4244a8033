# Parts of launch/measure_all.sh.
part sweep 4
sweep() { run extensions.sweep b200_blog "${seeds[@]}" --out "extensions/sweep/results/$at"; } # 45 cells
