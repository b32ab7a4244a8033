"""What terminal, page and README share: the matrix of recipes, the table of runs, what was trained,
and notes."""

import pandas as pd

from analysis.comparison import COMPILED, OWN, Comparison, in_order
from analysis.doubts import MACHINE
from analysis.load import final_from
from analysis.losses import figure
from analysis.rates import MIN_STEADY

# IQR as a share of the median: published FP8 gains 6 to 34 %; the README's runs have at most 17 %.
NOISY = 0.3
# What the table of runs shows: column to the fact, and its format.
_CELLS = {
    "final\nloss": ("final_loss", "{:.3f}"),
    "tokens/s": ("tokens_per_s", "{:,.0f}"),
    "IQR": ("iqr", "{:.1%}"),
    "MFU": ("mfu_bf16_peak", "{:.1%}"),
    "first\nstep s": ("warm_up_s", "{:.1f}"),
    "wall\ns": ("wall_s", "{:.1f}"),
    "after\nstep 1": ("wall_s_without_warm_up", "{:.1f}"),
    "FP8\nshare": ("fp8_share", "{:.1%}"),
    "memory\nGiB": ("peak_memory_gib", "{:.1f}"),
    "status": ("outcome", "{}"),
}
# What may differ between runs that are compared, and could explain a part of a difference; of the
# first of these two known values are refused.
_NAMED = {name: name for name in ("device", "data", "torch", "torchao")} | MACHINE
_TRAINED = {
    "flavor": "model {flavor}",
    "parameters": "{parameters} parameters",
    "steps": "{steps:,} steps",
    "tokens_per_step": "{tokens_per_step:,.0f} tokens a step",
    "seq_len": "rows of {seq_len:,.0f} tokens",
    "tokens": "{tokens} tokens a run",
    "dataset": "data {dataset}",
    "overlays": "overlays {overlays}",
    "seeds": "seeds: {seeds}",
    "date": "{date}",
    "code": "commit {code}",
    "torch": "torch {torch}",
    "torchao": "torchao {torchao}",
    "torchtitan": "torchtitan {torchtitan}",
    "driver": "driver {driver}",
    "device": "{device}",
    "world_size": "processes: {world_size:.0f}",
    "power_limit_w": "power limit {power_limit_w:.0f} W",
    "sm_clock_max_mhz": "clock up to {sm_clock_max_mhz:.0f} MHz",
}


# ---- a row a recipe ----


def matrix(comparison: Comparison) -> pd.DataFrame:
    """Word the comparison, a row a recipe: its speed, when it overtakes, its loss, and the proof of
    FP8."""
    opponent = comparison.opponent
    step = max((v.step for v in comparison.verdicts.values()), default=0)
    loss = f"final loss (steps {final_from(step):,} to {step:,})" if step else "final loss"
    over = "over compiled bf16" if opponent == COMPILED else f"over {opponent}"
    lines = []
    for recipe in in_order([*comparison.recipes, *comparison.diverged]):
        ratio, paid = "1" if recipe == opponent else "-", "-"
        if (recipe, opponent) in comparison.speed_ups:
            ratio = comparison.speed_ups[recipe, opponent].word
        if (recipe, opponent) in comparison.break_evens:
            paid = comparison.break_evens[recipe, opponent].word
        found = loss_word(comparison, recipe), _share(comparison, recipe)
        lines.append([recipe, speed_word(comparison, recipe), ratio, paid, *found])
    names = ["recipe", "tokens/s", over, "overtakes at step", loss, "FP8 share of matmul FLOPs"]
    return pd.DataFrame(lines, columns=names).set_index("recipe")


def speed_word(comparison: Comparison, recipe: str) -> str:
    """Word a recipe's tokens/s, for a table."""
    if recipe not in comparison.completed:
        return "-"
    rate = comparison.completed[recipe].rate
    return f"{rate.mean:,.0f}" if rate.runs else f"too short (< {MIN_STEADY} steady steps)"


def loss_word(comparison: Comparison, recipe: str) -> str:
    """Word a recipe's final loss, or how far it is from the opponent's, for a table."""
    if recipe in comparison.diverged:
        return "diverged in {} of {}".format(*comparison.diverged[recipe])
    if recipe == comparison.opponent:
        return f"{comparison.completed[recipe].runs['final_loss'].mean():.3f}"
    judged = comparison.verdicts.get(recipe)
    if judged is None or not judged.seeds:
        return "-"
    far = comparison.far_off[recipe]
    if len(far.above):
        return f"far above in {len(far.above)} of {far.runs}"
    return f"{figure(judged.difference)}, {judged.word}"


def _share(comparison: Comparison, recipe: str) -> str:
    if recipe not in comparison.completed or recipe not in comparison.fp8:
        return "-"
    runs = comparison.completed[recipe].runs
    if runs["fp8_emulated"].eq(True).any():
        return "emulated"
    ends = dict.fromkeys(f"{end:.0%}" for end in (runs["fp8_share"].min(), runs["fp8_share"].max()))
    return " to ".join(ends).replace("nan%", "unknown")


# ---- a row a run ----


def rows_of(comparison: Comparison) -> pd.DataFrame:
    """`Frames.runs`, recipe by recipe and seed by seed."""
    runs = comparison.frames.runs
    order = in_order(runs["recipe"])
    return runs.sort_values(
        ["recipe", "seed"],
        key=lambda column: column.map(order.index) if column.name == "recipe" else column,
        ignore_index=True,
    )


def run_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Word the table of runs: a row a run, indexed by recipe and seed."""
    facts = runs.assign(outcome=[status(run) for _, run in runs.iterrows()])
    table = _cells(facts, runs["fp8_emulated"].eq(True))
    return table.set_index([runs["recipe"], worded(runs["seed"], "{}")])


def _cells(facts: pd.DataFrame, emulated: pd.Series) -> pd.DataFrame:
    facts = facts.assign(peak_memory_gib=facts["peak_memory_bytes"] / 2**30)
    table = {column: worded(facts[fact], form) for column, (fact, form) in _CELLS.items()}
    table["FP8\nshare"] = table["FP8\nshare"].mask(emulated, "emulated")
    return pd.DataFrame(table)


def worded(values: pd.Series, form: str) -> pd.Series:
    """Write values as text, "-" where one is unknown."""
    words = values.astype(object).map(form.format, na_action="ignore").fillna("-")
    return words.str.removesuffix(".0") if form == "{}" else words


def mean_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Word the means over each recipe's completed runs, as in `run_table`: a row a recipe."""
    completed, recipes = runs["status"].eq("completed"), runs["recipe"]
    facts = [fact for fact, _ in _CELLS.values() if fact in runs]
    done = runs[[*facts, "peak_memory_bytes"]].where(completed).groupby(recipes, sort=False)
    counts = completed.groupby(recipes, sort=False).agg(["sum", "size"])
    numbers = done.mean()
    numbers["outcome"] = [f"{ended} of {started} completed" for ended, started in counts.to_numpy()]
    emulated = runs["fp8_emulated"].eq(True).groupby(recipes, sort=False).any()
    table = _cells(numbers, emulated)
    table["final\nloss"] += worded(done["final_loss"].std(), " ± {:.3f}").replace("-", "")
    return table


def status(run: pd.Series) -> str:
    """What became of a run, and where it ended. A run that was killed could not record its end."""
    if run["steps_planned"] > 0:
        return f"{run['steps']:.0f} of {run['steps_planned']:.0f}"
    word = "not ended" if run["status"] == "running" else run["status"]
    cut_short = run["steps"] < run["steps_asked"]
    return f"{word} at {run['steps']:.0f}" if cut_short else word


# ---- what was trained ----


def trained(comparison: Comparison) -> str:
    """What was trained, with what, when and where.

    By the first completed run: the runs of a study share it, but for commits and days, which are
    all named.
    """
    runs = rows_of(comparison)
    first = runs.iloc[runs["status"].ne("completed").argmin()]
    days = runs["date"].dropna().sort_values()
    known = {key: value for key, value in first.items() if pd.api.types.is_scalar(value)}
    known |= {
        "seeds": runs["seed"].nunique(),
        "code": ", ".join(runs["code"].dropna().unique()),
        "date": " to ".join(dict.fromkeys([*days[:1], *days[-1:]])),
        "overlays": ", ".join(first["overlays"]) if isinstance(first["overlays"], list) else None,
        "parameters": short(first["parameters"]),
        "tokens": short(first["tokens"]),
    }
    known = {key: value for key, value in known.items() if not pd.isna(value) and value}
    parts = [text.format_map(known) for key, text in _TRAINED.items() if key in known]
    return f"Trained: {'; '.join(parts)}."


def short(number: float) -> str | None:
    """Write three digits with k, M or B."""
    for unit, name in (1e9, "B"), (1e6, "M"), (1e3, "k"):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return None if pd.isna(number) else f"{number:.3g}"


# ---- notes ----


def notes(comparison: Comparison) -> list[str]:
    """What a reader must know to read the tables right."""
    runs = rows_of(comparison)
    lines = [
        "tokens/s: by the mean steady step (after the first 10); IQR: the distance of the "
        "quartiles of the step time. FP8 share: of the FLOPs of the linear layers' matmuls, as "
        "seen in a profiled step, times the share of steps in FP8. Overtakes at step: where the "
        "total wall time, first step (compile) included, drops below the other's. First step: from "
        "process start to the end of step 1. Wall: from process start; after step 1: from its end."
    ]
    peaks = runs["peak_source"].dropna().unique()
    lines += [f"MFU is of the bf16 peak ({source})." for source in peaks]
    lines += [
        f"tokens/s are of all {n:.0f} processes together, MFU and memory of one."
        for n in runs["world_size"].dropna().unique()
        if n > 1
    ]
    if runs["peak_bf16"].max() > 1.01 * runs["peak_bf16"].min():
        lines.append("That peak differs between the runs: compare tokens/s, not MFU.")
    cut = runs.dropna(subset="steps_planned")[["steps", "steps_planned"]].drop_duplicates()
    lines += [
        "The study's time budget ended before its runs: all are compared over their first "
        f"{steps:,.0f} of {planned:,.0f} steps."
        for steps, planned in cut.itertuples(index=False)
    ]
    if runs["source"].ne(OWN).any():
        lines.append(
            "Logs of other programs: their clock starts with the training loop, not with the "
            "process."
        )
    noted = runs.explode("notes").dropna(subset="notes")
    lines += [f"{note} ({_names(of)})." for note, of in noted.groupby("notes", sort=False)]
    return lines + _differences(runs[runs["status"] == "completed"]) + _warnings(runs)


def _differences(done: pd.DataFrame) -> list[str]:
    """What the runs do not share, and could explain a part of a difference."""
    lines = []
    for column, name in _NAMED.items():
        if done[column].nunique(dropna=False) > 1:
            lines.append(
                f"The runs differ in {name}: {_kinds(done, column)}. Part of a difference may come "
                "from that."
            )
    known = done.dropna(subset="gathered_bytes")
    amounts = [
        f"gathered {gathered:,.0f} bytes, reduced {reduced:,.0f} bytes"
        for gathered, reduced in known[["gathered_bytes", "reduced_bytes"]].to_numpy()
    ]
    for of, column, what in (
        (known.assign(sent=amounts), "sent", "Sent among the ranks in a step"),
        (done.dropna(subset="fp8_matmul"), "fp8_matmul", "FP8 matmuls"),
    ):
        if len(of):
            lines.append(f"{what}: {_kinds(of, column)}.")
    return lines


def _warnings(runs: pd.DataFrame) -> list[str]:
    """What is wrong with some runs."""
    warm, lost, noisy = (
        runs[which]
        for which in (runs["compile_cache"].eq("warm"), runs["orphans"] > 0, runs["iqr"] > NOISY)
    )
    lines = []
    if len(warm):
        lines.append(
            "These runs reused compiled kernels: their first step has no compilation: "
            f"{_names(warm)}."
        )
    if len(lost):
        lines.append(
            "The recipe leaves trainable parameters out of the optimizer on purpose, so they never "
            f"learn: {_kinds(lost, 'orphans')}."
        )
    if len(noisy):
        lines.append(
            f"The quartiles of the step time are more than {NOISY:.0%} apart, as where something "
            f"else runs on the machine: {_names(noisy)}. Repeat such runs before comparing speeds."
        )
    return lines


def _kinds(runs: pd.DataFrame, column: str) -> str:
    """Name the values of a column in order, each with the runs that have it."""
    kinds = worded(runs[column], "{}").replace("-", "unknown")
    return "; ".join(
        f"{kind} ({_names(of)})" for kind, of in runs.groupby(kinds.to_numpy(), sort=False)
    )


def _names(runs: pd.DataFrame) -> str:
    """Name runs for people: each recipe once, with its seeds."""
    names = []
    for recipe, seeds in runs.groupby("recipe", sort=False)["seed"]:
        listed = ", ".join(worded(seeds.dropna(), "{}"))
        plural = "s" if len(seeds) > 1 else ""
        names.append(f"{recipe} seed{plural} {listed}" if listed else recipe)
    return ", ".join(names)
