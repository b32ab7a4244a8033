"""Tables of single studies: what a notebook shows beside the comparison that all studies share.

Each part names its study. A row is a recipe unless a docstring says otherwise.
"""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import yaml

from analysis.comparison import BASELINE, COMPILED, Comparison, in_order
from analysis.losses import verdict
from analysis.newest import ROOT
from analysis.other_logs.published import TOKENS_PER_S
from experiments.records.files import read, read_windows
from experiments.records.run import METRICS, PROOF, RECIPE, TIMING, Proof, Timing
from models.flops import flops_per_token
from models.gpus import GPUS


def first_runs(runs: pd.DataFrame) -> dict[str, Path]:
    """Find the folder of each recipe's first completed run, recipes in the usual order."""
    done = runs[runs["status"] == "completed"].drop_duplicates("recipe")
    paths = dict(zip(done["recipe"], map(Path, done["path"]), strict=True))
    return {recipe: paths[recipe] for recipe in in_order(paths)}


def proofs(runs: pd.DataFrame) -> dict[str, Proof]:
    """Read the proof of each recipe's first completed run."""
    return {recipe: read(path / PROOF, Proof) for recipe, path in first_runs(runs).items()}


def kept_bytes(proof: Proof) -> float:
    """Add up the bytes a parameter that training keeps from step to step: weights and states.

    They were measured from the tensors in memory after the first step, scales included.
    """
    return sum(proof.parameters.bytes_per_parameter.values())


def bytes_sent(runs: pd.DataFrame) -> pd.DataFrame:
    """Look up the MB of weights and of gradients that a step sends."""
    sizes = runs.groupby("recipe", sort=False)[["gathered_bytes", "reduced_bytes"]].max() / 1e6
    return sizes.set_axis(["weights, MB", "gradients, MB"], axis="columns")


def final_losses(comparison: Comparison) -> pd.DataFrame:
    """Average the final loss over completed runs, and subtract the baseline's."""
    runs = comparison.frames.runs
    done = runs[runs["status"] == "completed"]
    losses = done.groupby("recipe")["final_loss"].mean().reindex(comparison.recipes)
    difference = losses - losses.get(comparison.baseline, math.nan)
    return pd.DataFrame({"final loss": losses, "difference": difference})


# ---- four_way: how near FP8 comes to the limits of its formats ----


def fp8_ranges(runs: pd.DataFrame) -> pd.DataFrame:
    """List what was recorded of FP8's ranges, a row a value: see training/fp8_ranges.py."""
    rows = []
    for run in runs.itertuples():
        for window in read_windows(Path(run.path) / METRICS):
            for name, value in window.fp8_ranges.items():
                rows.append([run.run, window.step, *name.split("/"), value])
    return pd.DataFrame(rows, columns=["run", "step", "tensor", "quantity", "group", "value"])


# ---- one_gpu_puzzle: does FP8 not learn on one GPU at batch 1? ----

FROZEN = "puzzle_bf16_frozen"
FOLLOWS = 0.1  # a loss follows one of two others if it is nearer to it by at least this factor


def ownership(runs: pd.DataFrame) -> pd.DataFrame:
    """Count parameter tensors by what the optimizer does with them.

    `owned` is the optimizer's share of all elements.
    """
    sizes = runs.drop_duplicates("recipe").set_index("recipe")["parameters"]
    rows = {}
    for recipe, proof in proofs(runs).items():
        found = proof.parameters.model_dump(exclude={"bytes_per_parameter"})
        owned = found.pop("elements_in_optimizer") / sizes[recipe]
        rows[recipe] = found | {"owned": round(owned, 3)}
    table = pd.DataFrame.from_dict(rows, orient="index")
    return table.map(lambda value: len(value) if isinstance(value, list) else value)


def puzzle_answer(runs: pd.DataFrame, steps: pd.DataFrame) -> list[str]:
    """Say what the runs show, the answer first, a sentence each.

    The runs explain the report if every recipe whose optimizer owns all parameters follows the
    baseline, and the one recipe with orphans follows the run that has these orphans frozen.
    """
    found = {recipe: proof.parameters for recipe, proof in proofs(runs).items()}
    missing = [recipe for recipe in (BASELINE, FROZEN) if recipe not in found]
    if missing:
        return [f"No answer: it needs a completed run of {' and of '.join(missing)}."]
    lost = found.pop(FROZEN).frozen
    explained, facts = any(proof.orphans == lost for proof in found.values()), []
    for recipe in [recipe for recipe in found if recipe != BASELINE]:
        followed, sentences = _followed(runs, steps, recipe)
        expected = {BASELINE: [], FROZEN: lost}.get(followed)
        explained = explained and found[recipe].orphans == expected
        facts += sentences
    if not explained:
        return ["These runs do not explain the report. Whose loss follows which:", *facts]
    never_stepped = 1 - ownership(runs)["owned"][FROZEN]
    return [
        "At batch 1 on one device FP8 learns as bf16 does: its final loss is at least ten times "
        "nearer to that of bf16 than to that of bf16 with frozen weights.",
        "It does not where the optimizer was built before a conversion that replaces the weights: "
        f"then {len(lost)} of them, {never_stepped:.0%} of all parameters, are never "
        "stepped, and the loss is that of bf16 with them frozen.",
        *facts,
    ]


def _followed(runs: pd.DataFrame, steps: pd.DataFrame, recipe: str) -> tuple[str | None, list[str]]:
    """Find whose final loss a recipe follows, the baseline's or the frozen run's; and say so."""
    verdicts = [verdict(runs, steps, recipe, reference) for reference in (BASELINE, FROZEN)]
    near, far = sorted(verdicts, key=lambda judged: abs(judged.difference))
    if not abs(near.difference) < FOLLOWS * abs(far.difference):
        return None, [f"{recipe} follows neither {BASELINE} nor {FROZEN}."]
    follows = (
        f"{recipe} follows {near.baseline}: its final loss differs by {near.difference:+.4f} from "
        f"that, and by {far.difference:+.4f} from that of {far.baseline}."
    )
    return near.baseline, [follows, near.sentence()]


# ---- precision_decoupling: which of AdamW's states bear few bits (FP8-LM, arXiv 2310.18313) ----

# What the paper's table 6 and figure 8 say of the loss.
FP8_LM_LOSS = {
    "fp8_optimizer": "equal",
    "fp8_optimizer_bf16_master": "slightly higher",
    "fp8_optimizer_fp8_master": "higher",
    "fp8_optimizer_fp8_second_moment": "diverges",
}
SMALL = 0.1  # nats per token: beside a loss that differs by more, the others would be one line


def optimizer_states(comparison: Comparison) -> pd.DataFrame:
    """List the dtypes of what training keeps, its measured bytes a parameter, and the loss."""
    rows = {}
    for recipe, path in first_runs(comparison.frames.runs).items():
        keys = yaml.safe_load((path / RECIPE).read_text())
        parameters, states = keys["training"]["dtype"], keys["optimizer"]["states"]
        rows[recipe] = {
            "parameters": parameters,
            "first moment": states["first_moment"] or parameters,
            "second moment": states["second_moment"] or parameters,
            "master weights": states["master_weights"] or "none",
            "bytes": kept_bytes(read(path / PROOF, Proof)),
        }
    table = pd.DataFrame.from_dict(rows, orient="index").replace({"float8_e4m3fn": "E4M3"})
    table = table.join(final_losses(comparison))
    return table.assign(**{"FP8-LM": [FP8_LM_LOSS.get(recipe, "") for recipe in table.index]})


def small_differences(comparison: Comparison) -> dict[str, pd.DataFrame]:
    """Choose the loss differences that end near 0, which one figure can tell apart."""
    verdicts = comparison.verdicts
    differences = comparison.differences.items()
    return {r: frame for r, frame in differences if abs(verdicts[r].difference) < SMALL}


# ---- fp8_lm: gradients, optimizer states and all-gather in FP8 beside bf16 ----

SUMS = ROOT / "results" / "fp8_lm" / "gradients" / "sums.json"
# The benchmark's ways to add up gradients over ranks, for people.
WAYS = {
    "block": "in float32, a scale for 256 values",
    "tensor": "in float32, one scale",
    "best": "in FP8, best factor in hindsight",
    "auto": "in FP8, automatic scaling by mu",
    "pre": "in FP8, scaled before (1/ranks)",
    "post": "in FP8, scaled after",
}


def fp8_lm_levels(comparison: Comparison) -> pd.DataFrame:
    """List what each recipe sends in a step, beside bf16; what it keeps in memory; its loss."""
    runs = comparison.frames.runs
    table = bytes_sent(runs).loc[comparison.recipes]
    sent = table.sum(axis="columns")
    of_bf16 = sent / sent[comparison.baseline] - 1
    table["sent, to bf16"] = [f"{100 * share:+.0f} %" for share in of_bf16]
    table["bytes a parameter"] = {r: kept_bytes(proof) for r, proof in proofs(runs).items()}
    return table.join(final_losses(comparison))


def gradient_bytes(runs: pd.DataFrame) -> pd.DataFrame:
    """List what each recipe sends in a step, and how many times fewer gradients than bf16."""
    table = bytes_sent(runs)
    gradients = table["gradients, MB"]
    return table.assign(fewer=gradients[COMPILED] / gradients)


def losses_apart(windows: pd.DataFrame) -> str:
    """Say how far single steps of paired runs with FP8 gradients come apart at most."""
    losses = windows.pivot(index=["seed", "step"], columns="recipe", values="loss")
    apart = (losses["fp8_gradients"] - losses[COMPILED]).abs().dropna()
    seed, step = apart.idxmax()
    return (
        f"In {len(apart)} log windows the losses differ by at most {apart.max():.4f}, "
        f"at step {step} of seed {seed:.0f}."
    )


def gradient_sums(path: Path = SUMS) -> pd.DataFrame:
    """Read how exact sums of FP8 gradients are: a row a number of ranks and way to add up."""
    return pd.DataFrame(json.loads(path.read_text())["sums"])


def gradient_decibels(sums: pd.DataFrame) -> pd.DataFrame:
    """Arrange signal to noise in dB: a row a way to add up, a column a number of ranks."""
    table = sums.pivot(index="how", columns="ranks", values="snr_db")
    return table.loc[list(WAYS)].rename(index=WAYS)


# ---- allgather_ladder: what each rung sends, and whether it computes the same ----

COMPUTE = "tensorwise_fp8_compiled"
EACH, COMBINED = "tensorwise_fp8_allgather_amax_each", "tensorwise_fp8_allgather"
RUNGS = {
    COMPILED: "bf16",
    COMPUTE: "FP8 matmuls, gathered in bf16",
    EACH: "gathered in FP8, an all-reduce for each scale",
    COMBINED: "one all-reduce for all scales",
    f"{COMBINED}_ctas_16": "NCCL on at most 16 multiprocessors",
    f"{COMBINED}_ctas_8": "NCCL on at most 8 multiprocessors",
}
# Speed over bf16 of Llama 3 70B on 128 H100 (dev-discuss.pytorch.org/t/2359), which does not give
# batch and length.
LADDER_PUBLISHED = {COMPUTE: 1.40, EACH: 1.42, COMBINED: 1.50}


def ladder_bytes(runs: pd.DataFrame) -> pd.DataFrame:
    """List what each rung of several ranks sends in a step: MB as recorded and by closed form.

    On GPUs also the milliseconds in which NCCL kernels ran, and in which no other kernel did.
    """
    rows = {}
    for recipe, proof in proofs(runs).items():
        found = proof.collectives
        if recipe not in RUNGS or found is None:
            continue
        rows[recipe] = {
            "rung": RUNGS[recipe],
            "gathered": found.gathered_bytes / 1e6,
            "closed_form": found.gathered_bytes_expected / 1e6,
            "reduced": found.reduced_bytes / 1e6,
            "all_reduces": found.all_reduces,
        }
        if found.nccl:
            rows[recipe]["NCCL, ms"] = 1e3 * found.nccl.seconds
            rows[recipe]["NCCL, exposed ms"] = 1e3 * found.nccl.exposed_seconds
    return pd.DataFrame.from_dict(rows, orient="index")


def same_numbers(windows: pd.DataFrame) -> list[str]:
    """Say of each rung above the first in FP8 whether it computes the same numbers, bit for bit.

    With parameters in float32 it does not: a gather in bf16 rounds them first.
    """
    logs = {recipe: log.set_index(["seed", "step"]) for recipe, log in windows.groupby("recipe")}
    lines = []
    for recipe in RUNGS:
        if recipe not in logs or COMPUTE not in logs or recipe in (COMPILED, COMPUTE):
            continue
        both = logs[COMPUTE].join(logs[recipe], how="inner", rsuffix="_above")
        same_loss = both["losses"] == both["losses_above"]
        equal = (same_loss & (both["grad_norm"] == both["grad_norm_above"])).sum()
        lines.append(f"{recipe}: equal to the last bit in {equal} of {len(both)} log windows.")
    return lines


def ladder_speed_ups(comparison: Comparison) -> dict[str, float]:
    """Look up each rung's speed over bf16, by the mean steady step; NaN if runs are too short."""
    over_bf16 = {a: gain.ratio for (a, b), gain in comparison.speed_ups.items() if b == COMPILED}
    rungs = {rung: over_bf16[rung] for rung in RUNGS if rung in over_bf16}
    return {COMPILED: 1.0} | rungs if rungs else {}


# ---- phases: what steps in bf16 before and after FP8 cost ----

# A step's time over bf16's at the published speeds of one GH200.
GH200 = TOKENS_PER_S["baseline_compiled"] / TOKENS_PER_S["tensorwise_fp8_compiled"]
PHASE_COSTS = {
    "fp8_share_of_steps": "steps in FP8",
    "wall_s": "wall time",
    "wall_s_without_warm_up": "without warm-up",
    "compiling": "compiling at switches, s",
}


def phase_costs(comparison: Comparison) -> pd.DataFrame:
    """Average what completed runs cost; times are shares of the opponent's.

    Columns: share of the steps in FP8; wall time with and without warm-up; seconds that
    torch.compile took of the switching steps, which the wall time contains; time at the published
    steady tokens/s of one GH200, each step at the speed of its precision (an estimate without
    warm-up and switches).
    """
    runs = comparison.frames.runs
    done = runs[runs["status"] == "completed"]
    done = done.assign(compiling=[_compiling_at_switches(Path(path)) for path in done["path"]])
    table = done.groupby("recipe")[list(PHASE_COSTS)].mean().rename(columns=PHASE_COSTS)
    times = ["wall time", "without warm-up"]
    table[times] /= table.loc[comparison.opponent, times]
    table["at GH200's published speeds"] = 1 - table["steps in FP8"] * (1 - GH200)
    return table.loc[comparison.recipes]


def _compiling_at_switches(run: Path) -> float:
    """Add up what torch.compile took of switching steps, over all attempts at a run."""
    seconds = 0.0
    for file in run.glob(f"**/{TIMING}"):
        seconds += sum(switch.compile_s for switch in read(file, Timing).switches.values())
    return seconds


# ---- sweep: a benchmark of FP8 on four B200, its figures read against one another ----

B200 = yaml.safe_load((ROOT / "results" / "published_b200.yaml").read_text())


def llama_3(dim, layers, heads, hidden_dim, head_dim=128, tied=False) -> SimpleNamespace:
    """Make the arguments of a Llama 3, as models/flops.py reads them."""
    return SimpleNamespace(
        dim=dim, n_layers=layers, n_heads=heads, n_kv_heads=8, head_dim=head_dim,
        hidden_dim=hidden_dim, vocab_size=128256, qk_norm=False, enable_weight_tying=tied,
        fused_projections=False,
    )  # fmt: skip


B200_MODELS = {
    "llama3.2-1B": llama_3(2048, 16, 32, 8192, head_dim=64, tied=True),
    "llama3.1-8B": llama_3(4096, 32, 32, 14336),
}


def b200_scaling() -> pd.DataFrame:
    """Work out speed-up and efficiency on four GPUs from tokens/s, for both ends of the range."""
    table = pd.DataFrame(B200["scaling"])
    table["speed-up"] = table["tokens/s on 4"] / table["tokens/s on 1"]
    return table.assign(efficiency=table["speed-up"] / 4).round(3)


def b200_mfu() -> pd.DataFrame:
    """Work out each printed MFU again, of the dense peaks; the benchmark's are the sparse ones."""
    table = pd.DataFrame(B200["mfu"])
    table["dense peak"] = table["precision"].map(vars(GPUS["b200"].datasheet)) / 1e12
    table["of the dense peak"] = table["TFLOP/s"] / table["dense peak"]
    return table.round(3)


def b200_tflops() -> pd.DataFrame:
    """Turn tokens/s on one GPU into FLOPs, a row a model, beside the printed ones."""
    table = pd.DataFrame.from_dict(B200["tflops"], orient="index")
    table["TFLOP/s"] = table["tokens/s"] * _flops_per_token(2048) / 1e12
    table["without attention"] = table["tokens/s"] * _flops_per_token(0) / 1e12
    return table.round(0)


def b200_lengths() -> pd.DataFrame:
    """Predict tokens/s by length, over those at 2,048, if a FLOP took as long at each length.

    A row a model; the benchmark prints halves.
    """
    shortest = _flops_per_token(2048)
    table = pd.DataFrame(
        {length: shortest / _flops_per_token(length) for length in B200["lengths"]}
    )
    table.loc["printed"] = B200["lengths"]
    return table.round(2)


def _flops_per_token(length: int) -> pd.Series:
    """Count FLOPs by model."""
    return pd.Series({name: flops_per_token(args, length) for name, args in B200_MODELS.items()})
