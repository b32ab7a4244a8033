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


def _event(name, start, end, gpu=False, thread=1, **keys):
    where = DeviceType.CUDA if gpu else DeviceType.CPU
    return FunctionEvent(0, name, thread, start, end, device_type=where, **keys)


def _kernels(events: list[FunctionEvent]) -> list[parts.Kernel]:
    events = EventList(events, use_device="cuda")
    events._populate_cpu_children()
    return parts.read_kernels(SimpleNamespace(events=lambda: events))


def test_kernels_of_a_gpu_count_once_and_know_their_callers():
    """Two steps' worth of a GPU's profile in microseconds: a loss, its backward on another thread,
    and a graph."""
    copy = _event("aten::copy_", 1, 3)
    copy_back = _event("aten::copy_", 21, 23, thread=2)
    copy.append_kernel("copy_kernel", 0, 30)
    copy_back.append_kernel("copy_kernel", 0, 40)
    kernels = _kernels(
        [
            _event("loss", 0, 10),
            copy,
            _event("aten::_to_copy", 1, 4, sequence_nr=7),
            _event("ToCopyBackward0", 20, 24, thread=2, sequence_nr=7, fwd_thread=1, scope=1),
            copy_back,
            _event("loss", 100, 190, gpu=True, is_user_annotation=True),
            _event("copy_kernel", 100, 130, gpu=True),
            _event("copy_kernel", 150, 190, gpu=True),
            _event(
                "nvjet_qqtst_128x256", 180, 200, gpu=True
            ),  # begins before the one before it ends
            _event("nvjet_qqtst_64x64", 182, 186, gpu=True),  # ... within it
            _event("nvjet_qqtst_64x32", 190, 205, gpu=True),  # ... and ends after both
        ]
    )
    assert [round(kernel.seconds * 1e6) for kernel in kernels] == [30, 40, 10, 0, 5]
    assert kernels[0].callers == ("aten::copy_", "aten::_to_copy", "loss")
    assert kernels[1].callers == ("aten::copy_", "ToCopyBackward0", "aten::_to_copy", "loss")
    table = parts.table(kernels, steps=2)
    busy = parts.busy_seconds(table)
    assert busy[LOSS] == pytest.approx(35e-6) and busy[MATMUL_FP8] == pytest.approx(7.5e-6)
    assert set(busy) == set(PARTS)
    first, *others = parts.top_kernels(table)
    longest = {"name": "copy_kernel", "op": "aten::copy_", "part": LOSS, "calls": 1, "s": 35e-6}
    assert first == pytest.approx(longest) and not any(row["op"] for row in others)


def test_a_forward_pass_within_the_backward_one_is_not_its_callers():
    kernels = _kernels(
        [
            _event("aten::linear", 0, 4, sequence_nr=7),
            _event("MmBackward0", 20, 40, sequence_nr=7, fwd_thread=1, scope=1),
            # Activation checkpointing computes it again; a gradient is kept track of.
            _event("aten::silu", 21, 25, sequence_nr=30),
            _event("aten::mm", 30, 35),
        ]
    )
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
    busy = parts.busy_seconds(parts.table(parts.read_kernels(profiler), steps=1))
    assert busy[MATMUL_BF16] > 0 and busy[LOSS] > 0 and OTHER not in busy


@pytest.mark.parametrize(
    ("profiled_s", "step_s", "host_is_device", "split"),
    [
        (0.9, 0.5, False, (0.3, 0.1, 0.1)),
        (0.9, 0.2, False, (0.15, 0.05, 0)),
        (0.8, 0.4, True, (0.15, 0.05, 0.2)),
    ],
)
def test_a_gpu_idles_for_what_a_steady_step_leaves_and_a_cpu_for_its_share(
    profiled_s, step_s, host_is_device, split
):
    busy = {MATMUL_BF16: 0.3, LOSS: 0.1}
    seconds = parts.step_parts(busy, profiled_s, step_s, host_is_device)
    assert seconds == pytest.approx(dict(zip((MATMUL_BF16, LOSS, IDLE), split, strict=True)))
