"""What a step costs: the work that the roofline counts, and the FP8 casts in a compiled block's graph."""

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

from experiments.config import recipes
from experiments.training import preflight
from models import floors


def work(name: str, *overrides: str, overlays: tuple = ()) -> list[floors.Work]:
    config = recipes.load(name, overlays, overrides).config
    args = preflight.model_args(config)
    return floors.step_work(config, args, preflight.fp8_layers(config))


def total(work: list[floors.Work], field: str, *parts: str) -> float:
    return sum(getattr(w, field) for w in work if w.part in parts)


def fp8_casts(block: torch.nn.Module, rope: torch.Tensor) -> int:
    """Casts to FP8 in the compiled forward and backward of a block with this table of rotations."""
    casts = []

    def count(graph, _):
        made = [node.meta["val"] for node in graph.graph.nodes if "_to_copy" in str(node.target)]
        casts.append(sum(value.dtype.itemsize == 1 for value in made))
        return graph

    backend = aot_autograd(fw_compiler=count, bw_compiler=count, partition_fn=min_cut_rematerialization_partition)
    x = torch.randn(1, 32, block.attention_norm.normalized_shape[0], dtype=torch.bfloat16, requires_grad=True)
    torch.compile(block, backend=backend, fullgraph=True)(x, rope, None).sum().backward()
    return sum(casts)
