"""Draw what others measured, and how well left-out sources are predicted."""

from statistics import median

from matplotlib.axes import Axes

from analysis.plots.style import GREY, finding, panels, plot, to_png
from experiments.config.recipes import ROOT
from extensions.decide.pairs import HERE

COLOURS = {"torchao": "#0072B2", "Transformer Engine": "#E69F00", "hand-written": "#009E73"}
LOST = "#D55E00"
TICKS = {0.1: "0.1", 1: "1", 8: "8", 70: "70", 405: "405"}  # billions of parameters


def write(pairs: list[dict], left_out: list[dict], facts: dict) -> None:
    """Write both figures, as PNG."""
    drawn = {
        ROOT / "docs" / "figures" / "speedups_published.png": (published, pairs),
        HERE / "left_out.png": (unseen, left_out, facts),
    }
    for path, panel in drawn.items():
        path.write_bytes(to_png(panels([panel], (8.4, 5.2))))


@plot
def published(axes: Axes, pairs: list[dict]) -> None:
    """Draw each fair pair over the size of its model, in its stack's colour."""
    fair = [pair for pair in pairs if pair.get("billions") and pair["fairness"] != "doubtful"]
    whole = [pair for pair in fair if pair["kind"] != "part"]
    dense = [pair for pair in whole if pair["kind"] == "dense"]
    losing = sum(pair["speed_up"] < 1 for pair in whole)
    middle = median(pair["speed_up"] for pair in dense if 5 < pair["billions"] < 10)
    large = median(pair["speed_up"] for pair in dense if pair["billions"] > 100)
    finding(
        axes,
        f"FP8 gains more the larger the model: {middle:.2f} times at 8 B, {large:.2f} beyond "
        f"100 B (medians); {losing} of {len(whole)} fair pairs lose: small ones, LoRA, experts, "
        "or cut by tensor parallelism",
    )
    axes.axhspan(0.6, 1, color=LOST, alpha=0.07)
    for pair in whole:
        colour = COLOURS.get(pair["stack"], GREY)
        fill = colour if pair["kind"] == "dense" else "white"
        axes.plot(pair["billions"], pair["speed_up"], "o", color=fill, markeredgecolor=colour)
    axes.set_xscale("log")
    axes.set_xticks(list(TICKS), list(TICKS.values()))
    axes.minorticks_off()
    axes.set(xlabel="parameters, billions", ylabel="speed of FP8 over bf16", ylim=(0.6, 1.85))
    for name, colour in (COLOURS | {"other stack": GREY}).items():
        axes.plot([], [], "o", color=colour, label=name)
    axes.plot([], [], "o", color="white", markeredgecolor=GREY, label="experts or LoRA")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))


@plot
def unseen(axes: Axes, left_out: list[dict], facts: dict) -> None:
    """Draw each pair beside its prediction from all other sources."""
    finding(
        axes,
        f"Predicted from other sources alone, {facts['pairs']} pairs of {facts['sources']} sources "
        f"are off by {facts['mean_absolute_error']:.1%} in the mean; {facts['inside']:.0%} lie "
        "in the range",
    )
    axes.plot([0.85, 1.65], [0.85, 1.65], color=GREY, linewidth=1)
    for scaling in ("tensorwise", "rowwise"):
        pairs = [pair for pair in left_out if pair["scaling"] == scaling]
        predicted = [pair["predicted"] for pair in pairs]
        axes.plot(predicted, [pair["speed_up"] for pair in pairs], "o", label=scaling)
    axes.set(xlabel="predicted speed of FP8 over bf16", ylabel="measured")
    axes.legend()
