"""Kernels of a profile sorted into the parts of a step: by name and callers, and from a profile."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import EventList, FunctionEvent
from torch.profiler import profile, record_function

from experiments.profiling import parts
from experiments.profiling.parts import OTHER, part_of
from models.floors import IDLE, LOSS, MATMUL_BF16, MATMUL_FP8, PARTS


def cases() -> list[str]:
    """Read kernels.txt: lines of part and name, with callers after tabs."""
    text = Path(__file__).with_name("kernels.txt").read_text()
    text = text.replace("\n" + 24 * " " + "< ", "\t")
    return [line for line in text.splitlines() if line and line[0] != "#"]


@pytest.mark.parametrize("case", cases())
def test_a_kernel_belongs_to_a_part(case):
    name, *callers = case[24:].split("\t")
    assert part_of(name, callers) == case[:24].strip()


def _event(name, start, end, gpu=False, **keys):
    where = DeviceType.CUDA if gpu else DeviceType.CPU
    thread = keys.pop("thread", 1)
    return FunctionEvent(0, name, thread, start, end, device_type=where, **keys)


def _profile(events: list[FunctionEvent]):
    events = EventList(events, use_device="cuda")
    events._populate_cpu_children()
    return SimpleNamespace(events=lambda: events)


def test_kernels_of_a_gpu_count_once_and_know_their_callers():
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
    profiler = _profile([loss, copy, to, backward, copy_back, *on_gpu])
    kernels = parts.read_kernels(profiler)
    assert [round(kernel.seconds * 1e6) for kernel in kernels] == [30, 40, 10, 0, 5]
    assert kernels[0].callers == ("aten::copy_", "aten::_to_copy", "loss")
    assert kernels[1].callers == ("aten::copy_", "ToCopyBackward0", "aten::_to_copy", "loss")
    busy = parts.busy_seconds(kernels)
    assert busy[LOSS] == pytest.approx(70e-6) and busy[MATMUL_FP8] == pytest.approx(15e-6)
    assert set(busy) == set(PARTS)


def test_a_forward_pass_within_the_backward_one_is_not_its_callers():
    linear = _event("aten::linear", 0, 4, sequence_nr=7)
    backward = _event("MmBackward0", 20, 40, sequence_nr=7, fwd_thread=1, scope=1)
    # Activation checkpointing computes it again; a gradient is kept track of.
    again = _event("aten::silu", 21, 25, sequence_nr=30)
    matmul = _event("aten::mm", 30, 35, sequence_nr=-1)
    kernels = parts.read_kernels(_profile([linear, backward, again, matmul]))
    callers = {kernel.name: kernel.callers for kernel in kernels}
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
    faster = parts.step_parts(busy, profiled_s=0.9, step_s=0.2, host_is_device=False)
    assert sum(faster.values()) == pytest.approx(0.2) and faster[IDLE] == 0
