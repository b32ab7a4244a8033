"""Compare the FP8 matmuls of one step with those that its layers must run.

A converted layer of `in` and `out` features multiplies, for each pass over `tokens`:

    output             (tokens, in) by (in, out)
    input's gradient   (tokens, out) by (out, in)
    weight's gradient  (out, tokens) by (tokens, in); in bf16 where the scaling says so

Recomputation repeats the output's matmul, except where compiled code or a policy sees no need: with
recomputation it counts once or twice. All else is exact.
"""

from collections import Counter, defaultdict

from torch import nn

from experiments.training.plan import Plan
from models.errors import by_pattern
from models.float8 import converted_modules

Shape = tuple[int, int, int]  # M, K, N: (M, K) by (K, N)


def differences(plan: Plan, model: nn.Module, ran: Counter[Shape]) -> list[str]:
    """Name the shapes with too few or too many FP8 matmuls in a step, and their layers.

    `model` is converted and parallelized.
    """
    passes, tokens = plan.passes, plan.tokens // plan.passes
    recomputes = plan.config.activation_checkpoint.mode != "none"
    least, most, layers = Counter(), Counter(), defaultdict(list)
    for name, layer in converted_modules(model).items():
        n, k = layer.weight.shape
        shapes = [(tokens, k, n), (tokens, n, k)]
        if plan.fp8.scaling.matmuls == 3 and layer.weight.requires_grad:
            shapes.append((n, tokens, k))
        for shape in shapes:
            least[shape] += passes
            most[shape] += passes
            layers[shape].append(name)
        most[tokens, k, n] += passes * recomputes
    found = []
    for shape in most | ran:
        if not least[shape] <= ran[shape] <= most[shape]:
            number = f"{least[shape]}"
            if least[shape] < most[shape]:
                number += f" to {most[shape]}"
            sizes, names = " x ".join(map(str, shape)), by_pattern(layers[shape])
            where = names or "no converted layer"
            found.append(f"{ran[shape]} instead of {number} of {sizes} ({where})")
    return found
