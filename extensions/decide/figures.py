"""Draw what others measured, and how well left-out sources are predicted."""

from statistics import median

from matplotlib.axes import Axes

from analysis.plots.style import GREY, finding, panels, plot, to_png
from experiments.config.recipes import ROOT
from extensions.decide.pairs import CASTS_KNOWN, HERE

COLOURS = dict(zip(CASTS_KNOWN, ("#0072B2", "#E69F00", "#009E73"), strict=True))
MARKERS = {"Hopper": "o", "Blackwell": "s", "RTX Blackwell": "^", "Ada": "v"}  # others: "D"
LOST = "#D55E00"
TICKS = {0.1: "0.1", 1: "1", 8: "8", 70: "70", 405: "405"}  # billions of parameters
# Pairs that lose, and why: label and its place.
LOSSES = {
    "titan_tp8_8b_asyncTP_rowwise": ("rowwise, matrices cut in eight", (12, 0.76)),
    "nanochat_d26_rowwise": ("rowwise, small matrices", (0.1, 0.83)),
    "rocm72_gpt2xl_mi300x": ("MI300X", (2.2, 0.69)),
    "surogate_lora_b200_0.6B": ("LoRA, 4,096 tokens", (0.075, 0.95)),
}


def write(pairs: list[dict], left_out: list[dict]) -> None:
    """Write both figures, as PNG."""
    drawn = {
        ROOT / "docs" / "figures" / "speedups_published.png": (published, pairs),
        HERE / "left_out.png": (unseen, left_out),
    }
    for path, panel in drawn.items():
        path.write_bytes(to_png(panels([panel], (8.4, 5.2))))


@plot
def published(axes: Axes, pairs: list[dict]) -> None:
    """Draw each pair over the size of its model: colour by stack, shape by GPU."""
    found = {p["name"]: p for p in pairs if p.get("billions") and p["kind"] != "part"}
    fair = [pair for pair in found.values() if pair["fairness"] != "doubtful"]
    losing = sum(pair["speed_up"] < 1 for pair in fair)
    dense = [pair for pair in fair if pair["kind"] == "dense"]
    middle = median(pair["speed_up"] for pair in dense if 5 < pair["billions"] < 10)
    large = median(pair["speed_up"] for pair in dense if pair["billions"] > 100)
    finding(
        axes,
        f"FP8 gains more the larger the model: {middle:.2f} times at 8 B, {large:.2f} beyond "
        f"100 B (medians); {losing} of {len(fair)} fair pairs lose: small ones, LoRA, experts, "
        "or cut by tensor parallelism",
    )
    axes.axhspan(0.6, 1, color=LOST, alpha=0.07)
    axes.axhline(1, color=LOST, linewidth=1)
    for pair in sorted(found.values(), key=lambda pair: pair["stack"] == "torchao"):
        colour = COLOURS.get(pair["stack"], GREY)
        axes.plot(
            pair["billions"],
            pair["speed_up"],
            MARKERS.get(pair["chip"], "D"),
            color=colour if pair["kind"] == "dense" else "white",
            markeredgecolor=colour,
            alpha=0.15 if pair["fairness"] == "doubtful" else 0.85,
        )
    for name, (label, place) in LOSSES.items():
        point = (found[name]["billions"], found[name]["speed_up"])
        axes.annotate(label, point, place, arrowprops={"arrowstyle": "-"})
    axes.set_xscale("log")
    axes.set_xticks(list(TICKS), list(TICKS.values()))
    axes.minorticks_off()
    axes.set(xlabel="parameters, billions", ylabel="speed of FP8 over bf16", ylim=(0.6, 1.85))
    for name, colour in (COLOURS | {"other stack": GREY}).items():
        axes.plot([], [], "o", color=colour, label=name)
    for name, marker in (MARKERS | {"other GPU": "D"}).items():
        axes.plot([], [], marker, color=GREY, label=name)
    axes.plot([], [], "o", color="white", markeredgecolor=GREY, label="experts or LoRA")
    axes.plot([], [], "o", color=GREY, alpha=0.2, label="doubtful: faint")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))


@plot
def unseen(axes: Axes, left_out: list[dict]) -> None:
    """Draw each pair beside its prediction from all other sources."""
    near = sum(abs(row["error"]) < 0.05 for row in left_out)
    text = f"Predicted from other sources alone, {near} of {len(left_out)} pairs are within 5 %"
    finding(axes, text)
    axes.plot([0.85, 1.65], [0.85, 1.65], color=GREY, linewidth=1)
    for stack, colour in COLOURS.items():
        rows = [row for row in left_out if row["stack"] == stack]
        predicted = [row["predicted"] for row in rows]
        measured = [row["speed_up"] for row in rows]
        axes.plot(predicted, measured, "o", color=colour, label=stack)
    axes.set(xlabel="predicted speed of FP8 over bf16", ylabel="measured")
    axes.legend()
