"""GPUs by their names, and their peaks."""

import pytest

from models import gpus


def test_drivers_names_find_their_gpu():
    names = {
        "NVIDIA GH200 120GB": "gh200",
        "NVIDIA GH200 144G HBM3e": "gh200-144gb",
        "NVIDIA H200": "h200",
        "NVIDIA H100 PCIe": "h100-pcie",
        "NVIDIA A100-SXM4-80GB": "a100",
        "NVIDIA GB200": "gb200",
        "h100-sxm": "h100",
        "gh200-144gb": "gh200-144gb",
        "NVIDIA H100 80GB HBM3": "h100",
        "NVIDIA GeForce RTX 4090": "rtx-4090",
        "NVIDIA GeForce RTX 4090 D": None,
        "NVIDIA GeForce RTX 4090 Laptop GPU": None,
        "NVIDIA H20": None,
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb": None,
    }
    assert {name: gpus.find(name) for name in names} == names


def test_peaks_are_dense_ones():
    """Of the tensor cores FP8 has twice the rate of bf16; a sparse figure would be twice that."""
    peaks = [gpu for gpu in gpus.GPUS.values() if gpu.fp8]
    assert [peak.fp8 / peak.bf16 for peak in peaks] == pytest.approx([2] * len(peaks), rel=0.02)
