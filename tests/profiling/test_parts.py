"""Kernels of a profile sorted into the parts of a step: by name and callers, and from a profile.

Of each group of names below a comment says where they come from: no GPU has been profiled yet.
"""

from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import EventList, FunctionEvent
from torch.profiler import profile, record_function

from experiments.profiling import parts
from experiments.profiling.parts import OTHER, part_of
from models.floors import (
    ATTENTION,
    CASTS,
    ELEMENTWISE,
    IDLE,
    LOSS,
    MATMUL_BF16,
    MATMUL_FP8,
    OPTIMIZER,
    PARTS,
)

ELEMENT = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16>>"
COPY = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>"
FP8_LINEAR = ("matmul_with_hp_or_float8_args",)
FP8_MM = ("aten::_scaled_mm", "PythonSubclass", "aten::mm", *FP8_LINEAR)
FP8_BACKWARD = "matmul_with_hp_or_float8_argsBackward"
GRAPH = (
    "## Call CompiledFxGraph fudnkae2h4oe ##",
    "CompiledFunction",
    "Torch-Compiled Region: 0/0",
)


@pytest.mark.parametrize(
    "part, name, callers",
    [
        # The name alone tells, as in a CUDA graph. Names, some cut, from profiles of Hopper GPUs
        # that others published, and from PyTorch's sources
        (MATMUL_FP8, "nvjet_qqtst_128x256_128x6_2x1_v_bz_coopA_TNT", ()),
        (MATMUL_FP8, "nvjet_sm90_qqtst_128x128_128x6_1x2_h_bz_ovscale_TNT", ()),
        (MATMUL_FP8, "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::float_e4m3_t>>", ()),
        (MATMUL_BF16, "nvjet_tst_192x192_64x4_1x2_h_bz_coopB_NNT", ()),
        (MATMUL_BF16, "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1", ()),
        (MATMUL_BF16, "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>", ()),
        (MATMUL_BF16, "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, __nv_bfloat16>", ()),
        (ATTENTION, "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>", ()),
        (ATTENTION, "fmha_cutlassF_bf16_aligned_64x128_rf_sm80", ()),
        (LOSS, "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float>", ()),
        (LOSS, "void at::native::(anonymous namespace)::cunn_SoftMaxBackward<4, float, float, float>", ()),
        (LOSS, "void at::native::(anonymous namespace)::nll_loss_backward_reduce_cuda_kernel_2d<float>", ()),
        (CASTS, "void at::native::unrolled_elementwise_kernel<at::native::float8_copy_kernel_cuda>", ()),
        (OPTIMIZER, "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>", ()),
        (CASTS, "cast_and_transpose", ()),  # of models/fast_float8.py
        (ELEMENTWISE, ELEMENT, ()),
        (ELEMENTWISE, "Memcpy DtoD (Device -> Device)", ()),
        (ELEMENTWISE, "Memset (Device)", ()),
        (OTHER, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", ()),
        # Compiled: inductor names a kernel by its kind and by its operators in alphabetical order;
        # operators like those that this project's profiles on a CPU show
        (MATMUL_FP8, "triton_tem_fused__scaled_mm_3", GRAPH),
        (MATMUL_BF16, "triton_tem_fused_mm_3", GRAPH),
        (LOSS, "triton_red_fused__log_softmax__to_copy_view_0", GRAPH),
        (ELEMENTWISE, "triton_poi_fused__scaled_dot_product_flash_attention_backward_transpose_view_2", GRAPH),
        # ... in FP8: a norm or SwiGLU with the largest value, or a row's cast, is what it was
        (ELEMENTWISE, "triton_red_fused__to_copy_abs_add_max_mean_mul_pow_rsqrt_0", GRAPH),
        (ELEMENTWISE,
         "triton_red_fused__scaled_mm__to_copy_abs_amax_clamp_exp2_floor_log2_mul_reciprocal_silu_t_view_10", GRAPH),
        (ELEMENTWISE, "triton_red_fused__to_copy_mul_sum_19", GRAPH),  # the gradient of a norm's weight
        # ... second passes for the cast, and what looks at weights or gradients
        (CASTS, "triton_poi_fused__scaled_mm__to_copy_clamp_mul_reciprocal_silu_t_view_17", GRAPH),
        (CASTS, "triton_red_fused_abs_max_t_3", GRAPH),
        (CASTS, "cast_and_transpose", ("fp8::cast_and_transpose", *GRAPH)),
        (CASTS, "graph_0_cpp_fused__to_copy_mul_reciprocal_t_15", GRAPH),
        # The callers alone tell. Operators as this project's profiles on a CPU show them; those of
        # mkldnn, bmm and autocast's copies, and a GPU's kernels below operators, as PyTorch's
        # sources have them
        (OPTIMIZER, "aten::mul_", ("aten::mul_", "aten::_foreach_mul_")),
        (OPTIMIZER, "aten::linalg_vector_norm", ("aten::linalg_vector_norm",)),
        (OPTIMIZER, "triton_for_fused_0", ("Torch-Compiled Region: 2/0", "Optimizer.step#AdamW.step")),
        (MATMUL_FP8, "aten::mul", ("aten::mul", *FP8_MM)),
        (MATMUL_BF16, "aten::mm", ("aten::mm", FP8_BACKWARD)),  # of a weight gradient left in bf16
        (MATMUL_BF16, "mkldnn::_linear_pointwise", ("mkldnn::_linear_pointwise",)),
        (ATTENTION, COPY, ("aten::copy_", "aten::clone", "aten::scaled_dot_product_attention")),
        (ATTENTION, "aten::zeros", ("aten::zeros", "aten::_scaled_dot_product_flash_attention_for_cpu_backward")),
        (ATTENTION, "aten::bmm", ("aten::bmm", "aten::matmul")),
        (LOSS, COPY, ("aten::copy_", "aten::_to_copy", "ToCopyBackward0", "aten::_to_copy", "aten::to", "loss")),
        # ... casts, and the copies that _scaled_mm's layout asks for; a sum of two gradients is
        # neither
        (CASTS, ELEMENT, ("aten::mul", "_ToFloat8ConstrFunc")),
        (CASTS, ELEMENT, ("aten::mul", "_Fp8MatmulsBackward")),
        (CASTS, COPY, ("aten::copy_", "aten::contiguous", "PythonSubclass", "aten::mm", *FP8_LINEAR)),
        (ELEMENTWISE, ELEMENT, ("aten::add", f"autograd::engine::evaluate_function: {FP8_BACKWARD}")),
        # ... autocast's copies, and others
        (CASTS, COPY, ("aten::copy_", "ToCopyBackward0", "aten::_to_copy", "aten::to", "aten::linear")),
        (ELEMENTWISE, COPY, ("aten::copy_", "aten::_to_copy", "aten::to")),
        (ELEMENTWISE, "aten::silu", ("aten::silu",)),
    ],
)  # fmt: skip
def test_a_kernel_belongs_to_a_part(part, name, callers):
    assert part_of(name, callers) == part


def _event(name, start, end, gpu=False, **keys):
    where = DeviceType.CUDA if gpu else DeviceType.CPU
    thread = keys.pop("thread", 1)
    return FunctionEvent(0, name, thread, start, end, device_type=where, **keys)


def _gpu_profile():
    """Two steps' worth of a GPU's profile in microseconds: a loss, its backward on another thread,
    and a graph."""
    loss = _event("loss", 0, 10)
    copy = _event("aten::copy_", 1, 3, sequence_nr=-1)
    to = _event("aten::_to_copy", 1, 4, sequence_nr=7)
    backward = _event("ToCopyBackward0", 20, 24, thread=2, sequence_nr=7, fwd_thread=1, scope=1)
    copy_back = _event("aten::copy_", 21, 23, thread=2, sequence_nr=-1)
    copy.append_kernel("copy_kernel", 0, 30)
    copy_back.append_kernel("copy_kernel", 0, 40)
    on_gpu = [
        _event("loss", 100, 190, gpu=True, is_user_annotation=True),
        _event("copy_kernel", 100, 130, gpu=True),
        _event("copy_kernel", 150, 190, gpu=True),
        _event("nvjet_qqtst_128x256", 180, 200, gpu=True),  # begins before the one before it ends
        _event("nvjet_qqtst_64x64", 182, 186, gpu=True),  # ... within it
        _event("nvjet_qqtst_64x32", 190, 205, gpu=True),  # ... and ends after both
    ]
    events = EventList([loss, copy, to, backward, copy_back, *on_gpu], use_device="cuda")
    events._populate_cpu_children()
    return SimpleNamespace(events=lambda: events)


def test_kernels_of_a_gpu_count_once_and_know_their_callers():
    kernels = parts.read_kernels(_gpu_profile())
    assert [(k.name, round(k.seconds * 1e6)) for k in kernels] == [
        ("copy_kernel", 30), ("copy_kernel", 40), ("nvjet_qqtst_128x256", 10),
        ("nvjet_qqtst_64x64", 0), ("nvjet_qqtst_64x32", 5),
    ]  # fmt: skip
    assert kernels[0].callers == ("aten::copy_", "aten::_to_copy", "loss")
    assert kernels[1].callers == ("aten::copy_", "ToCopyBackward0", "aten::_to_copy", "loss")
    busy = parts.busy_seconds(kernels)
    assert busy[LOSS] == pytest.approx(70e-6) and busy[MATMUL_FP8] == pytest.approx(15e-6)
    assert set(busy) == set(PARTS)


def test_a_forward_pass_within_the_backward_one_is_not_its_callers():
    linear = _event("aten::linear", 0, 4, sequence_nr=7)
    backward = _event("MmBackward0", 20, 40, sequence_nr=7, fwd_thread=1, scope=1)
    again = _event(
        "aten::silu", 21, 25, sequence_nr=30
    )  # activation checkpointing: a gradient is kept track of
    product = _event("aten::mm", 30, 35, sequence_nr=-1)
    events = EventList([linear, backward, again, product])
    events._populate_cpu_children()
    callers = {
        k.name: k.callers for k in parts.read_kernels(SimpleNamespace(events=lambda: events))
    }
    assert callers["aten::silu"] == ("aten::silu",)
    assert callers["aten::mm"] == ("aten::mm", "MmBackward0", "aten::linear")


@pytest.mark.gpu
def test_kernels_of_this_gpu():
    a = torch.randn(512, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    (a @ a).sum().backward()
    torch.cuda.synchronize()
    with profile() as profiler:
        with record_function("loss"):
            loss = (a @ a).float().log_softmax(-1).sum()
        loss.backward()
        torch.cuda.synchronize()
    busy = parts.busy_seconds(parts.read_kernels(profiler))
    assert busy[MATMUL_BF16] > 0 and busy[LOSS] > 0 and OTHER not in busy


def test_a_gpu_idles_for_what_a_steady_step_leaves_and_a_cpu_for_its_share():
    busy = {MATMUL_BF16: 0.3, LOSS: 0.1}
    on_gpu = parts.step_parts(busy, profiled_s=0.9, step_s=0.5, host_is_device=False)
    assert on_gpu == pytest.approx(busy | {IDLE: 0.1})
    on_cpu = parts.step_parts(busy, profiled_s=0.8, step_s=0.4, host_is_device=True)
    assert on_cpu == pytest.approx({MATMUL_BF16: 0.15, LOSS: 0.05, IDLE: 0.2})
    faster_than_its_kernels = parts.step_parts(
        busy, profiled_s=0.9, step_s=0.2, host_is_device=False
    )
    assert (
        sum(faster_than_its_kernels.values()) == pytest.approx(0.2)
        and faster_than_its_kernels[IDLE] == 0
    )
