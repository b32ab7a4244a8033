"""The tables and figures of single studies, from planted runs."""

import json
import math

import pandas as pd
import pytest
import yaml

from analysis import plots, prediction, studies
from analysis.comparison import COMPILED, compare
from analysis.load import load
from analysis.studies import COMBINED, COMPUTE, EACH
from analysis.table import notes, rows_of
from experiments.records.run import RECIPE, TIMING
from models.architectures import ARCHITECTURES
from models.flops import parameters
from tests.make_runs import metrics_lines, phases, write_run

# ---- four_way ----


def test_flushed_shares_are_drawn_by_group(tmp_path):
    lines = metrics_lines()
    values = {"weight/flushed/feed_forward.w1": 0.25, "weight/amax/attention.wq": 3.0}
    lines[1]["fp8_ranges"] = values
    write_run(tmp_path / "run", lines=lines)
    ranges = studies.fp8_ranges(load(tmp_path).runs)
    assert ranges.drop(columns="run").values.tolist() == [
        [2, "weight", "flushed", "feed_forward.w1", 0.25],
        [2, "weight", "amax", "attention.wq", 3],
    ]
    weights, gradients = plots.fp8_ranges(ranges).axes
    assert [line.get_label() for line in weights.lines] == ["w1"]
    assert weights.get_title("left").startswith("At most 25 % of a weight's values")
    assert (
        "no run kept FP8's" in gradients.texts[0].get_text() and plots.fp8_ranges(ranges[:0]).empty
    )


# ---- one_gpu_puzzle ----

HIGHER = {"puzzle_fp8_optimizer_first": 1.0, "puzzle_bf16_frozen": 1.0}
ORPHANS = {"puzzle_fp8_optimizer_first": ["a", "b"]}
PUZZLE = ["baseline", "puzzle_fp8", "puzzle_fp8_optimizer_last", *HIGHER]


def concluded(folder, higher=HIGHER, orphans=ORPHANS, recipes=PUZZLE):
    """The answer from one run a recipe: its loss is that much higher, its optimizer lacks those of
    10 tensors."""
    for name in recipes:
        lost, frozen = orphans.get(name, []), ["a", "b"] if name == studies.FROZEN else []
        owned = {"elements_in_optimizer": 10 * (10 - len(lost + frozen))}
        proves = {"parameters": owned | {"orphans": lost, "frozen": frozen}}
        write_run(
            folder / name, name, lines=metrics_lines(shift=higher.get(name, 0)), proves=proves
        )
    comparison = compare(folder)
    return studies.puzzle_answer(comparison), comparison.frames.runs


def test_explained_where_each_follows_what_its_optimizer_owns(tmp_path):
    (first, second, *facts), runs = concluded(tmp_path)
    assert first.startswith("At batch 1 on one device FP8 learns as bf16 does")
    assert "then 2 of them, 20% of all parameters, are never stepped" in second
    assert {fact.split(" weights; ")[0] for fact in facts} == {
        "puzzle_fp8: its optimizer lacks 0",
        "puzzle_fp8_optimizer_last: its optimizer lacks 0",
        "puzzle_fp8_optimizer_first: its optimizer lacks 2",
    }
    owned = studies.ownership(runs)[["orphans", "frozen", "owned"]]
    assert owned.loc["puzzle_fp8_optimizer_first"].tolist() == [2, 0, 0.8]


@pytest.mark.parametrize(
    "changed",
    [
        {"higher": {"puzzle_bf16_frozen": 1.0}},  # the wrong order costs nothing
        {"higher": HIGHER | {"puzzle_fp8": 1.0}},  # FP8 itself does not learn
        {"higher": HIGHER | {"puzzle_fp8_optimizer_first": 0.5}},  # follows neither
        {"orphans": {"puzzle_fp8_optimizer_first": ["a"]}},  # not the weights that were frozen
        {"recipes": [name for name in PUZZLE if name not in ORPHANS]},
        {"recipes": PUZZLE[:-1]},  # without the frozen run
    ],
)
def test_not_explained_otherwise(tmp_path, changed):
    said, _ = concluded(tmp_path, **changed)
    assert said[0].startswith(("These runs do not explain the report", "No answer"))


# ---- precision_decoupling ----


def test_optimizer_states_with_a_loss_that_jumps_to_100(tmp_path):
    states = {"first_moment": "float8_e4m3fn", "second_moment": None, "master_weights": "float16"}
    kept = {"parameters": {"bytes_per_parameter": {"weights": 2.0, "states": 5.5}}}
    for recipe, lines in (
        ("float32_optimizer", metrics_lines()),
        ("fp8_optimizer", metrics_lines(shift=0.05)),
        ("fp8_optimizer_fp8_second_moment", metrics_lines(last=10) + metrics_lines(shift=100)[10:]),
    ):
        path = write_run(tmp_path / recipe, recipe, lines=lines, proves=kept)
        keys = {"training": {"dtype": "bfloat16"}, "optimizer": {"states": states}}
        (path / RECIPE).write_text(yaml.safe_dump(keys))
    comparison = compare(tmp_path, baseline="float32_optimizer")
    row = studies.optimizer_states(comparison).loc["fp8_optimizer"]
    assert row.drop(["final loss", "difference"]).tolist() == [
        "bfloat16", "E4M3", "bfloat16", "float16", 7.5, "equal",
    ]  # fmt: skip
    assert row["difference"] == pytest.approx(0.05)
    for draw, highest in ((plots.loss, 11), (plots.loss_difference, 0.1)):
        (axes,) = draw(comparison).axes
        diverged, *_ = axes.get_legend().get_texts()
        assert diverged.get_text().endswith(", off the axis") and axes.get_ylim()[1] < highest


# ---- fp8_lm ----


def test_sums_by_way_and_ranks(tmp_path):
    """Way k loses k dB with each further rank."""
    rows = []
    for k, how in enumerate(studies.WAYS):
        rows += [{"ranks": n, "how": how, "snr_db": 40.0 - k * n} for n in (2, 8)]
    (tmp_path / "sums.json").write_text(json.dumps({"sums": rows}))
    sums = studies.gradient_sums(tmp_path / "sums.json")
    assert sums.loc[8].tolist() == [*range(40, -1, -8)]
    (axes,) = plots.gradient_sums(sums).axes
    lines = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert lines[studies.WAYS["auto"]] == [34, 16] and len(lines) == 6
    assert "sums in FP8 lose 12 to 30 dB" in axes.get_title("left").replace("\n", " ")


# ---- allgather_ladder ----


def test_what_rungs_send_is_read_from_their_proofs(tmp_path):
    sizes = dict.fromkeys(["reduced_bytes", "reduced_bytes_expected"], 30_000_000)
    sizes |= {"shards": 2, "replicas": 1, "table": [], "all_reduces": 7}
    sizes["nccl"] = {"seconds": 0.5, "exposed_seconds": 0.125}
    for rung, gathered in ((COMPILED, 40_000_000), (COMBINED, 20_000_000)):
        sent = sizes | {"gathered_bytes": gathered, "gathered_bytes_expected": gathered}
        float8 = None if rung == COMPILED else "tensorwise"
        write_run(tmp_path / rung, rung, float8=float8, proves={"collectives": sent}, world_size=2)
    comparison = compare(tmp_path)
    found = studies.ladder_bytes(comparison.frames.runs)
    assert found.loc[COMPILED].tolist() == [40, 40, 30, 7, 500, 125]
    assert found.loc[COMBINED].tolist() == [20, 20, 30, 7, 500, 125]
    said = "\n".join(notes(rows_of(comparison)))
    assert f"gathered 20,000,000 bytes, reduced 30,000,000 bytes ({COMBINED} seed 0)" in said
    published, measured, sizes = plots.allgather_ladder(comparison).axes
    assert "20.0 gathered\n30.0 reduced\n7 all-reduces" in [text.get_text() for text in sizes.texts]
    assert "1.50 ×" in [text.get_text() for text in published.texts]
    assert not any("1.50" in text.get_text() for text in measured.texts)


def test_rungs_are_compared_bit_for_bit():
    log = {COMPUTE: [2.0, 1.0], EACH: [2.0, 1.0], COMBINED: [2.0, math.nextafter(1.0, 2)]}
    rows = []
    for recipe, losses in log.items():
        rows += [(recipe, 0, step, (loss,), 1.0) for step, loss in enumerate(losses)]
    windows = pd.DataFrame(rows, columns=["recipe", "seed", "step", "losses", "grad_norm"])
    each, combined = studies.same_numbers(windows)
    assert "2 of 2" in each and "1 of 2" in combined


def test_prediction_exposes_what_a_slow_network_cannot_hide():
    """70 B on 128 GPUs: 856 M weights a block in bf16 need 17 ms at 100 GB/s, and their gradients
    34 ms."""
    fast, slow = (prediction.table().loc[f"70 B on 128 {gpu}"] for gpu in ("H100", "GH200"))
    exposed, speed = slow[prediction.EXPOSED], slow["predicted"]
    assert (fast[prediction.EXPOSED] < 20).all()
    assert exposed[COMPUTE] > exposed[COMBINED] > 1000 and speed[COMBINED] > 1.2 * speed[COMPUTE]


# ---- phases ----

FP8, PART = "tensorwise_fp8_compiled", "bf16_then_fp8"


@pytest.fixture
def phases_study(tmp_path):
    """bf16 takes 0.4 s a step, FP8 0.2 s; the run of both 0.25 s, and 3 s of compiling.

    Two of its three runs were resumed after their switch.
    """
    for recipe, step_s, in_fp8, shift in (
        (COMPILED, 0.4, {1: False}, 0),
        (FP8, 0.2, {1: True}, 0.2),
        (PART, 0.25, {1: False, 7: True}, 0.1),
    ):
        for seed in range(3):
            path, float8 = tmp_path / f"{recipe}{seed}", "tensorwise" if shift else None
            lines, proves = (
                metrics_lines(step_s=step_s, shift=seed + shift),
                {"phases": phases(in_fp8)},
            )
            facts = {"seed": seed, "float8": float8, "fp8_share": 0.8}
            write_run(path, recipe, lines=lines, proves=proves, **facts)
            if recipe == PART:
                timing = json.loads((path / TIMING).read_text())
                timing["switches"] = {"7": {"in_fp8": True, "compile_s": 3.0}}
                aside = path / "attempt1" if seed else path
                aside.mkdir(exist_ok=True)
                (aside / TIMING).write_text(json.dumps(timing))
    return compare(tmp_path)


def test_what_phases_cost_and_buy(phases_study):
    costs = studies.phase_costs(phases_study)
    assert costs.loc[COMPILED].tolist() == [0, 1, 1, 0, 1]
    part = costs.loc[PART]
    assert part["wall time"] == pytest.approx((14 + 20 * 0.25) / (14 + 20 * 0.4))
    assert part["compiling at switches, s"] == 3
    assert part["at GH200's published speeds"] == pytest.approx(0.2 + 0.8 * 8777 / 10898)
    shares = phases_study.frames.runs.groupby("recipe")["fp8_share"].mean()
    assert shares[[FP8, PART]].tolist() == pytest.approx([0.8, 0.64])  # over all steps


# ---- the benchmark on B200 ----


def test_the_benchmarks_figures_are_recomputed():
    assert studies.b200_tflops()["TFLOP/s"].tolist() == [345, 531]
    assert studies.b200_lengths()[8192].tolist() == [0.77, 0.83, 0.25]
    for name, args in studies.B200_MODELS.items():
        assert parameters(args) == parameters(ARCHITECTURES["llama"].flavors[name])
