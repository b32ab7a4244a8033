"""Check rule 2: each run did what its recipe says. All its records must agree on what ran."""

from collections import defaultdict
from collections.abc import Iterator

from analysis.alike import set_in_file
from analysis.runs import Run
from models.scaling import SCALINGS

FLOAT8 = "quantize.linear.float8.recipe_name"  # the scaling; without this key a run is in bf16
FILTER = "quantize.linear.float8.filter_fqns"
HEAD_ONLY = ([], ["output"])  # filters that leave out no layer but the head
ROUNDING = 0.01  # of shares and bytes that are counted in two ways
PROMISE = 0.9  # of the promised share of FP8 FLOPs: layers too small for FP8 are left out


def broken(runs: list[Run]) -> list[str]:
    """List the contradictions between records of a recipe's runs, each with its runs."""
    found = defaultdict(list)
    for run in runs:
        for fault in faults(run):
            found[fault].append(run.name)
    shares = [run.fp8_share for run in runs]
    if max(shares) - min(shares) > ROUNDING:
        fault = f"{min(shares):.0%} to {max(shares):.0%} of the matmul FLOPs ran in FP8"
        found[fault] = [runs[0].recipe]
    return [f"{fault} ({', '.join(names)})" for fault, names in found.items()]


def faults(run: Run) -> Iterator[str]:
    """Compare the recipe's file, the resolved recipe and the proof.

    What a run checks before it ends is trusted: the FP8 FLOPs of its layers, compiled graphs.
    """
    proof = run.proof
    if not (proof and run.timings):
        yield "its records do not show what ran in FP8, and when"
        return
    keys = set_in_file(run.recipe)
    resolved = run.facts.get(FLOAT8)
    named = [keys.get(FLOAT8) if keys else resolved, resolved, proof.recipe_name]
    if len({*named}) > 1:
        names = ", ".join(name or "bf16" for name in named)
        yield f"recipe, resolved recipe and proof do not name one scaling: {names}"
    if proof.emulated:
        yield "its FP8 matmuls were emulated"
    elif proof.fp8_share < PROMISE * promised_share(run):
        share = f"{proof.fp8_share:.0%} of its matmul FLOPs ran in FP8"
        yield f"{share}; its filter promises {promised_share(run):.0%}"
    if proof.parameters.orphans:
        yield f"{len(proof.parameters.orphans)} of its parameters are in no optimizer"
    if proof.parameters.still_in_first_step:
        yield f"{len(proof.parameters.still_in_first_step)} of its parameters did not move"
    for evidence in proof.model_extra.values():  # of extensions
        for name, value in evidence.items():
            expected = evidence.get(f"{name}_expected")
            if expected and value > expected * (1 + ROUNDING):
                yield f"{name} is {value / expected:.2f} times the expected"


def promised_share(run: Run) -> float:
    """Work out the share of matmul FLOPs that the recipe's scaling runs in FP8 outside the head: 0,
    no promise, if the filter leaves out more than the head.

    With experts the share comes out too small, because a token meets only some of the parameters.
    """
    record = run.record
    # Causality halves attention, so the two counts differ by half of it.
    attention = 2 * (record.flops_per_token - record.flops_per_token_causal)
    multiplied = (record.flops_per_token - attention) / 6  # parameters without the embedding
    head = record.parameters - multiplied  # as large as the embedding; 0 if they are one tensor
    scaling = SCALINGS.get(run.proof.recipe_name)
    if not scaling or run.facts.get(FILTER) not in HEAD_ONLY or head <= 1:
        return 0.0
    return (1 - head / multiplied) * scaling.matmuls / 3
