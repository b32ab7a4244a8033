"""Work out the FP8 matmuls of one step from its layers, and compare them with those that ran.

A converted layer of `in` and `out` features multiplies, for each pass over `tokens`:

    output             (tokens, in) by (in, out)
    input's gradient   (tokens, out) by (out, in)
    weight's gradient  (out, tokens) by (tokens, in); in bf16 where the scaling says so

Recomputation repeats the output's matmul. Compiled code leaves out what no gradient needs: the
output of w2, which is only added to the residual stream. (A graph of the whole model recomputes it
in the last block, for the final norm.) Where a policy or the compiler chooses what is recomputed
(`selective` by `op`, `memory_budget`), the output's matmul counts once or twice; all else is exact.
"""

from collections import Counter, defaultdict
from typing import NamedTuple

from torch import nn
from torchao.float8.float8_linear import Float8Linear

from experiments.training.plan import Plan
from models.errors import by_pattern
from models.float8 import built_name

Shape = tuple[int, int, int]  # M, K, N: (M, K) by (K, N)


class Expected(NamedTuple):
    """A matmul of a layer, and how often a step runs it."""

    layer: str
    shape: Shape
    least: int
    most: int


def expected_matmuls(plan: Plan, model: nn.Module) -> list[Expected]:
    """List the FP8 matmuls that a step of a converted and parallelized model has to run."""
    keys, passes = plan.config.activation_checkpoint, plan.passes
    tokens = plan.tokens // passes
    by_operator = keys.mode == "selective" and keys.selective_ac_option == "op"
    expected = []
    for path, layer in model.named_modules():
        if not isinstance(layer, Float8Linear):
            continue
        name = built_name(path)
        out_features, in_features = layer.weight.shape
        least = most = passes
        if "_checkpoint_wrapped_module." in path or keys.mode == "memory_budget":
            repeated = passes * _is_recomputed(plan, name)
            most += repeated
            least += 0 if by_operator or keys.mode == "memory_budget" else repeated
        expected.append(Expected(name, (tokens, in_features, out_features), least, most))
        expected.append(Expected(name, (tokens, out_features, in_features), passes, passes))
        if plan.fp8.scaling.matmuls == 3:
            # Compiled code does not compute the gradient of a frozen weight
            least = passes if layer.weight.requires_grad else 0
            expected.append(Expected(name, (out_features, tokens, in_features), least, passes))
    return expected


def _is_recomputed(plan: Plan, name: str) -> bool:
    keys = plan.config.compile
    compiled = keys.enable and "model" in keys.components and keys.backend != "eager"
    if not (compiled and name.endswith(".feed_forward.w2")):
        return True
    return keys.scope == "model" and name.startswith(f"layers.{plan.args.n_layers - 1}.")


def differences(expected: list[Expected], ran: Counter[Shape]) -> list[str]:
    """Name the shapes of which a step ran more or fewer matmuls than expected, and their layers."""
    by_shape: dict[Shape, list[Expected]] = defaultdict(list)
    for matmul in expected:
        by_shape[matmul.shape].append(matmul)
    found = []
    for shape in by_shape | ran:
        matmuls = by_shape.get(shape, [])
        least, most = sum(m.least for m in matmuls), sum(m.most for m in matmuls)
        if not least <= ran[shape] <= most:
            layers = by_pattern(m.layer for m in matmuls) or "no converted layer"
            number = f"{least}" if least == most else f"{least} to {most}"
            sizes = " x ".join(map(str, shape))
            found.append(f"{ran[shape]} instead of {number} of {sizes} ({layers})")
    return found
