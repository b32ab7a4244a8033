"""Our own FP8 layer: torchao's results with fewer kernels, a candidate until a GPU has timed it."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class Keys:
    """The section `fast_layer` of a recipe."""

    enable: bool = True
    """Cast and multiply as extensions/fast_layer/layer.py; false, on a CPU, and where FP8 is
    emulated: as torchao."""


def contradictions(config) -> Iterator[tuple[str, str]]:
    """Find keys that leave the layer nothing to do."""
    keys = config.quantize.linear.float8
    if config.fast_layer.enable and (
        keys.recipe_name is None or keys.enable_fsdp_float8_all_gather
    ):
        yield (
            "fast_layer.enable",
            "casts weights itself: set quantize.linear.float8.recipe_name, and "
            "enable_fsdp_float8_all_gather there to false, or this to false",
        )


def convert(model, plan) -> None:
    """Swap linear layers for torchao's as the core does, and on a GPU these, or their matmul, for
    ours."""
    from extensions.fast_layer.layer import speed_up
    from models import device, float8

    float8.convert_linears(model, plan)
    if device.TYPE == "cuda" and plan.config.fast_layer.enable and not plan.fp8.emulated:
        speed_up(model, plan.fp8.scaling.row_scales)


def memory_by_use(config, args, shards: int) -> dict[str, float]:
    """Count the bytes in FP8 that are kept for the backward pass: the inputs of linear layers, once
    for those that share one, and the weights of all blocks."""
    keys, training = config.quantize.linear.float8, config.training
    if not config.fast_layer.enable or keys.emulate or keys.recipe_name != "tensorwise":
        return {}
    shapes = args.block_shapes()
    read_once = (".wq", ".wo", ".w1", ".w2")  # wk and wv read what wq reads, and w3 what w1 reads
    inputs = sum(k for name, (_, k) in shapes.items() if name.endswith(read_once))
    weights = sum(n * k for n, k in shapes.values())
    block = training.local_batch_size * training.seq_len * inputs + weights
    # With recomputation one block's at a time
    blocks = args.n_layers if config.activation_checkpoint.mode == "none" else 1
    return {"casts": blocks * block}
