# Parts of launch/measure_all.sh.
part puzzle 1
puzzle() { study one_gpu_puzzle "${seeds[@]}" "$small" --out "extensions/puzzle/results/one_gpu_puzzle/$at"; }
