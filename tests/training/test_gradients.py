"""Compiled code computes the gradients that eager code does: of every recipe and parameter, on this
machine."""

from dataclasses import asdict, replace

import pytest
import torch
import torch.nn.functional as F

from experiments.config import recipes
from experiments.config.keys import Sizes
from models import float8
from models.architectures import build
from models.train_spec import parallelize
from tests.runs import ONE_DEVICE

pytestmark = pytest.mark.slow
# Of several GPUs, of a GPU, or of some steps: one process on a CPU computes the same without
KEYS = ["quantize.linear.float8.enable_fsdp_float8_all_gather=false", "compile.cuda_graphs=false",
        "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp=false", "quantize.gradients=null",
        "quantize.linear.float8.first_step=null", "quantize.linear.float8.last_step=null"]  # fmt: skip


def configs() -> dict[str, object]:
    """Compiled recipes by name; of those that compute the same, the first."""
    by_graph = {}
    for name in sorted(recipes.names(), key=lambda name: name.startswith("candidate")):
        config = recipes.load(name, ["cpu"], KEYS).config
        graph = str(
            [asdict(section) for section in (config.model, config.compile, config.quantize)]
        )
        if config.compile.enable:
            by_graph.setdefault(graph, (name, config))
    by_graph["qwen3"] = "qwen3", recipes.load("tensorwise_fp8_compiled", ["cpu"], QWEN3).config
    return dict(by_graph.values())


QWEN3 = ["model.name=qwen3", "model.flavor=qwen3-cpu"]
CONFIGS = configs()


def gradients(config, compiled: bool) -> dict[str, torch.Tensor]:
    """Of a model of one block, with the same weights, tokens and loss each time."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    config = replace(config, compile=replace(config.compile, enable=compiled))
    model = build(replace(config, model=replace(config.model, sizes=Sizes(n_layers=1))))
    with torch.no_grad():
        model.init_weights()
    model = model.bfloat16()
    float8.Float8Converter(config, ONE_DEVICE).convert(model)
    model = parallelize(model, ONE_DEVICE, config)
    tokens = torch.randint(model.vocab_size, (1, 65))
    F.cross_entropy(model(tokens[:, :-1]).float().flatten(0, 1), tokens[0, 1:]).backward()
    return {name.replace("_orig_mod.", ""): p.grad.float() for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", CONFIGS)
def test_compiled_gradients_are_eager_ones(name, flavors):
    """By the norm of each parameter's gradient, to 3 %, since kernels may add up in another order
    and FP8 magnifies the difference; to 15 % where kernels round less often than eager code
    does."""
    compiled, eager = (gradients(CONFIGS[name], which) for which in (True, False))
    assert compiled.keys() == eager.keys()
    error = {key: ((compiled[key] - eager[key]).norm() / eager[key].norm()).item() for key in eager}
    most = 0.03 if CONFIGS[name].compile.emulate_precision_casts else 0.15
    assert not {key: value for key, value in error.items() if not value < most}  # a NaN is not
