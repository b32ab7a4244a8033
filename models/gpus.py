"""List what GPUs can do, by their makers' datasheets."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """One model of GPU."""

    driver_name: str  # a part of the name that the driver gives it
    chip: str  # GPUs of one chip have the same matmul units
    memory: float  # bytes
    bf16: float  # dense peak of matmuls in FLOP/s: half of a sparse figure
    fp8: float | None  # the same; None without FP8 units
    bandwidth: float  # of the memory, in B/s
    source: str


_H100 = "NVIDIA H100 Tensor Core GPU datasheet (nvidia.com/en-us/data-center/h100)"
_H100_96 = "The H100 with HBM2e of 96 GB; torchtitan and torchao publish its speeds"
_H200 = "NVIDIA H200 Tensor Core GPU datasheet (nvidia.com/en-us/data-center/h200)"
_GH200 = "NVIDIA GH200 Superchip datasheet (nvidia.com/en-us/data-center/grace-hopper-superchip)"
_A100 = "NVIDIA A100 Tensor Core GPU datasheet (nvidia.com/en-us/data-center/a100), 80 GB SXM"
_B200 = "NVIDIA Blackwell datasheet (resources.nvidia.com), one GPU of an HGX B200"
_B300 = "NVIDIA Blackwell Ultra datasheet (nvidia.com), one GPU of an HGX B300"
_NVL72 = "NVIDIA GB200/GB300 NVL72 datasheets (nvidia.com), one GPU of an NVL72"
_L40S = "NVIDIA L40S datasheet (nvidia.com/en-us/data-center/l40s)"
# FP8 with sums in FP32, as torch._scaled_mm asks.
_ADA = "NVIDIA Ada GPU architecture whitepaper, appendix A"
_RTX_50 = "NVIDIA RTX Blackwell GPU architecture whitepaper, appendix A"
_MI300X = "AMD Instinct MI300X data sheet (amd.com)"
_MI325X = "AMD Instinct MI325X data sheet (amd.com)"

# The keys are names for the command line. A device is the first GPU whose `driver_name` is its name
# (`find`), so a chip's variants stand before it. "NVIDIA GH200 120GB" and "480GB" name
# the CPU's memory; the GPU's is 96 GB. Other A100s multiply as fast and have slower memory.
GPUS = {
    "gb300": Gpu("GB300", "Blackwell", 279e9, 2500e12, 5000e12, 8.0e12, _NVL72),
    "gb200": Gpu("GB200", "Blackwell", 186e9, 2500e12, 5000e12, 8.0e12, _NVL72),
    "b300": Gpu("B300", "Blackwell", 270e9, 2250e12, 4500e12, 8.0e12, _B300),
    "b200": Gpu("B200", "Blackwell", 180e9, 2250e12, 4500e12, 7.7e12, _B200),
    "gh200-144gb": Gpu("GH200 144G", "Hopper", 144e9, 989e12, 1979e12, 4.9e12, _GH200),
    "gh200": Gpu("GH200", "Hopper", 96e9, 989e12, 1979e12, 4.0e12, _GH200),
    "h200-nvl": Gpu("H200 NVL", "Hopper", 141e9, 835e12, 1671e12, 4.8e12, _H200),
    "h200": Gpu("H200", "Hopper", 141e9, 989e12, 1979e12, 4.8e12, _H200),
    "h100-pcie": Gpu("H100 PCIe", "Hopper", 80e9, 756e12, 1513e12, 2.0e12, _H100),
    "h100-nvl": Gpu("H100 NVL", "Hopper", 94e9, 835e12, 1671e12, 3.9e12, _H100),
    "h100-96gb": Gpu("H100 96GB", "Hopper", 96e9, 989e12, 1979e12, 2.4e12, _H100_96),
    "h100": Gpu("H100", "Hopper", 80e9, 989e12, 1979e12, 3.35e12, _H100),
    "mi325x": Gpu("MI325X", "CDNA 3", 256e9, 1307.4e12, 2614.9e12, 6.0e12, _MI325X),
    "mi300x": Gpu("MI300X", "CDNA 3", 192e9, 1307.4e12, 2614.9e12, 5.3e12, _MI300X),
    "rtx-pro-6000": Gpu(
        "RTX PRO 6000", "RTX Blackwell", 96e9, 503.8e12, 1007.6e12, 1.792e12, _RTX_50
    ),
    "rtx-5090": Gpu("RTX 5090", "RTX Blackwell", 32e9, 209.5e12, 419e12, 1.792e12, _RTX_50),
    "rtx-4090": Gpu("RTX 4090", "Ada", 24e9, 165.2e12, 330.3e12, 1.008e12, _ADA),
    "l40s": Gpu("L40S", "Ada", 48e9, 362.05e12, 733e12, 0.864e12, _L40S),
    "a100": Gpu("A100", "Ampere", 80e9, 312e12, None, 2.039e12, _A100),
}


def chip(gpu: str | None) -> str | None:
    """Name the chip of a key in `GPUS`."""
    return GPUS[gpu].chip if gpu else None


# What stands around a GPU's name and leaves its matmuls as fast: makers, memories, sockets. Words
# that are not here name another chip (D, Laptop GPU, Max-Q) or a part of one (MIG 1g.10gb).
_BEFORE = r"(?:(?:NVIDIA|AMD|GeForce|Instinct) )*"
_AFTER = (
    r"(?: (?:SXM\d?|PCIe|OAM|HBM\d\w*|\d+ ?GB?|\d+W|\(presumed\)|Blackwell Workstation Edition))*"
)


def find(device_name: str) -> str | None:
    """Find the key in `GPUS` for a driver's or a user's name of a GPU, e.g. `NVIDIA GH200 120GB` or
    `h100-sxm`; None if it is not in the table."""
    if device_name in GPUS:
        return device_name
    words = device_name.replace("-", " ")
    for name, gpu in GPUS.items():
        if re.fullmatch(_BEFORE + gpu.driver_name + _AFTER, words, re.IGNORECASE):
            return name
    return None
