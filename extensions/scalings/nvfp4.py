"""Round to NVFP4 as NVIDIA's pretraining recipe does (arXiv 2509.25149), emulated.

An NVFP4 number has 4 bits, e2m1: 0, 0.5, 1, 1.5, 2, 3, 4 or 6, and a sign. 16 values share a scale
in e4m3, and a tensor has one more scale in float32, which takes the scales of 16 into e4m3's range.
Three things keep a training stable:

* A weight has a scale for each 16 x 16 values. So the weight and its transpose, which the backward
  pass multiplies by, are rounded to the same values.
* Gradients of outputs are rounded up or down at random, so that the mean of the rounded values is
  the value.
* Both operands of a weight's gradient are multiplied by a random Hadamard matrix, 16 tokens at a
  time. That spreads an outlier over 16 values, and changes no exact result.

The order of operations is that of torchao's kernels (torchao.prototype.moe_training
.nvfp4_training), which need a GPU of compute capability 10.0.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK_VALUES = 16
E2M1_MAX = 6.0
E4M3 = torch.finfo(torch.float8_e4m3fn)
F32_MAX = torch.finfo(torch.float32).max
# The signs of the random Hadamard matrix, drawn once. As in the paper, all layers share them.
SIGNS = (1, -1, -1, 1, 1, -1, 1, 1, -1, -1, -1, 1, 1, 1, -1, -1)


# An operator, as `fp8::round_blocks`. Compiled code keeps every call of it, since it draws numbers.
@torch.library.custom_op(
    "fp8::round_nvfp4", mutates_args=(), tags=[torch.Tag.nondeterministic_seeded]
)
def round_nvfp4(x: Tensor, rows: int, is_rotated: bool, is_stochastic: bool) -> Tensor:
    """Round x, (m, n) with the sum along n, to NVFP4, and scale back to float32.

    Args:
        rows: of a block, which has 16 columns. Blocks at the end may be smaller.
        is_rotated: multiply by the random Hadamard matrix first. Then the result has n rounded up
            to a multiple of 16.
        is_stochastic: round up or down at random.
    """
    if is_rotated:
        x = rotate(x)
    m, n = x.shape
    rows = min(rows, m)
    padded = pad(x.float(), (0, -n % BLOCK_VALUES, 0, -m % rows))
    blocks = padded.unflatten(1, (-1, BLOCK_VALUES)).unflatten(0, (-1, rows))
    amax = blocks.abs().amax((1, 3), keepdim=True)
    tensor_amax = amax.amax()
    tensor_scale = (E4M3.max * E2M1_MAX / tensor_amax).clamp(max=F32_MAX)
    tensor_scale = torch.where(tensor_amax == 0, 1.0, tensor_scale)
    # What a block's values are divided by, in units of the tensor's scale
    block_scales = (amax / E2M1_MAX * tensor_scale).clamp(E4M3.tiny, E4M3.max)
    steps = block_scales.to(torch.float8_e4m3fn).float() * (1 / tensor_scale)
    scaled = (blocks * (1 / steps).clamp(max=F32_MAX)).clamp(-E2M1_MAX, E2M1_MAX)
    random = torch.rand_like(scaled) if is_stochastic else None
    rounded = round_e2m1(scaled, random) * steps
    return rounded.flatten(2, 3).flatten(0, 1)[:m, :n].contiguous()


@round_nvfp4.register_fake
def _round_nothing(x: Tensor, rows: int, is_rotated: bool, is_stochastic: bool) -> Tensor:
    m, n = x.shape
    if is_rotated:
        n += -n % BLOCK_VALUES
    return x.new_empty((m, n), dtype=torch.float32)


def round_e2m1(x: Tensor, random: Tensor | None = None) -> Tensor:
    """Round float32 values between -6 and 6 to e2m1, ties to the even code.

    With `random`, numbers from 0 to 1 of x's shape: up where a number is below the distance to the
    next value towards zero, in steps of the format.
    """
    magnitude = x.abs()
    step = torch.where(magnitude < 2, 0.5, torch.where(magnitude < 4, 1.0, 2.0))
    steps = magnitude / step
    if random is None:
        steps = steps.round()
    else:
        whole_steps = steps.floor()
        steps = whole_steps + (random < steps - whole_steps)
    return (steps * step).copysign(x)


def rotate(x: Tensor) -> Tensor:
    """Multiply each 16 values of a row by the random Hadamard matrix, in the dtype of x; zeros fill
    the last 16."""
    filled = pad(x, (0, -x.shape[1] % BLOCK_VALUES)).float()
    rotated = filled.unflatten(1, (-1, BLOCK_VALUES)) @ hadamard_matrix().to(x.device)
    return rotated.flatten(1).to(x.dtype)


def hadamard_matrix() -> Tensor:
    """Make the random Hadamard matrix: orthogonal, (16, 16), each entry 1/4 or -1/4."""
    matrix = torch.ones(1, 1)
    while len(matrix) < BLOCK_VALUES:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return torch.tensor(SIGNS).unsqueeze(1) * matrix / BLOCK_VALUES**0.5
