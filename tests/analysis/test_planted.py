"""What would mislead: studies of three seeds in which one thing is wrong, the outcome that must
come out, and the doubt that must be named."""

import json
import re
import shutil

import pytest

from analysis.answer import DOUBTS, NO_ANSWERS, OUTCOMES, answer, choose
from analysis.comparison import compare
from analysis.load import LoadError
from analysis.losses import HIGHER, LOWER, SAME
from analysis.report import as_json
from analysis.table import matrix
from tests import make_runs
from tests.make_runs import (
    change,
    change_json,
    change_lines,
    phases,
    plus,
    write_published,
    write_run,
    write_study,
)

FP8, ROWWISE, ALL = "tensorwise_fp8_compiled", "rowwise_fp8_compiled", (0, 1, 2)
BASE, BF16 = "baseline", "baseline_compiled"


# ---- plants: functions of a study's folder ----


def lines(changed, seeds=ALL, recipe=FP8):
    return lambda folder: change_lines(folder, recipe, changed, seeds)


def shifted(recipe, *shifts):
    """Losses of a recipe that are higher, in each seed by so much."""
    return lines(plus(*shifts), recipe=recipe)


def facts(recipe=FP8, seeds=ALL, name="manifest.json", **values):
    return lambda folder: change(folder, recipe, seeds, name, **values)


def renamed(folder):
    change(folder, FP8, recipe="own_fp8")


def status(recipe, word, *seeds):
    return facts(recipe, seeds, status=word)


def proof(seeds=ALL, recipe=FP8, **values):
    return facts(recipe, seeds, "proof.json", **values)


def owned(**lists):
    return make_runs.proof(parameters=lists).parameters.model_dump()


def share(part):
    """A proof by which so much ran in FP8, as the converted layers have it."""
    flops = round(part * 10**8)
    gemms = {"aten::_scaled_mm": flops, "aten::mm": 10**8 - flops}
    return proof(fp8_flops=flops, fp8_flops_expected=flops, gemm_flops=gemms, **{SHARE: part})


def damaged(recipe, seed, name, content="{"):
    return lambda folder: (folder / f"{recipe}{seed}" / name).write_text(content)


def compilation(recipe, graphs, seconds):
    """Compiled runs with so many graphs, in so many seconds."""

    def write(folder):
        change(folder, recipe, compiled=True)
        change(folder, recipe, name="proof.json", compiled_graphs=graphs)
        change(folder, recipe, name="timing.json", phases={"compile": seconds})

    return write


def hardware(recipe, seeds=ALL, **values):
    machine = {"name": "GPU", "type": "cuda", "memory_bytes": 1, "threads": 1}
    return facts(recipe, seeds, hardware=machine | values)


def recipe_file(text, recipe=FP8):
    """The resolved recipes of a recipe's runs."""

    def write(folder):
        for seed in ALL:
            (folder / f"{recipe}{seed}" / "recipe.yaml").write_text(text)

    return write


def resumed(recipe, seed, status, error=None):
    """A completed run whose first attempt ended so after 50 steps; the second has a new clock."""

    def restarted(line, _):
        return {"elapsed_s": line["elapsed_s"] - 8 * (line["step"] > 50)}

    def write(folder):
        run = folder / f"{recipe}{seed}"
        first = run / "attempt1"
        shutil.copytree(run, first)
        for name in ("recipe.yaml", "proof.json"):
            (first / name).unlink()
        change_json(first / "manifest.json", status=status, error=error)
        change_json(run / "manifest.json", attempt=2)
        kept = (run / "metrics.jsonl").read_text().splitlines(keepends=True)[:50]
        (first / "metrics.jsonl").write_text("".join(kept))
        change_lines(folder, recipe, restarted, [seed])

    return write


def planned(folder):
    """A study of three seeds."""
    study = {"recipes": [BASE, BF16, FP8], "seeds": [*ALL]}
    (folder.parent / "study.yaml").write_text(json.dumps(study))


def more_seeds(count):
    """A study of more seeds."""
    return lambda folder: [shutil.rmtree(folder), write_study(folder, seeds=count)]


def published(folder):
    """Logs of the published project, three of each recipe, in place of the study."""
    shutil.rmtree(folder)
    for run in range(3):
        for recipe, seconds in ("baseline-compile", 5.0), ("fp8-tensorwise-compile", 4.0):
            times = (30.0, 4.0, *[seconds + run / 50] * 60)
            write_published(folder / f"{recipe}_2025052{run}_173352.jsonl", times)


def unlinked(recipe, *seeds):
    return lambda folder: [(folder / f"{recipe}{s}" / "recipe.yaml").unlink() for s in seeds]


def row_scaled(flops):
    """A proof whose FP8 matmuls had so many FLOPs with scales of rows."""
    phase = phases({1: True})["1"] | {"row_scaled_flops": flops}
    return proof(phases={"1": phase})


def rowwise(*plants):
    """A recipe of rowwise FP8 of one's own."""

    def resolved(folder):
        for file in folder.glob(f"{FP8}*/recipe.yaml"):
            file.write_text(file.read_text().replace("tensorwise", "rowwise"))

    manifest = facts(float8="rowwise")
    return [resolved, manifest, proof(recipe_name="rowwise"), *plants, renamed]


def other_phases(now, *changed):
    """A proof of two phases, the second of them in FP8, with the FLOPs of these others."""
    found, others = phases({1: now, 101: True}), phases({1: not now, 101: False})
    return proof(phases=found | {k: found[k] | {"gemm_flops": others[k]["gemm_flops"]}
                                 for k in changed})  # fmt: skip


def gone(recipe, *seeds):
    return lambda folder: [shutil.rmtree(folder / f"{recipe}{seed}") for seed in seeds]


def copied(recipe, of, *others):
    """Other seeds' runs that are copies of one."""

    def copy(folder):
        for seed in others:
            shutil.rmtree(folder / f"{recipe}{seed}")
            shutil.copytree(folder / f"{recipe}{of}", folder / f"{recipe}{seed}")
            change_json(folder / f"{recipe}{seed}" / "manifest.json", seed=seed)

    return copy


def budget(*seeds):
    """A study whose budget ended these seeds in bf16 after 100 steps, and all runs by its end."""

    def stop(folder):
        for name in (BASE, BF16, FP8):
            change(folder, name, study_budget_s=60.0, status="interrupted")
        for name in (BASE, BF16):
            change_lines(folder, name, lambda line, _: {} if line["step"] <= 100 else None, seeds)

    return stop


def faster(*, fp8, bf16=(0.1, 0.1, 0.1), **places):
    """Steady steps of so many seconds by seed, and the hosts of the seeds."""

    def change_study(folder):
        for recipe, seconds in (FP8, fp8), (BF16, bf16), (BASE, bf16):
            for seed, step_s in enumerate(seconds):
                change_lines(folder, recipe, of_seconds(step_s, 40.0 * (recipe == FP8)), [seed])
                for key, values in places.items():
                    change(folder, recipe, [seed], **{key: values[seed]})

    return change_study


# ---- what is other about a line, by line and seed ----


def slow_tenths(seconds, logged):
    """Every tenth step takes so many seconds, which the log says as in `logged`, or by the clock
    alone."""

    def slower(line, seed):
        late = max(0, (line["step"] - 5) // 10)  # after the first 10 steps, which are slow anyway
        slow = line["step"] % 10 == 5 and late > 0
        told = {"step_s": [seconds], "not_steady": [] if logged else [line["step"]]}
        return {"elapsed_s": line["elapsed_s"] + late * (seconds - 0.08)} | (told if slow else {})

    return slower


def late_clock(line, seed):
    """60 s between two steps, of which the step times do not tell."""
    return {"elapsed_s": line["elapsed_s"] + 60 * (line["step"] > 100)}


def not_finite(where):
    lost = {"loss": None, "losses": [None]}
    return lambda line, seed: lost if where(line["step"]) else {}


def higher(by, where):
    """A loss that is higher where so, by step and seed."""

    def changed(line, seed):
        rise = by * where(line["step"], seed)
        return {"losses": [line["losses"][0] + rise], "loss": line["loss"] + rise}

    return changed


def stall(seconds, *steps):
    """Steps of seed 1 that take longer by so much."""

    def changed(line, seed):
        slow = seconds * (seed == 1)
        longer = {"step_s": [line["step_s"][0] + slow]} if line["step"] in steps else {}
        count = sum(step <= line["step"] for step in steps)
        return longer | {"elapsed_s": line["elapsed_s"] + slow * count}

    return changed


def slowing(by, first=0.076):
    """Steps that are fast at first, and take longer by such a part of that at the end."""

    def changed(line, seed):
        seconds = first * (1 + by * line["step"] / 200)
        return {"step_s": [seconds]} if line["step"] > 10 else {}

    return changed


def throttled(first, factor=1.5, last=200, recipe=FP8, seeds=ALL):
    """Steps that take so many times as long from one to another, by the clock too."""

    def changed(line, seed):
        step, (seconds,) = line["step"], line["step_s"]
        late = max(0, min(step, last) - first + 1) * (factor - 1) * seconds
        slower = {"step_s": [factor * seconds]} if first <= step <= last else {}
        return {"elapsed_s": line["elapsed_s"] + late} | slower

    return lines(changed, seeds, recipe=recipe)


def copied_losses(last, *seeds):
    """The same losses in all recipes until a step, in some seeds."""

    def changed(line, seed):
        return {"losses": [30.0 + seed - line["step"] / 10]} if line["step"] <= last else {}

    return [lines(changed, seeds, recipe=r) for r in (BF16, FP8)]


def of_seconds(step_s, late=0.0):
    """Steady steps of so many seconds, after a warm-up that is longer by `late`."""

    def changed(line, seed):
        if line["step"] <= 10:
            return {}
        elapsed = 14.0 + late + step_s * (line["step"] - 10)
        return {"elapsed_s": elapsed, "step_s": [step_s]}

    return changed


def zero(line, seed):
    return {"losses": [0.0], "loss": 0.0} if line["step"] > 100 else {}


def padded(line, seed):
    return {"valid_tokens_per_s": 0.1 * line["tokens_per_s"]}


SHARE = "fp8_share_of_matmul_flops"
SLOW_HOST = {"host": ["a", "b", "c"]}
# The plants, the outcome, what the whole answer holds, and the cell of FP8's row that begins so.
PLANTED = {
    "nothing is wrong": ([], SAME, 
        "1.25 times .* would be ahead from about step 2,01[01], .* It ends at the same loss after "
        "200 steps.*9 % of the compute", "+0.0010, the"),
    "slow steps that the median hides": (
        [lines(slow_tenths(0.4, True))], "slower", "0.89 times", "never"),
    "a lead that takes 20 billion steps: 2e-9 s a step on 40 s": (
        [*(lines(of_seconds(1e-8), recipe=r) for r in (BASE, BF16)), lines(of_seconds(8e-9, 40)),
         *(facts(r, peak_flops=None) for r in (BASE, BF16, FP8))],
        SAME, "about step 2\\d,\\d{3},\\d{3},\\d{3}", "1.25"),
    # row 1
    "a stall outside the timed steps": (
        [lines(late_clock)], "doubtful speed", "clock of .* cannot be used", "no common step"),
    "slow steps that are not steady": (
        [lines(slow_tenths(0.6, False))], "doubtful speed", "0.7\\d times", "1.25"),
    "the same in runs that were all stopped on purpose and resumed": (
        [lines(slow_tenths(0.6, False)), *(resumed(FP8, s, "interrupted") for s in ALL)],
        "doubtful speed", "by the wall clock, .* 0.7\\d times", "1.25"),
    # row 2
    "one seed diverges": ([status(FP8, "diverged", 2)], "all spoilt", "in 1 of 3 runs",
                          "diverged in 1 of 3"),
    "a seed diverges of which no bf16 run was completed": (
        [status(BASE, "failed", 2), status(BF16, "failed", 2), status(FP8, "diverged", 2)],
        "all spoilt", "diverged in 1 of 3", "diverged in 1 of 3"),
    "each recipe diverges in another seed": (
        [status(BASE, "diverged", 2), status(BF16, "diverged", 1), status(FP8, "diverged", 0)],
        "loss unclear", "baseline diverged in 1 of 3 runs", "diverged in 1 of 3"),
    "all of bf16 diverges": (
        [status(r, "diverged", *ALL) for r in (BASE, BF16)], "no opponents", "3 of 3", "-"),
    "logs end in NaN and say completed": (
        [lines(not_finite(lambda step: step > 100))], "all spoilt", "in 3 of 3", "diverged in 3"),
    "NaN, and then interrupted": (
        [lines(not_finite(lambda step: step > 100), [2]), status(FP8, "interrupted", 2)],
        "all spoilt", "in 1 of 3", "diverged in 1 of 3"),
    "some losses are not finite": (
        [lines(not_finite(lambda step: step in (100, 184)))], SAME, "Yes", "+0.0010, the same"),
    "the last loss is not finite": (
        [lines(not_finite(lambda step: step == 200))], "all spoilt", "in 3 of 3", "diverged in 3"),
    "most of the last losses are not": (
        [lines(not_finite(lambda step: 181 <= step < 195))], "all spoilt", "3 of 3", "diverged in"),
    # row 3
    "FP8 runs fail": ([status(FP8, "failed", 2), status(BASE, "failed", 1)], "doubtful",
                      "1 of its 3 runs did not end .failed., beside 0 of 3", "2 of 3 seeds"),
    "all of FP8 fails": (
        [facts(FP8, status="failed", error="Traceback:\n  File 3\nout of memory on GPU 1, H200")],
        "none ended", "^No answer: tensorwise_fp8_compiled completed none of its 3 runs .failed: "
        "out of memory on GPU #, H200.[.] It needs", "-"),
    "all of a second FP8 recipe": (
        [lambda folder: write_run(folder / "r", ROWWISE, status="failed", error=" ")], SAME,
        "Yes.* rowwise_fp8_compiled did not complete its only run .failed.[.]", "1.25"),
    "FP8 was planned, and left no record": (
        [planned, gone(FP8, *ALL)], "none ended", "none of its 3 runs .no record.", "-"),
    "empty logs of FP8": (
        [damaged(FP8, seed, "metrics.jsonl", "") for seed in ALL], "none ended", "3 runs .short.",
        "-"),
    "a failed run from a CPU": (
        [status(BASE, "failed", 2), hardware(BASE, [2], type="cpu", name="CPU")], SAME, "Yes",
        "1.25"),
    "the log of one seed ends early": (
        [lines(lambda line, seed: {} if line["step"] < 101 else None, [0])],
        "doubtful", "1 of its 3 runs did not end .short.", "1.25"),
    "damaged records": ([damaged(FP8, 2, "proof.json")], "doubtful", "unreadable", "1.25"),
    "FP8 fails, and bf16 was stopped": (
        [facts(FP8, [2], status="failed", error="illegal address 0x1"),
         status(BF16, "interrupted", 1)], "doubtful", "failed: illegal address #", "1.25"),
    "both fail of the same": (
        [facts(r, [2], status="failed", error=f"no space on node{len(r)}") for r in (BF16, FP8)],
        "loss unclear", "Whether the loss is the same", "2 of 3 seeds"),
    "a run that was killed far above": (
        [lines(higher(30, lambda step, seed: step > 100), [2]), status(FP8, "running", 2)],
        "all spoilt", "far above", "far above in 1 of 3"),
    "FP8 runs that failed, and were resumed": (
        [resumed(FP8, s, "failed", f"CUDA error at 0x{s}") for s in (0, 1)], "doubtful",
        "earlier attempts .*failed: CUDA error at #.: 2 in 3 runs, beside 0 in 3", "1.25"),
    "an FP8 run that was killed, and resumed": (
        [resumed(FP8, 1, "running")], "doubtful", "did not end .killed.: 1 in 3 runs", "1.25"),
    "an FP8 run that was stopped on purpose, and resumed": (
        [resumed(FP8, 1, "interrupted", "stopped by SIGUSR1")], SAME, "Yes", "1.25"),
    "as many bf16 runs that failed, and were resumed": (
        [resumed(r, 1, "failed", "no space") for r in (BF16, FP8)], SAME, "Yes", "1.25"),
    "a planned FP8 run left no record": (
        [planned, gone(FP8, 2)], "doubtful", "1 of its 3 planned runs left no record, beside 0 of",
        "1.25"),
    "seeds that bf16 has alone": (
        [more_seeds(5), gone(FP8, 3, 4)], "doubtful",
        "it lacks 2 of baseline_compiled's 5 seeds", "1.25"),
    "a planned bf16 run left none": (
        [planned, gone(BF16, 2)], "loss unclear", "cannot tell: it ends 0.0075 % above", "1.25"),
    "a start without a time zone": (
        [facts(seeds=[1], start="2026-01-01T10:00:00")], "doubtful", "unreadable", "1.25"),
    "losses that are not finite until near the end": (
        [lines(not_finite(lambda step: step < 170))], "doubtful", "loss of .* not finite in 84%",
        "1.25"),
    "gradients of one run that are not finite": (
        [lines(lambda line, seed: {"grad_norm": None}, [1])], "doubtful",
        "the gradient norm of .*compiled1 is not finite in 100% of its log, beside 0%", "1.25"),
    "gradients of both that are not logged": (
        [lines(lambda line, seed: {"grad_norm": None}, recipe=r) for r in (BF16, FP8)], SAME,
        "Yes", "1.25"),
    "a loss that jumps for 100 steps": (
        [lines(higher(20, lambda step, seed: 50 < step <= 150 and seed == 1))], "doubtful",
        "more than 10 % above baseline_compiled's in 50% of the steps of a seed", "1.25"),
    "bf16's loss jumps for 100 steps": (
        [lines(higher(20, lambda step, seed: 50 < step <= 150), recipe=BF16)], "doubtful",
        "more than 10 % below baseline_compiled's in 50%", "1.25"),
    "a loss that jumps for 8 steps": (
        [lines(higher(20, lambda step, seed: 95 < step <= 103))], "doubtful", "in 4% of", "1.25"),
    "8 losses of bf16 that are not finite": (
        [lines(not_finite(lambda step: 95 < step <= 103), [1], BF16)], "doubtful",
        "the loss of baseline_compiled1 is not finite in 4% of its log, beside 0%", "1.25"),
    # row 4
    "a run blows up after the step to which all are cut": (
        [lines(higher(16, lambda step, seed: step > 150 and seed == 2)), budget(*ALL)], "doubtful",
        "after step 100, .* the loss of tensorwise_fp8_compiled2 is", "1.25"),
    "losses that part a little after that": (
        [lines(higher(0.5, lambda step, seed: step > 100)), budget(0)], "doubtful",
        "after step 100, .* the loss of tensorwise_fp8_compiled1 is \\+0.50", "1.25"),
    "NaN after that": ([lines(not_finite(lambda step: step > 150), [1]), budget(*ALL)], "doubtful",
                       "after step 100, .*compiled1", "1.25"),
    "losses that go on falling after that": ([budget(0)], SAME, "Yes", "1.25"),
    "FP8 slows after that": (
        [throttled(101), budget(*ALL)], "doubtful speed", "0.83 times in the last", "1.25"),
    "FP8 slows after that, and not at its end": (
        [throttled(101, 2.0, 180), budget(*ALL)], "doubtful speed", "0.62 times in the last",
        "1.25"),
    "one of FP8 diverges in such a study": (
        [budget(*ALL), status(FP8, "diverged", 1)], "all spoilt", "in 1 of 3", "diverged in 1"),
    # row 5
    "compilation moves the loss, and FP8 does not": (
        [shifted(r, 0.5, 0.5, 0.5) for r in (BF16, FP8)], SAME, "Yes", "+0.0010, the same"),
    "FP8 moves the loss away from compiled bf16 to eager's": (
        [shifted(BF16, -0.3, -0.3, -0.3)], HIGHER, "No.*a higher loss", "+0.3010, higher"),
    # row 6
    "another weight decay": ([recipe_file("optimizer: {weight_decay: 0.5}\n")], "doubtful speed",
                             "optimizer.weight_decay", "1.25"),
    "a recipe without a file": (
        [renamed, recipe_file("optimizer: {weight_decay: 0.5}\n")],
        "doubtful speed", "more than their recipes say: .*optimizer.weight_decay", "-"),
    "a recipe without a file that differs in FP8 alone": (
        [renamed], SAME, "Yes: own_fp8", "-"),
    "a resolved recipe with another value than its file": (
        [recipe_file("quantize: {linear: {float8: {recipe_name: rowwise}}}\n"),
         facts(float8="rowwise"), proof(recipe_name="rowwise")], "doubtful speed",
        "float8.recipe_name", "1.25"),
    "resolved recipes that are not there": (
        [unlinked(FP8, 0, 1)], "doubtful speed",
        "recipe of tensorwise_fp8_compiled0, tensorwise_fp8_compiled1 is not on record", "1.25"),
    # row 7
    "another power limit": (
        [hardware(FP8, power_limit_w=700.0), hardware(BF16, power_limit_w=350.0)],
        "doubtful speed", "power limit \\(W\\) 700.0 \\(3\\) beside 350.0", "1.25"),
    "the same machines in both": (
        [hardware(r, [2], driver="580") for r in (BF16, FP8)], SAME, "Yes", "1.25"),
    "a driver that is known of FP8 alone": (
        [hardware(FP8, driver="580")], "doubtful speed", "driver 580 .3. beside unknown", "1.25"),
    "machines that are mixed otherwise": (
        [hardware(FP8, [0], driver="1"), hardware(FP8, [1, 2], driver="2"),
         hardware(BF16, driver="2")], "doubtful speed",
        "driver 2 \\(2\\), 1 \\(1\\) beside 2 \\(3\\)", "1.25"),
    "no seed in common": (
        [facts(FP8, [s], seed=s + 3) for s in ALL], "loss unclear", "Whether the loss is", "1.25"),
    "another host": ([facts(host="other")], "doubtful speed", "host other", "1.25"),
    "a host for each run": (
        [facts(r, [s], host=f"{r}{s}") for r in (BF16, FP8) for s in ALL], SAME, "Yes", "1.25"),
    "other attention kernels": ([proof(attention="math")], "doubtful speed", "attention", "1.25"),
    "another commit": (
        [facts(git={"commit": "0a", "changes": None})], "doubtful speed", "commit 0a", "1.25"),
    **{f"another {name}": ([hardware(FP8, **{key: a}), hardware(BF16, **{key: b})],
                           "doubtful speed", f"{name} {a} .3. beside {b} .3.", "1.25")
       for key, name, a, b in [("cudnn", "cuDNN", "9.1", "9.5"), ("cpu", "host CPU", "A", "B"),
                               ("threads", "CPU threads", 4, 8),
                               ("visible_devices", "visible GPUs", "0", "1")]},
    "another size of memory": (
        [hardware(FP8, memory_bytes=80 * 2**30), hardware(BF16, memory_bytes=140 * 2**30)],
        "doubtful speed", "device memory .GiB. 80 .3. beside 140 .3.", "1.25"),
    "another Python and CUDA": (
        [facts(python="3.12", cuda="13.0")], "doubtful speed", "CUDA 13.0", "1.25"),
    "another triton": (
        [facts(packages={"torch": "2.13.0", "torchao": "0.18.0", "torchtitan": "0.2.2",
                         "triton": "3.7"})], "doubtful speed", "triton 3.7", "1.25"),
    "a GPU for each run": (
        [hardware(r, [s], visible_devices=f"{r}{s}") for r in (BF16, FP8) for s in ALL], SAME,
        "Yes", "1.25"),
    "two GPUs for each recipe": (
        [hardware(r, [s], visible_devices=f"{r}{s == 0}") for r in (BF16, FP8) for s in ALL],
        SAME, "Yes", "1.25"),
    "two GPUs, of which each recipe kept to another in most runs": (
        [*(hardware(r, [s], visible_devices=str(int((s == 2) == (r == FP8))))
           for r in (BF16, FP8) for s in ALL),
         faster(fp8=(0.1, 0.1, 0.13), bf16=(0.13, 0.13, 0.1))], "doubtful speed",
        "visible GPUs 0 .2., 1 .1. beside 1 .2., 0 .1.", "1."),
    "hosts that are as fast, in other shares": (
        [facts(r, [s], host=host) for r, hosts in ((FP8, "aba"), (BF16, "abb"))
         for s, host in enumerate(hosts)], SAME, "Yes", "1.25"),
    # row 8
    "a proof of 0 %": ([share(0.0)], "doubtful speed", "only 0.0%", "0%"),
    "15 %, as its converted layers have it": ([share(0.15)], "doubtful speed",
                                              "only 15.0% .* of 75% that are promised", "15%"),
    "50 %, as its converted layers have it": ([share(0.5)], "doubtful speed", "only 50.0%", "50%"),
    "bf16 in the first of two phases of FP8": (
        [other_phases(True, "1")], "doubtful speed", "is to be in FP8 ran in bf16", "75%"),
    "FP8 in a phase of bf16": (
        [other_phases(False, "1")], "doubtful speed", "is to be in bf16 ran in FP8", "38%"),
    "less than the converted layers": (
        [proof(fp8_flops_expected=10**9)], "doubtful speed", "account for 1e\\+09", "75%"),
    "another scaling than the recipe's": (
        [proof(recipe_name="rowwise")], "doubtful speed", "and its proof rowwise", "75%"),
    "manifest and proof of another scaling than the recipe's": (
        [proof(recipe_name="rowwise"), facts(float8="rowwise")], "doubtful speed",
        "its recipe is tensorwise, its manifest rowwise", "75%"),
    "bf16 in FP8": ([proof(recipe=BF16, recipe_name="tensorwise", **{SHARE: 0.75})],
                    "doubtful speed", "its recipe is bf16.* and its proof tensorwise", "75%"),
    "scales of rows in a recipe of tensors": (
        [row_scaled(10)], "doubtful speed", "its FP8 matmuls had scales of rows", "75%"),
    "hardly any scales of rows": (
        rowwise(row_scaled(1000)), "doubtful speed", "had few or no scales of rows", "-"),
    "scales of rows in one of three matmuls": (rowwise(row_scaled(25 * 10**6)), SAME, "Yes", "-"),
    "a scaling that is a number": (
        [recipe_file("quantize: {linear: {float8: {recipe_name: 5}}}\n")], "doubtful speed",
        "its recipe is 5, its manifest tensorwise", "1.25"),
    "none in a recipe of tensors": ([row_scaled(0)], SAME, "Yes", "75%"),
    "emulated": ([proof(emulated=True)], "doubtful speed", "emulated", "emulated"),
    "proofs that differ between seeds": (
        [proof([1], **{SHARE: 0.2})], "doubtful speed", "not that of its FLOPs", "20% to 75%"),
    "parameters in no optimizer": (
        [proof(parameters=owned(orphans=["w"]))], "doubtful speed", "in no optimizer", "75%"),
    "parameters that did not move": (
        [proof([2], parameters=owned(still_in_first_step=["w"]))], "doubtful speed",
        "compiled2 .* 1 of its parameters did not move", "75%"),
    # row 9
    "not compiled": (
        [facts(r, compiled=True) for r in (BF16, FP8)]
        + [facts(BF16, name="timing.json", phases={"compile": 1})], "doubtful speed",
        "of tensorwise_fp8_compiled0.* no time was spent on compilation", "1.25"),
    "few graphs": ([compilation(BF16, 9, 20), compilation(FP8, 2, 20)], "doubtful speed",
                   "less of it was compiled", "1.25"),
    "compiled in no time": ([compilation(BF16, 9, 20), compilation(FP8, 9, 1)], "doubtful speed",
                            "less of it was compiled", "1.25"),
    "compiled for longer": ([compilation(BF16, 9, 20), compilation(FP8, 9, 30)], SAME, "Yes",
                            "1.25"),
    # row 10
    "losses of FP8 that are bf16's to the last bit": (
        copied_losses(200, *ALL), "doubtful", "last bit in 200 of 200 steps, in 3 of 3",
        "+0.0000"),
    "those of one seed, for a while": (
        copied_losses(50, 1), "doubtful", "last bit in 50 of 200 steps, in 1 of 3", "1.25"),
    "equal losses while FP8 is off": (
        [*copied_losses(100, *ALL), proof(phases=phases({1: False, 101: True}))], SAME, "Yes",
        "38%"),
    "seeds that do nothing": (
        [lines(lambda line, seed: {"losses": [28.9]} if line["step"] == 1 else {})], "doubtful",
        "seeds of tensorwise_fp8_compiled begin with the same loss", "1.25"),
    # row 11
    "FP8 slows": (
        [lines(slowing(0.5))], "doubtful speed", "in the first third .* in the last", "cannot"),
    "FP8 slows a little": ([lines(slowing(0.1))], "doubtful", "its lead shrinks: 1.29", "cannot"),
    "bf16 gets faster": (
        [lines(slowing(-0.1, 0.105), recipe=BF16)], "doubtful", "its lead shrinks", "cannot"),
    "FP8 slows in the last sixth": (
        [throttled(168)], "doubtful speed", "1.25 times .* and 0.83 times in the last", "cannot"),
    "FP8 slows in the last tenth": (
        [throttled(182)], "doubtful speed", "0.83 times in the last tenth", "cannot"),
    "FP8 slows in the middle": (
        [throttled(75, 1.8, 135)], "doubtful speed", "0.69 times in the middle", "cannot"),
    "bf16 slows in the middle": (
        [faster(fp8=(0.1, 0.1, 0.1)), throttled(75, 1.4, 135, BF16)], "doubtful speed",
        "1.00 times in the first third .* and 1.40 times in the middle", "cannot"),
    "leads that shrink in one run and not in others": (
        [lines(slowing(by), [seed]) for seed, by in enumerate([0.15, 0.03, 0.0])], SAME, "Yes",
        "1."),
    "phases: the last tenth is in bf16": (
        [throttled(181, 1.25), proof(phases=phases({1: True, 181: False}))], SAME,
        "1.22 times .* would be ahead", "1.22"),
    "one run of FP8 slows in its last third": (
        [throttled(141, seeds=[1])], "doubtful speed", "compiled1 take 1.50 times .* last third",
        "cannot"),
    "two runs slow after a budget's cut, to which one came": (
        [throttled(101, seeds=[1, 2]), budget(0)], "doubtful speed", "compiled[12] take 1.50 times",
        "1.25"),
    "bf16 gets faster after a budget's cut, to which one came": (
        [throttled(101, 0.7, recipe=BF16, seeds=[1, 2]), budget(0)], "doubtful speed",
        "the steps of baseline_compiled[12] take 0.70 times", "1.25"),
    # row 12
    "two seeds of three jump": (
        [shifted(FP8, 6, 0, 10)], "all spoilt",
        "far above baseline_compiled in 2 of 3 seeds \\(15.95 to 20.05 beside 9.95 to 10.05\\)",
        "far above in 2 of 3"),
    "a seed that jumps of which no bf16 run was completed": (
        [status(BF16, "failed", 2), shifted(FP8, 0, 0, 8)], "all spoilt",
        "in 1 of 3 seeds", "far above in 1 of 3"),
    "one seed far above, and another far below": (
        [shifted(FP8, 8, 0, 0), shifted(BF16, 0, 8, 0)], "doubtful", "far below", "far above"),
    "two seeds, 8 % above": (
        [gone(r, 2) for r in (BASE, BF16, FP8)] + [lines(plus(0.84, 0.84), [0, 1])], "loss unclear",
        "cannot tell: it ends 8.4 % above baseline_compiled .mean of 2 seeds, 2 of them 8.4 % "
        "above.", "2 of 3 seeds"),
    "two seeds of three, 8 % above": (
        [shifted(FP8, 0.8, 0.82, 0)], "loss unclear", "2 of them 8 to 8.2 % above", "cannot tell"),
    "three seeds, 2 to 9.5 % above": (
        [shifted(FP8, 0.95, 0.5, 0.2)], "doubtful", "3 of them 2 to 9.. % above", "cannot tell"),
    "a seed that ends at 1e30": (
        [shifted(FP8, 1e30, 0, 0)], "all spoilt", "1 of 3 seeds .1e.30 beside 9.95.(?!.*would)",
        "far"),
    "one seed, and far above": (
        [gone(r, 1, 2) for r in (BASE, BF16, FP8)] + [lines(plus(8), [0])], "all spoilt",
        "in 1 of 1 seed .17.95", "far above in 1 of 1"),
    "bf16's seed jumps, not FP8's": (
        [shifted(BF16, 0, 8, 0)], "doubtful", "far below baseline_compiled in 1 of 3 .* FP8 does "
        "not explain", "1.25"),
    "the same seed jumps in all recipes": (
        [shifted(r, 0, 8, 0) for r in (BASE, BF16, FP8)], SAME, "Yes", "+0.0010, the same"),
    "losses below zero": (
        [shifted(r, -30, -30, -30) for r in (BASE, BF16, FP8)], SAME, "Yes", "+0.0010, the same"),
    # row 14
    "losses of zero": (
        [lines(zero, recipe=r) for r in (BASE, BF16, FP8)], "doubtful", "last bit", "+0.0000"),
    "seeds of 2^60": (
        [facts(r, [s], seed=2**60 + s) for r in (BASE, BF16, FP8) for s in ALL], SAME, "Yes",
        "+0.0010"),
    "seeds of 5e17, and a run that cannot be read": (
        [facts(r, [s], seed=5 * 10**17 + s) for r in (BASE, BF16, FP8) for s in ALL]
        + [damaged(BASE, 2, "manifest.json")], SAME, "Yes", "+0.0010"),
    "several logs without seeds": ([published], "doubtful speed", "nothing proves", "-"),
    # row 15
    "one step of one run stalls": (
        [lines(stall(600, 57))], "doubtful speed", "57 of tensorwise_fp8_compiled1 took 600 s, and "
        "without such steps it has 1.25 times \\(1.25 to 1.25\\)", "0.3"),
    "ten steps of one bf16 run stall": (
        [lines(stall(0.9, *range(50, 60)), recipe=BF16)], "doubtful speed",
        "step 50 of baseline_compiled1 took 1 s, and without such steps it has 1.25", "1.4"),
    "slow steps of all runs are no stalls": (
        [lines(slow_tenths(0.4, True), recipe=BF16)], SAME, "1.63", "1.63"),
    "a lead that is slow steps of bf16 alone": (
        [faster(fp8=(0.1, 0.1, 0.1)), lines(slow_tenths(0.8, True), recipe=BF16)],
        "doubtful speed", "without the steps that take three times the median it has 1.0", "1."),
    # row 16
    "nodes that differ by more than recipes": (
        [faster(fp8=(0.0927, 0.139, 0.1853), bf16=(0.1, 0.15, 0.2), **SLOW_HOST)],
        SAME, "1.08 times", "1.08 (1.08 to 1.08)"),
    "the same without their hosts": (
        [faster(fp8=(0.0927, 0.139, 0.1853), bf16=(0.1, 0.15, 0.2))],
        "unclear", "with 3, 5, 10 runs of each the interval would reach", "1.08 (0."),
    # row 18
    "nothing to speak of": ([faster(fp8=(0.0997, 0.09971, 0.09969))], "as fast", "1.00 times",
                            "1.00"),
    "as fast by its steps, and not by the clock": (
        [faster(fp8=(0.0997, 0.09971, 0.09969)),
         lines(lambda line, _: {"elapsed_s": line["elapsed_s"] + line["step"] / 33}, recipe=BF16)],
        "doubtful speed", "by the wall clock, .* 1.3\\d times", "1.00"),
    # row 19
    "a peak that no GPU has": (
        [facts(peak_flops={"bf16": 1e8, "fp8": None, "source": "wrong"})], "doubtful speed",
        "its MFU is 1250%", "1.25"),
    "faster than bf16's peak, and not than the mixed one": (
        [facts(r, peak_flops={"bf16": 1.1e9, "fp8": 4e9, "source": ""}) for r in (BASE, BF16, FP8)],
        SAME, "Yes", "1.25"),
    "data that nobody knows": (
        [facts(r, data=None) for r in (BASE, BF16, FP8)], "doubtful", "unknown which data", "1.25"),
    "data that is unknown of one run": ([facts(seeds=[1], data=None)], "doubtful speed",
                                        "data stdlib-2e .2., unknown .1. beside", "1.25"),
    "a loss that is 5 % lower": ([shifted(FP8, -0.5, -0.5, -0.5)], "doubtful",
                                 "a lower loss .* FP8 does not explain", "lower"),
    "padding in one recipe": (
        [lines(padded)], "doubtful speed", "90% of its tokens are padding, beside 50%", "1.25"),
    "half of the tokens in some of the steps": (
        [lines(lambda line, seed: {"tokens_per_s": line["tokens_per_s"] / 2}
               if 10 < line["step"] <= 90 else {})], "doubtful speed",
        "its tokens a step vary", "1.25"),
    "only FP8 finds compiled kernels": (
        [facts(name="timing.json", compile_cache="warm")], SAME, "some runs have no comp", "1.25"),
    # row 20
    "a spread as wide as the margin, 0.025": (
        [shifted(FP8, -0.03, 0, 0.03)], "loss unclear",
        "The loss of tensorwise_fp8_compiled: with 3, 5, 10 runs of each", "cannot tell"),
    "a single run of the opponent": (
        [gone(BF16, 1, 2)], "single run", "To get one, repeat", "1.25, one run"),
    "a lower loss": ([shifted(FP8, -0.1, -0.1, -0.1)], LOWER, "Yes.*a lower loss", "lower"),
    "a CPU": ([hardware(r, type="cpu") for r in (BASE, BF16, FP8)], "cpu", "No answer", "1.25"),
    "a CPU that stalls": (
        [lines(stall(600, 57))] + [hardware(r, type="cpu") for r in (BASE, BF16, FP8)], "cpu",
        "^(?!.*took 600 s)", "0.3"),
    "FP8 alone is compiled": (
        [gone(BF16, *ALL), facts(compiled=True), facts(name="timing.json", phases={"compile": 1})],
        "compiled alone", "it needs a completed run of baseline_compiled", "1.25"),
    "too few steps": (
        [lines(lambda line, seed: {} if line["step"] < 30 else None, recipe=r)
         for r in (BASE, BF16, FP8)] + [facts(r, steps=29) for r in (BASE, BF16, FP8)],
        "no rate", "Too short", "too short"),
    "no steady step": (
        [lines(lambda line, seed: {"not_steady": [line["step"]]})], "no rate", "20 steady steps",
        "too short"),
    # studies that are not compared at all
    "three copies of one run": (
        [copied(FP8, 0, 1, 2)], LoadError, "the same losses and step times", ""),
    "a seed twice": ([facts(FP8, [1], seed=0)], LoadError, "the same recipe and seed", ""),
    "another torch": (
        [facts(BF16, packages={"torch": "2.11.0"})], LoadError, "differ in torch", ""),
    "other data": ([facts(data="a")], LoadError, "differ in data .stdlib-2e, a.", ""),
    "more parameters": ([facts(parameters=300_000)], LoadError, "differ in parameters", ""),
    "another batch": ([lines(lambda line, seed: {"tokens_per_s": 2 * line["tokens_per_s"]})],
                      LoadError, "differ in tokens_per_step .100.0, 200.0.", ""),
    "another learning rate": ([lines(lambda line, seed: {"lr": 1e-2})], LoadError,
                              "differ in their learning rate .at step 1: 0.001, 0.01.", ""),
}  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A study in which nothing is wrong."""
    return write_study(tmp_path_factory.mktemp("sound"))


@pytest.mark.parametrize("case", PLANTED)
def test_planted_cases(sound, tmp_path, case):
    plants, outcome, words, cell = PLANTED[case]
    folder = shutil.copytree(sound, tmp_path / "study")
    for plant in plants:
        plant(folder)
    if outcome is LoadError:
        with pytest.raises(LoadError, match=words):
            compare(folder)
        return
    comparison = compare(folder)
    said = " ".join(answer(comparison))
    assert choose(comparison)[0] == outcome, said
    assert re.search(words, said)
    row = matrix(comparison).T.get(FP8, ["-"])
    assert any(cell in found for found in row), row
    as_json(comparison)


def test_recipes_of_ones_own_are_compared(tmp_path):
    renamed(write_study(tmp_path))
    change(tmp_path, BF16, recipe="own_bf16")
    assert answer(compare(tmp_path, "own_bf16"))[0].startswith("Yes: own_fp8")


def test_every_answer_has_a_planted_case():
    outcomes = {outcome for _, outcome, _, _ in PLANTED.values()}
    assert outcomes == {LoadError} | NO_ANSWERS.keys() | OUTCOMES.keys()
    assert len(DOUBTS) == 26


def test_of_several_recipes_the_interval_is_wider_and_says_so(tmp_path):
    """Row 17: the best of two."""
    write_study(tmp_path)
    faster(fp8=(0.08, 0.081, 0.079))(tmp_path)
    (alone,) = [gain for (a, _), gain in compare(tmp_path).speed_ups.items() if a == FP8][1:]
    for seed in ALL:
        shutil.copytree(tmp_path / f"{FP8}{seed}", tmp_path / f"r{seed}")
    change(tmp_path, "r", recipe="rowwise_fp8_compiled", float8="rowwise")
    change(tmp_path, "r", name="proof.json", recipe_name="rowwise")
    both = compare(tmp_path).speed_ups[FP8, BF16]
    assert both.by["step_s"].low < alone.by["step_s"].low and both.tries == 2
