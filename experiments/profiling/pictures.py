"""Draw what others measured, and how well the time model predicts it: `docs/figures/`.

    python -m experiments.profiling.pictures [--out FOLDER]

Exit code 0.
"""

import argparse
from pathlib import Path
from statistics import median

import matplotlib.pyplot as plt
import numpy as np

from experiments.config.recipes import ROOT
from experiments.jobs.command import COMPLETED, leave
from experiments.profiling import fit, pairs
from models.gpus import chip

COLOURS = {
    "torchao": "#0072b2",
    "Transformer Engine": "#e69f00",
    "hand-written": "#009e73",
    "other": "#8c8c8c",
}
MARKERS = {"Hopper": "o", "Blackwell": "s", "RTX Blackwell": "^", "Ada": "v", "other GPU": "D"}
LOST = "#d55e00"
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
    parser = argparse.ArgumentParser(
        prog="python -m experiments.profiling.pictures",
        description="Draw the published speed-ups and the predictions of left-out groups.",
        epilog="example: python -m experiments.profiling.pictures --out docs/figures; exit code 0",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures", metavar="FOLDER")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    for name, draw in (("speedups_published", published), ("decide_leave_one_out", left_out)):
        figure = draw()
        figure.savefig(args.out / f"{name}.png", dpi=200, bbox_inches="tight")
        plt.close(figure)
    return COMPLETED


def _axes(title: str) -> tuple[plt.Figure, plt.Axes]:
    figure, axes = plt.subplots(figsize=(8.4, 5.2))
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, loc="left", fontsize=12)
    axes.grid(alpha=0.25)
    return figure, axes


def published() -> plt.Figure:
    """Draw each pair over the size of its model: colour by stack, shape by GPU."""
    found = [pair for pair in pairs.read()[0] if pair.billions and pair.kind != "part"]
    fair = [pair for pair in found if pair.fairness != "doubtful"]
    losing = sum(pair.speed_up < 1 for pair in fair)
    dense = [pair for pair in fair if pair.kind == "dense"]
    middle = median(pair.speed_up for pair in dense if 5 < pair.billions < 10)
    large = median(pair.speed_up for pair in dense if pair.billions > 100)
    figure, axes = _axes(
        f"FP8 gains more the larger the model: {middle:.2f} times at 8 B, {large:.2f} beyond "
        f"100 B (medians);\n{losing} of {len(fair)} fair pairs lose: small ones, LoRA, experts, "
        "or cut by tensor parallelism"
    )
    axes.axhspan(0.6, 1, color=LOST, alpha=0.07)
    axes.axhline(1, color=LOST, linewidth=1)
    for pair in sorted(found, key=lambda pair: pair.stack == "torchao"):
        colour = COLOURS.get(pair.stack, COLOURS["other"])
        style = {"marker": MARKERS.get(chip(pair.gpu_key), "D"), "markeredgecolor": colour}
        style["color"] = colour if pair.kind == "dense" else "white"
        if pair.speed_up < 1:
            style["markeredgecolor"] = LOST
        faint = 0.15 if pair.fairness == "doubtful" else 0.85
        axes.plot(pair.billions, pair.speed_up, alpha=faint, **style)
        if pair.name in LOSSES:
            label, place = LOSSES[pair.name]
            point = (pair.billions, pair.speed_up)
            axes.annotate(label, point, place, fontsize=8, arrowprops={"arrowstyle": "-"})
    axes.set_xscale("log")
    axes.set_xticks(list(TICKS), list(TICKS.values()))
    axes.minorticks_off()
    axes.set(xlabel="parameters, billions", ylabel="speed of FP8 over bf16", ylim=(0.6, 1.85))
    for name, colour in COLOURS.items():
        axes.plot([], [], "o", color=colour, label=name)
    for name, marker in MARKERS.items():
        axes.plot([], [], marker, color="#555555", label=name)
    axes.plot([], [], "o", color="white", markeredgecolor="#555555", label="experts or LoRA")
    axes.plot([], [], "o", color="#555555", alpha=0.2, label="doubtful: faint")
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def left_out() -> plt.Figure:
    """Draw each fitted pair as it is predicted when its group is left out."""
    fitted = fit.fitted()
    rows, width = fitted.rows, fitted.half_width()
    figure, axes = _axes(
        f"Predicted without their own group, {fitted.inside().mean():.0%} of {len(rows)} pairs lie "
        "in the 80 % range"
    )
    ends = np.array([0.85, 1.65])
    axes.plot(ends, ends, color="#555555", linewidth=1)
    label = f"80 % range of torchao, ±{width:.0%}"
    axes.fill_between(ends, ends * (1 - width), ends * (1 + width), alpha=0.1, label=label)
    for (stack, rowwise), of in rows.groupby(["stack", rows["scaling"] == "rowwise"]):
        label, marker = (f"{stack}, rowwise", "s") if rowwise else (stack, "o")
        colour = COLOURS[stack]
        axes.plot(of["predicted"], of["speed_up"], marker, color=colour, alpha=0.8, label=label)
    axes.set(xlabel="predicted speed of FP8 over bf16", ylabel="measured")
    axes.legend(fontsize=8, frameon=False)
    return figure


if __name__ == "__main__":
    leave(main)
