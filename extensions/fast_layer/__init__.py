"""An FP8 layer of this project: torchao's results with fewer kernels, a candidate until a GPU has
timed it."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class Section:
    """The section `fast_layer` of a recipe."""

    enable: bool = True
    """Cast and multiply as extensions/fast_layer/layer.py; false, on a CPU, and where FP8 is
    emulated: as torchao."""


def contradictions(config) -> Iterator[tuple[str, str]]:
    """Find keys that leave the layer nothing to do."""
    float8_config = config.quantize.linear.float8
    if not config.fast_layer.enable:
        return
    if float8_config.recipe_name is None or float8_config.enable_fsdp_float8_all_gather:
        yield (
            "fast_layer.enable",
            "casts weights itself: set quantize.linear.float8.recipe_name, and "
            "enable_fsdp_float8_all_gather there to false, or this to false",
        )


def convert(model, plan) -> None:
    """Swap linear layers for torchao's as the core does. On a GPU these layers, or their matmul,
    then give way to the candidate's."""
    from extensions.fast_layer.layer import speed_up_layers
    from models import device, float8

    float8.convert_linears(model, plan)
    if device.TYPE == "cuda" and plan.config.fast_layer.enable and not plan.fp8.emulated:
        speed_up_layers(model, plan.fp8.scaling.row_scales)


def memory_by_use(config, args, shards: int) -> dict[str, float]:
    """Count the bytes in FP8 that wait for the backward pass: the inputs of linear layers, once for
    those that share one, and the weights of all blocks."""
    float8_config = config.quantize.linear.float8
    if not config.fast_layer.enable:
        return {}
    if float8_config.emulate or float8_config.recipe_name != "tensorwise":
        return {}
    cast_inputs = (".wq", ".wo", ".w1", ".w2")  # wk and wv read what wq reads, and w3 what w1 reads
    input_features = 0
    weights = 0
    for name, (out_features, in_features) in args.block_shapes().items():
        weights += out_features * in_features
        if name.endswith(cast_inputs):
            input_features += in_features
    tokens = config.training.local_batch_size * config.training.seq_len
    blocks = args.n_layers
    if config.activation_checkpoint.mode != "none":
        blocks = 1  # recomputation holds one block's casts at a time
    return {"casts": blocks * (tokens * input_features + weights)}
