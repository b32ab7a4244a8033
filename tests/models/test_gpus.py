"""GPUs by their names, and their peaks."""

import itertools
import re

import pytest

from models import device, gpus

# A key, and names of that GPU from drivers, clouds, shops and people
NAMES = """
gb300: GB300 | NVIDIA GB300 | GB300 NVL72
gb200: NVIDIA GB200 | gb200 nvl72
gb10: NVIDIA GB10 | DGX Spark
b300: B300 | NVIDIA B300 SXM6 AC | b300 288 GB
b200: NVIDIA B200 | B200 SXM6 | B200-180GB | HGX B200
gh200: NVIDIA GH200 120GB | NVIDIA GH200 480GB | gh200 | Grace Hopper GH200 Superchip
gh200-144gb: NVIDIA GH200 144G HBM3e
h200: NVIDIA H200 | H200 SXM | nvidia-h200-141gb
h200-nvl: NVIDIA H200 NVL | h200nvl
h100: NVIDIA H100 80GB HBM3 | h100-sxm | H100-SXM5-80GB | H100SXM | nvidia-h100-mega-80gb | HGX H100
h100-pcie: NVIDIA H100 PCIe | NVIDIA H100 80GB PCIe | h100-80gb-pcie | PCIe H100 | H100 PCIe 5.0
h100-nvl: NVIDIA H100 NVL | h100 nvl 94gb
h100-96gb: NVIDIA H100 SXM5 96GB | H100 96 GB
h800: NVIDIA H800 | H800 SXM5 80GB
h800-pcie: NVIDIA H800 PCIe
h20: NVIDIA H20
mi300x: AMD Instinct MI300X OAM | AMD Instinct MI300X VF | mi 300x
mi325x: AMD Instinct MI325X
mi355x: AMD Instinct MI355X
rtx-pro-6000: NVIDIA RTX PRO 6000 Blackwell Workstation Edition | RTX 6000 Pro | rtxpro6000
rtx-pro-6000-server: NVIDIA RTX PRO 6000 Blackwell Server Edition
rtx-pro-6000-max-q: NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition
rtx-5090: NVIDIA GeForce RTX 5090 | rtx5090 | 5090
rtx-6000-ada: NVIDIA RTX 6000 Ada Generation | rtx6000ada | RTX 6000 Ada 48GB
rtx-4090: NVIDIA GeForce RTX 4090 | rtx4090 | GeForce® RTX™ 4090 24GB
l40s: NVIDIA L40S
l40: NVIDIA L40
l4: NVIDIA L4
a100: NVIDIA A100-SXM4-80GB | a100-80gb
a100-40gb: NVIDIA A100-SXM4-40GB | NVIDIA A100-PCIE-40GB
a100-pcie: NVIDIA A100 80GB PCIe
"""
# Variants of a GPU in the table, and slices: never with the figures of another
VARIANTS = """
NVIDIA GeForce RTX 4090 D | RTX 4090 Laptop GPU | 4090D | rtx 5090 laptop | H20-3e | H20 141GB
H100 80GB HBM2e | H100 64GB | H100 94GB | H200 80GB | h100 nvl 80gb | h100-sxm-pcie | gh200 64gb
NVIDIA H100 80GB HBM3 MIG 1g.10gb | RTX 6000 | A100X | H100-80C | h1000 | 8xH100 | gpu:h100:8
"""
OTHERS = "MI350X | MI300A | B100 | RTX 4080 | Intel Gaudi 3 | TPU v5p | GTX | NVIDIA | 80GB | "
OLD = """
RTX 3090 | NVIDIA GeForce RTX 3090 Ti | RTX 3080 Laptop GPU | NVIDIA A10G | A40 | RTX A6000
Tesla V100-SXM2-16GB | Tesla T4 | RTX 2080 Ti | Quadro RTX 6000 | NVIDIA TITAN RTX | P100
MI250X | A800 80GB | A100-SXM4-80GB
"""


def names_of(text: str) -> list[str]:
    """Split a list of names."""
    return re.split(r" \| |\n", text.strip("\n"))


@pytest.mark.parametrize("line", NAMES.strip().splitlines())
def test_names_find_their_gpu(line):
    key, _, names = line.partition(": ")
    for name in [key, *names_of(names)]:
        spellings = {name, name.lower(), name.upper(), name.replace(" ", "-"), f" {name}\t"}
        assert {gpus.find(spelling) for spelling in spellings} == {key}


def test_every_order_of_words_finds_the_same_gpu():
    for words in itertools.permutations(["NVIDIA", "H100", "80GB", "PCIe"]):
        assert gpus.find(" ".join(words)) == "h100-pcie"


def test_every_gpu_has_names_here():
    assert {line.partition(": ")[0] for line in NAMES.strip().splitlines()} == {*gpus.GPUS}


@pytest.mark.parametrize("name", names_of(VARIANTS))
def test_another_variant_is_a_question(name):
    assert gpus.find(name) is None
    explained = gpus.explain_unknown_gpu(name)
    assert any(key in explained for key in gpus.GPUS) or "MIG" in explained


@pytest.mark.parametrize("name", names_of(OTHERS))
def test_other_gpus_are_unknown(name):
    assert gpus.find(name) is None and gpus.find_old_chip(name) is None
    assert "table" in gpus.explain_unknown_gpu(name)


@pytest.mark.parametrize("name", names_of(OLD))
def test_gpus_without_fp8_units_are_known_by_their_chip(name):
    assert gpus.find_old_chip(name)
    key = gpus.find(name)
    assert key is None or not gpus.GPUS[key].has_fp8_units


def test_no_gpu_with_fp8_units_has_an_old_chip():
    for key, gpu in gpus.GPUS.items():
        assert gpu.has_fp8_units == (gpus.find_old_chip(key) is None)


def test_peaks_are_dense_ones():
    """Of the tensor cores FP8 has twice the rate of bf16; a sparse figure would be twice that."""
    peaks = [gpu for gpu in gpus.GPUS.values() if gpu.fp8]
    assert [peak.fp8 / peak.bf16 for peak in peaks] == pytest.approx([2] * len(peaks), rel=0.02)


@pytest.mark.parametrize(
    ("name", "bf16"),
    [("NVIDIA H100 80GB PCIe", 756e12), ("NVIDIA GeForce RTX 4090 D", None), ("NVIDIA H20", None)],
)
def test_a_run_has_no_peak_of_another_gpu(name, bf16, monkeypatch):
    monkeypatch.setattr(device, "TYPE", "cuda")
    monkeypatch.setattr(device, "name", lambda: name)
    assert getattr(device.find_peak_rates(), "bf16", None) == bf16
