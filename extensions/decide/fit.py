"""Fit the estimate to the published pairs, and say how wrong it is on unseen sources.

    python -m extensions.decide.fit             # write fitted.json and the figures
    python -m extensions.decide.fit --try FILE  # predict the pairs of another file of this form

fitted.json has all that an answer needs, so that answering reads neither YAML nor numpy.
Exit codes: 0 done, 2 bad input.
"""

import json
import math
from collections import Counter
from math import exp, log
from pathlib import Path
from statistics import mean

import numpy as np

from experiments.jobs.command import COMPLETED, CommandLine, leave
from extensions.decide.answer import FITTED, beyond
from extensions.decide.pairs import calibrating, read
from extensions.decide.step import Factors, speed_up

INSIDE = 0.8  # of unseen sources, to lie within the range
SHOWN = ("model", "stack", "scaling", "gpu", "chip", "kind", "billions", "sequence", "source")


def fit(pairs: list[dict]) -> Factors:
    """Fit by least squares: the time that FP8 saves less than half is linear in both factors.

    A model's pairs of one source weigh as the root of their number.
    """
    many = Counter((pair["model"], pair["origin"]) for pair in pairs)
    equations = []
    for pair in pairs:
        parts, half = pair["work"], pair["work"].fp8_able / 2
        fp8_s = (parts.fp8_able + parts.rest) / pair["speed_up"]
        more = fp8_s - parts.rest - half - parts.gaps
        weight = many[pair["model"], pair["origin"]] ** -0.5 / fp8_s
        rowwise = half * (pair["scaling"] == "rowwise")
        equations.append([weight * rowwise, weight * parts.cast, weight * more])
    table = np.array(equations)
    rowwise, cast = np.linalg.lstsq(table[:, :2], table[:, 2])[0]
    return Factors(round(1 + rowwise, 3), round(cast, 3))


def predict(factors: Factors, pair: dict) -> float:
    """Predict a pair's speed-up."""
    return speed_up(factors, pair["work"], pair["scaling"] == "rowwise")


def unseen(pairs: list[dict]) -> list[dict]:
    """Predict each source's pairs from all others'; `error` is a logarithm, and `inside` whether it
    is within the range of the others."""
    found = []
    for pair in pairs:
        predicted = predict(fit(_others(pair, pairs)), pair)
        error = log(predicted / pair["speed_up"])
        found.append(pair | {"predicted": predicted, "error": error})
    for pair in found:
        pair["inside"] = abs(pair["error"]) <= width(pair, covered(_others(pair, found)))
    return found


def _others(pair: dict, pairs: list[dict]) -> list[dict]:
    return [other for other in pairs if other["origin"] != pair["origin"]]


def covered(pairs: list[dict]) -> dict:
    """Say what left-out pairs cover, and the half of the range, as a logarithm, that holds `INSIDE`
    of their errors; one more error than there are makes up for their small number."""
    errors = sorted(abs(pair["error"]) for pair in pairs)
    place = min(len(errors), math.ceil(INSIDE * (len(errors) + 1))) - 1
    values = {
        "size": [pair["sizes"].parameters() for pair in pairs],
        "sequence": [pair["sequence"] for pair in pairs],
        "tokens a step": [pair["batch"] * pair["sequence"] for pair in pairs],
    }
    return {
        "pairs": len(pairs),
        "half_width": round(errors[place], 4),
        "chips": sorted({pair["chip"] for pair in pairs}),
        "ends": {name: [min(of), max(of)] for name, of in values.items()},
    }


def width(pair: dict, facts: dict) -> float:
    """Give half the range of a pair's prediction, doubled outside of what is covered."""
    outside = beyond(pair["sizes"], pair["chip"], pair["batch"], pair["sequence"], (), facts)
    return facts["half_width"] * (2 if outside else 1)


def paces(factors: Factors, pairs: list[dict]) -> list[float]:
    """Give the part of its roofline's speed that bf16 reached: median, and ends of the range."""
    found = []
    for pair in pairs:
        if pair.get("unit") == "tok/s/gpu":
            measured = pair["batch"] * pair["sequence"] / pair["bf16"]
            found.append((pair["work"].fp8_able + pair["work"].rest) / measured)
    return np.quantile(found, [0.5, (1 - INSIDE) / 2, (1 + INSIDE) / 2]).round(3).tolist()


def fitted() -> tuple[dict, list[dict]]:
    """Fit to all pairs; returns what fitted.json holds, and the left-out pairs."""
    published = read()
    pairs = calibrating(published)
    left_out = unseen(pairs)
    factors = fit(pairs)
    near = {}  # pairs that differ in the number of GPUs alone once
    for pair in published:
        if pair.get("billions") and pair["fairness"] != "doubtful":
            shown = {name: pair.get(name) for name in SHOWN}
            near[str(shown)] = shown | {"speed_up": round(pair["speed_up"], 3)}
    facts = covered(left_out) | {
        "factors": factors._asdict(),
        "sources": len({pair["origin"] for pair in pairs}),
        "published": len(published),
        "mean_absolute_error": round(mean(abs(pair["error"]) for pair in left_out), 4),
        "inside": round(mean(pair["inside"] for pair in left_out), 2),
        "pace": paces(factors, pairs),
        "near": [*near.values()],
    }
    return facts, left_out


def write() -> None:
    """Write fitted.json and the figures."""
    from extensions.decide import figures

    facts, left_out = fitted()
    FITTED.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    figures.write(read(), left_out, facts)


def held_out(path: Path) -> None:
    """Print how pairs of another file are predicted, and how many lie in their range."""
    facts = json.loads(FITTED.read_text(encoding="utf-8"))
    pairs, inside = calibrating(read(path)), 0
    for pair in pairs:
        says, half = predict(Factors(**facts["factors"]), pair), width(pair, facts)
        ends = f"{says:.2f} ({says / exp(half):.2f} to {says * exp(half):.2f})"
        inside += abs(log(says / pair["speed_up"])) <= half
        print(f"{pair['name']:40} {pair['speed_up']:.2f} predicted {ends}")
    print(f"{inside} of {len(pairs)} inside")


def main(argv: list[str] | None = None) -> int:
    """Write what is fitted, or try it on other pairs."""
    parser = CommandLine("extensions.decide.fit", __doc__)
    parser.add_argument("--try", dest="path", type=Path, metavar="FILE", help="pairs to predict")
    path = parser.parse(argv).path
    held_out(path) if path else write()
    return COMPLETED


if __name__ == "__main__":
    leave(main)
