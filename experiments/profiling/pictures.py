"""Draw what others measured, and how well the time model predicts it: `docs/figures/`.

    python -m experiments.profiling.pictures

Exit code 0.
"""

from statistics import median

import numpy as np
from matplotlib.axes import Axes

from analysis.plots.style import GREY, finding, panels, plot, to_png
from experiments.config.recipes import ROOT
from experiments.jobs.command import COMPLETED, CommandLine, leave
from experiments.profiling import fit, pairs

SIZE = (8.4, 5.2)  # inches
COLOURS = {
    "torchao": "#0072B2",
    "Transformer Engine": "#E69F00",
    "hand-written": "#009E73",
    "other": GREY,
}
MARKERS = {"Hopper": "o", "Blackwell": "s", "RTX Blackwell": "^", "Ada": "v", "other GPU": "D"}
LOST = "#D55E00"
TICKS = {0.1: "0.1", 1: "1", 8: "8", 70: "70", 405: "405"}  # billions of parameters
# Pairs that lose, and why: label and its place.
LOSSES = {
    "titan_1207_8b_tp2_rowwise": ("rowwise, matrices cut in two", (9, 0.86)),
    "nanochat_d26_rowwise": ("rowwise, small matrices", (0.1, 0.83)),
    "gptoss120b_mxfp8_attn_bs2": ("memory at its limit", (25, 0.70)),
    "rocm72_gpt2xl_mi300x": ("MI300X", (2.2, 0.72)),
    "surogate_lora_b200_0.6B": ("LoRA, 4,096 tokens", (0.075, 0.95)),
}


def main(argv: list[str] | None = None) -> int:
    CommandLine("experiments.profiling.pictures", __doc__).parse(argv)
    for name, draw in (("speedups_published", published), ("decide_leave_one_out", left_out)):
        (ROOT / "docs" / "figures" / f"{name}.png").write_bytes(to_png(panels([(draw,)], SIZE)))
    return COMPLETED


@plot
def published(axes: Axes) -> None:
    """Draw each pair over the size of its model: colour by stack, shape by GPU."""
    found = {p.name: p for p in pairs.read() if p.billions and p.kind != "part"}
    fair = [pair for pair in found.values() if pair.fairness != "doubtful"]
    losing = sum(pair.speed_up < 1 for pair in fair)
    dense = [pair for pair in fair if pair.kind == "dense"]
    middle = median(pair.speed_up for pair in dense if 5 < pair.billions < 10)
    large = median(pair.speed_up for pair in dense if pair.billions > 100)
    finding(
        axes,
        f"FP8 gains more the larger the model: {middle:.2f} times at 8 B, {large:.2f} beyond "
        f"100 B (medians); {losing} of {len(fair)} fair pairs lose: small ones, LoRA, experts, "
        "or cut by tensor parallelism",
    )
    axes.axhspan(0.6, 1, color=LOST, alpha=0.07)
    axes.axhline(1, color=LOST, linewidth=1)
    for pair in sorted(found.values(), key=lambda pair: pair.stack == "torchao"):
        colour = COLOURS.get(pair.stack, GREY)
        axes.plot(
            pair.billions,
            pair.speed_up,
            MARKERS.get(pair.chip, "D"),
            color={"dense": colour}.get(pair.kind, "white"),
            markeredgecolor=colour,
            alpha={"doubtful": 0.15}.get(pair.fairness, 0.85),
        )
    for name, (label, place) in LOSSES.items():
        point = (found[name].billions, found[name].speed_up)
        axes.annotate(label, point, place, arrowprops={"arrowstyle": "-"})
    axes.set_xscale("log")
    axes.set_xticks(list(TICKS), list(TICKS.values()))
    axes.minorticks_off()
    axes.set(xlabel="parameters, billions", ylabel="speed of FP8 over bf16", ylim=(0.6, 1.85))
    for name, colour in COLOURS.items():
        axes.plot([], [], "o", color=colour, label=name)
    for name, marker in MARKERS.items():
        axes.plot([], [], marker, color=GREY, label=name)
    axes.plot([], [], "o", color="white", markeredgecolor=GREY, label="experts or LoRA")
    axes.plot([], [], "o", color=GREY, alpha=0.2, label="doubtful: faint")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))


@plot
def left_out(axes: Axes) -> None:
    """Draw each fitted pair as it is predicted when its group is left out."""
    fitted = fit.fitted()
    rows, width = fitted.rows, fitted.half_width()
    finding(
        axes,
        f"Predicted without their own group, {fitted.inside().mean():.0%} of {len(rows)} pairs lie "
        "in the 80 % range",
    )
    ends = np.array([0.85, 1.65])
    axes.plot(ends, ends, color=GREY, linewidth=1)
    low, high = ends * np.exp(-width), ends * np.exp(width)
    label = f"80 % range of torchao, ±{np.expm1(width):.0%}"
    axes.fill_between(ends, low, high, color=GREY, alpha=0.1, label=label)
    for (stack, scaling), of in rows.groupby(["stack", rows["scaling"] == "rowwise"]):
        label, marker = (f"{stack}, rowwise", "s") if scaling else (stack, "o")
        axes.plot("predicted", "speed_up", marker, data=of, color=COLOURS[stack], label=label)
    axes.set(xlabel="predicted speed of FP8 over bf16", ylabel="measured")
    axes.legend()


if __name__ == "__main__":
    leave(main)
