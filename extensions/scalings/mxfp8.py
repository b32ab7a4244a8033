"""Train in MXFP8 by torchao's code, which its users get from `quantize_` and
`MXFP8TrainingOpConfig`.

On a GPU of compute capability 10.0 or newer (Blackwell) torchao casts with its kernels, and
`torch._scaled_mm` multiplies 32 values at a time by their scales. Elsewhere torchao emulates.

`quantize_` makes each weight a tensor of a class of torchao's, which sends a linear layer to the
function that `MXFP8Linear` here calls. Here weights stay plain parameters, so that checkpoints, the
optimizer, FSDP2 and the compile cache meet nothing new. The results are the same to the bit, which
a test compares.
"""

import math
from collections import Counter

import torch
import torchao
from torch import Tensor
from torch.autograd import DeviceType
from torch.utils._triton import has_triton
from torchao.float8.float8_linear import Float8Linear
from torchao.prototype.moe_training.config import MXFP8TrainingOpConfig
from torchao.prototype.moe_training.mxfp8_linear import _to_mxfp8_then_scaled_mm
from torchao.quantization.quantize_.common import KernelPreference
from torchao.utils import is_cuda_version_at_least, is_sm_at_least_100

from experiments.training.proof import Matmul, Proof, ProofError, find_matmuls
from models import device
from models.errors import InputError, format_name_patterns
from models.float8 import EMULATED, OPERATOR, MatmulChoice
from models.scaling import FILTER_KEY

BLOCK_VALUES = 32
EMULATE_KEY = "quantize.linear.float8.emulate"
CAST_OPERATOR = "torchao::mxfp8_quantize"
# cuBLAS reads scales in tiles of 128 rows by 4 scales.
TILE_ROWS, TILE_SCALES = 128, 4

# ---- choose ----


def choose_mxfp8_matmul(is_emulated: bool) -> MatmulChoice:
    """Choose how this machine multiplies; `is_emulated` is the recipe's key.

    Raises `InputError` on a GPU that could multiply in MXFP8, where a part of torchao is missing.
    """
    emulation = "torchao rounds operands to MXFP8 and multiplies them in bf16, which holds them"
    if is_emulated:
        return MatmulChoice(EMULATED, f"{emulation}, as the recipe asks")
    if device.TYPE == "cpu":
        return MatmulChoice(EMULATED, f"{emulation}: CPUs take no scales of {BLOCK_VALUES} values")
    if not is_sm_at_least_100():
        return MatmulChoice(
            EMULATED, f"{emulation}: {device.name()} is not of compute capability 10.0 or newer"
        )
    missing_part = find_missing_part()
    if missing_part:
        raise InputError(
            f"MXFP8 on {device.name()} needs {missing_part}; or set {EMULATE_KEY}=true for losses "
            "without speed"
        )
    return MatmulChoice(
        OPERATOR, f"torch._scaled_mm takes scales of {BLOCK_VALUES} values on the GPU's FP8 units"
    )


def find_missing_part() -> str:
    """Name what torchao's MXFP8 lacks on this GPU, with what to do; empty if it lacks nothing."""
    if not has_triton():
        return "Triton, for torchao's cast along rows: install the package triton"
    if not is_cuda_version_at_least(12, 8):
        return f"a torch for CUDA 12.8 or newer, and this one is for {torch.version.cuda}"
    if not has_cast_kernel():
        return (
            f"torchao's CUDA kernel {CAST_OPERATOR}, which torchao {torchao.__version__} does not "
            f"have here, with a torch for CUDA {torch.version.cuda}: its wheel for x86-64 has it, "
            "with a torch for CUDA 13; elsewhere build torchao from source on this machine"
        )
    return ""


def has_cast_kernel() -> bool:
    """Tell if torchao's library of CUDA kernels is loaded."""
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(CAST_OPERATOR, "CUDA")
    except RuntimeError:  # nothing has declared the operator
        return False


def check_sizes(plan) -> None:
    """Raise `InputError` for sides of layers, or tokens, that 32 does not divide."""
    unfit_names = []
    for name, sides in plan.args.linear_shapes().items():
        if name in plan.fp8.layers and any(side % BLOCK_VALUES for side in sides):
            unfit_names.append(name)
    if unfit_names:
        raise InputError(
            f"torchao's MXFP8 needs layers whose sides are multiples of {BLOCK_VALUES}: add "
            f"{format_name_patterns(unfit_names)} to {FILTER_KEY}, or choose another model.flavor "
            "or model.sizes"
        )
    training = plan.config.training
    tokens = training.seq_len * training.local_batch_size
    if tokens % BLOCK_VALUES:
        raise InputError(
            f"training.seq_len x training.local_batch_size is {tokens}: torchao's MXFP8 needs a "
            f"multiple of {BLOCK_VALUES}"
        )


# ---- the layer ----


class MXFP8Linear(Float8Linear):
    """A layer whose three matmuls are torchao's in MXFP8. It is a Float8Linear because the core
    knows layers in FP8 by that class."""

    def init_matmul(self, is_emulated: bool) -> None:
        """Take torchao's settings for MXFP8, emulated or not."""
        kernels = KernelPreference.EMULATED if is_emulated else KernelPreference.AUTO
        self.mxfp8_config = MXFP8TrainingOpConfig(kernel_preference=kernels)

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., in_features); the output has its dtype, or autocast's."""
        weight = self.weight
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            x, weight = x.to(dtype), weight.to(dtype)
        return _to_mxfp8_then_scaled_mm(
            x,
            weight,
            kernel_preference=self.mxfp8_config.kernel_preference,
            scale_calculation_mode=self.mxfp8_config.scale_calculation_mode,
            wgrad_with_hp=self.mxfp8_config.wgrad_with_hp,
        )


# ---- prove ----


def prove_block_scales(proof: Proof, profiler) -> None:
    """Put the block-scaled matmuls of the profiled step on record, by shape.

    Raises `ProofError` if an FP8 matmul had other scales. That none is missing is checked by the
    core, which counts FP8 matmuls.
    """
    events = [event for event in profiler.events() if event.device_type == DeviceType.CPU]
    counts = Counter()
    for matmul in find_matmuls(events):
        sizes = " x ".join(map(str, matmul.shape))
        if is_block_scaled(matmul):
            counts[sizes] += 1
        elif matmul.is_fp8:
            raise ProofError(
                f"an FP8 matmul of {sizes} (M x K x N) was not given a scale for each "
                f"{BLOCK_VALUES} values, and the recipe is in MXFP8"
            )
    proof.evidence["scalings"] = {"block_scaled_matmuls": dict(counts)}


def is_block_scaled(matmul: Matmul) -> bool:
    """Tell if both operands of an FP8 matmul have a scale for each 32 values along the sum."""
    m, k, n = matmul.shape
    counts = [math.prod(shape) for shape in matmul.scale_shapes[:2]]
    return counts == [count_scales(m, k), count_scales(n, k)]


def count_scales(rows: int, columns: int) -> int:
    """Count the scales of an operand in the tiles that cuBLAS reads."""
    scales = math.ceil(columns / BLOCK_VALUES)
    tiles = math.ceil(rows / TILE_ROWS) * math.ceil(scales / TILE_SCALES)
    return tiles * TILE_ROWS * TILE_SCALES
