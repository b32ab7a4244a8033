# Parts of launch/measure_all.sh.
part scalings 1
scalings() { study scalings --out "extensions/scalings/results/scalings/$at" "$small"; }
