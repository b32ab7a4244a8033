"""The allocator of GPU memory, on stand-ins for CUDA's driver."""

import ctypes
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from models import device


class Driver:
    """A driver that can map memory, or not; an older one has no function for it."""

    def __init__(self, supported: int = 1, is_old: bool = False):
        self.supported = supported
        if not is_old:
            self.cuMemAddressReserve = Mock()

    def cuInit(self, flags):
        return 0

    def cuDeviceGetAttribute(self, value, attribute, number):
        ctypes.cast(value, ctypes.POINTER(ctypes.c_int))[0] = (
            self.supported if attribute == 102 else 1
        )
        return 0


@pytest.fixture
def allocator(monkeypatch, tmp_path):
    """Takes a driver and whether NVML and Windows are there; gives the allocator's setting."""

    def call(driver: Driver, has_nvml: bool = True, is_windows: bool = False) -> str | None:
        def load(name: str):
            if "nvidia-ml" in name and not has_nvml:
                raise OSError(name)
            return driver

        monkeypatch.setattr(ctypes, "CDLL", load)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(device, "_WSL", Path("/dev/null") if is_windows else tmp_path / "none")
        device.expand_segments()
        return os.environ.get(device.ALLOCATOR)

    for name in device._ALLOCATOR_NAMES:
        monkeypatch.setenv(name, "")  # so that it is taken back afterwards
        monkeypatch.delenv(name)
    return call


def test_segments_expand_as_torchtitans_users_have_it(allocator):
    assert allocator(Driver()) == "expandable_segments:True"


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
@pytest.mark.parametrize("value", ["max_split_size_mb:512", ""])
def test_the_users_setting_stays(name, value, allocator, monkeypatch):
    monkeypatch.setenv(name, value)
    allocator(Driver())
    assert {os.environ.get(each, value) for each in device._ALLOCATOR_NAMES} == {value}


@pytest.mark.parametrize(
    ("driver", "options"),
    [
        (Driver(supported=0), {}),  # a virtual GPU
        (Driver(is_old=True), {}),
        (Driver(), {"has_nvml": False}),  # a container without NVIDIA's utilities
        (Driver(), {"is_windows": True}),
    ],
)
def test_nothing_is_set_where_memory_cannot_be_mapped(driver, options, allocator):
    assert allocator(driver, **options) is None


def test_retries_of_the_allocator_are_counted(monkeypatch):
    assert device.TYPE == "cuda" or device.allocator_retries() == 0
    monkeypatch.setattr(device, "TYPE", "cuda")
    statistics = {"num_alloc_retries": 3}
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda: statistics)
    assert device.allocator_retries() == 3


@pytest.mark.skipif(device.TYPE == "cuda", reason="a GPU's peak is in its datasheet")
def test_the_peak_of_a_cpu_is_measured_or_that_of_the_study(monkeypatch):
    device.measure_cpu_peak.cache_clear()
    monkeypatch.delenv(device.CPU_PEAK_VARIABLE, raising=False)
    assert 1e8 < device.find_peak_rates().bf16 < 1e15
    device.measure_cpu_peak.cache_clear()
    monkeypatch.setenv(device.CPU_PEAK_VARIABLE, "2e9")
    assert device.find_peak_rates().bf16 == 2e9
    device.measure_cpu_peak.cache_clear()
