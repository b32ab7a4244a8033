"""Check rule 2: each run did what its recipe says. All its records must agree on what ran."""

from collections import defaultdict
from collections.abc import Iterator

from analysis.alike import set_in_file
from analysis.runs import Run
from models.scaling import SCALINGS

FLOAT8 = "quantize.linear.float8.recipe_name"  # the scaling; without this key a run is in bf16
FILTER = "quantize.linear.float8.filter_fqns"
HEAD_ONLY = ([], ["output"])  # filters that leave out no layer but the head
ROUNDING = 0.01  # of FLOPs and bytes that are counted in two ways
PROMISE = 0.9  # of the promised share of FP8 FLOPs: layers too small for FP8 are left out
BY_ROWS = 0.3  # of the FP8 FLOPs have scales of rows: at least one of a layer's three matmuls
CLOCK = 0.1  # of the time to the end of the first step, by which two records may differ


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
    """Compare the recipe's file, the resolved recipe, the manifest, the proof and the clock."""
    proof = run.proof
    manifest = run.manifest
    if not (proof and run.timings):
        yield "its records do not show what ran in FP8, and when"
        return
    keys = set_in_file(run.recipe)
    in_file = keys.get(FLOAT8) if keys else manifest.float8
    named = [in_file, run.facts.get(FLOAT8), manifest.float8, proof.recipe_name]
    if len({*named}) > 1:
        said = ", ".join(scaling or "bf16" for scaling in named)
        yield f"recipe, resolved recipe, manifest and proof do not name one scaling: {said}"
    if proof.emulated:
        yield "its FP8 matmuls were emulated"
    else:
        yield from of_flops(run)
    parameters = proof.parameters
    orphans = max(len(parameters.orphans), parameters.trainable - parameters.in_optimizer)
    if orphans:
        yield f"{orphans} of its parameters are in no optimizer"
    if parameters.still_in_first_step:
        yield f"{len(parameters.still_in_first_step)} of its parameters did not move"
    for evidence in proof.model_extra.values():  # of extensions
        for name, value in evidence.items():
            expected = evidence.get(f"{name}_expected")
            if expected and value > expected * (1 + ROUNDING):
                yield f"{name} is {value / expected:.2f} times the expected"
    compiling = all(timing.startup.get("compile") for timing in run.timings)
    # Old records do not count graphs: None.
    if manifest.compiled and not (compiling and proof.compiled_graphs != 0):
        yield "its recipe asks for torch.compile, and nothing was compiled"
    yield from of_clocks(run)


def of_flops(run: Run) -> Iterator[str]:
    """Check the FLOPs in FP8: of all converted layers, as many as promised, in the right steps.

    The recipe's filter promises a share. The scales must be of the recipe's kind.
    """
    proof = run.proof
    scaling = SCALINGS.get(proof.recipe_name)
    if proof.fp8_flops < proof.fp8_flops_expected * (1 - ROUNDING):
        ran = proof.fp8_flops / proof.fp8_flops_expected
        yield f"FP8 matmuls ran {ran:.0%} of the FLOPs of its converted layers"
    if scaling:
        share = proof.fp8_share
        promised = promised_share(run) * scaling.matmuls / 3
        if share < PROMISE * promised:
            yield f"{share:.0%} of its matmul FLOPs ran in FP8; its filter promises {promised:.0%}"
    for first, stretch in proof.stretches.items():
        rows = stretch.row_scaled_flops
        if bool(stretch.fp8_flops) != stretch.in_fp8:
            yield f"from step {first} on it did not run in the precision of its recipe"
        elif scaling and stretch.in_fp8 and rows is not None:
            share = rows / stretch.fp8_flops
            if scaling.row_scales != (share > BY_ROWS):
                yield f"{share:.0%} of its FP8 FLOPs had a scale for each row"


def promised_share(run: Run) -> float:
    """Work out the share of matmul FLOPs outside the head: 0, no promise, if the filter leaves out
    more than the head.

    With experts the share comes out too small, because a token meets only some of the parameters.
    """
    manifest = run.manifest
    # Causality halves attention, so the two counts differ by half of it.
    attention = 2 * (manifest.flops_per_token - manifest.flops_per_token_causal)
    multiplied = (manifest.flops_per_token - attention) / 6  # parameters without the embedding
    head = manifest.parameters - multiplied  # as large as the embedding; 0 if they are one tensor
    known = run.facts.get(FILTER) in HEAD_ONLY and head > 1
    return 1 - head / multiplied if known else 0.0


def of_clocks(run: Run) -> Iterator[str]:
    """Compare the end of the first step by timing.json and by the log."""
    if run.steps["process"].iloc[0] > 0:
        return  # the first attempt's steps were lost, and step 1 was made again
    first = run.clock.index[0]
    logged = run.clock[first] - run.steps["seconds"].loc[2:first].sum()
    timed = run.timings[0].time_to_first_step_s
    if abs(timed - logged) > CLOCK * logged:
        yield f"its first step ended after {timed:.0f} s by timing.json, {logged:.0f} s by its log"
