"""What GPUs can do: peaks of matrix multiplication, memory bandwidth and memory, each with its
source.

`datasheet` has the maker's figures, `sustained` measured ones: a GPU at its power limit lowers its
clock, so that even the best GEMMs reach only 71 to 87 % of the datasheet.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Rates:
    """Dense matrix-multiply peaks in FLOP/s (`fp8` is None without FP8 units), and memory bandwidth
    in B/s."""

    bf16: float
    fp8: float | None
    source: str
    bandwidth: float | None = None


@dataclass(frozen=True)
class Links:
    """What joins GPUs: bandwidths of one GPU in each direction in B/s, by the datasheets, and
    `node` GPUs to a node."""

    node: int
    nvlink: float
    network: float
    source: str

    def bus_bandwidth(self, gpus: int) -> float:
        """What limits collectives among so many GPUs, in bus bytes per second (nccl-tests'
        convention).

        Over nodes every ring of GPUs enters and leaves a node once, each by another GPU's network
        card.
        """
        return self.nvlink if gpus <= self.node else min(self.nvlink, self.node * self.network)


@dataclass(frozen=True)
class Gpu:
    """One model of GPU."""

    driver_name: str  # a part of the name that the driver gives it
    memory: float  # bytes
    datasheet: Rates
    sustained: Rates | None = None
    links: Links | None = None

    @property
    def rates(self) -> Rates:
        """The sustained rates, or the datasheet's where nobody has measured them."""
        return self.sustained or self.datasheet


def _rates(bf16: float, fp8: float | None, bandwidth: float, source: str) -> Rates:
    """From TFLOP/s and TB/s, as sources print them; sparse figures are halved."""
    return Rates(bf16 * 1e12, fp8 and fp8 * 1e12, source, bandwidth * 1e12)


# "Maximum achievable matmul FLOPS": the best of many GEMM shapes, each the mean of 100 runs, torch
# 2.6 and 2.7.
_GEMMS = "GEMMs: github.com/stas00/ml-engineering, compute/accelerator, table of August 2026"
_NO_COPY = f"{_GEMMS}; bandwidth: the datasheet's, for want of a measured one"
_H100 = "NVIDIA H100 Tensor Core GPU datasheet (nvidia.com/en-us/data-center/h100), dense"
_H200 = "NVIDIA H200 Tensor Core GPU datasheet (nvidia.com/en-us/data-center/h200), dense"
_GH200 = (
    "NVIDIA GH200 Superchip datasheet (nvidia.com/en-us/data-center/grace-hopper-superchip), dense"
)
_A100 = (
    "NVIDIA A100 Tensor Core GPU datasheet (nvidia.com/en-us/data-center/a100), dense, 80 GB SXM"
)
_B200 = "NVIDIA Blackwell datasheet (resources.nvidia.com), dense, one GPU of an HGX B200"
_L40S = "NVIDIA L40S datasheet (nvidia.com/en-us/data-center/l40s), dense"
_BLACKWELL = (
    "NVIDIA Blackwell Ultra and GB200/GB300 NVL72 datasheets (nvidia.com), dense, one GPU of"
)
_RTX = "NVIDIA {} whitepaper, appendix A, dense; FP8 with sums in FP32, as torch._scaled_mm asks"
_ADA, _RTX_50 = _RTX.format("Ada GPU architecture"), _RTX.format("RTX Blackwell GPU architecture")
_CDNA3 = "AMD Instinct {} data sheet (amd.com), dense"
# An H200's own rates are not measured yet.
_H200_GOALS = (
    "bf16 and copies: assumed (80 and 90 % of the datasheet), for want of a measurement; FP8 "
    f"{_GEMMS}"
)

_HGX = (
    "DGX user guides (docs.nvidia.com/dgx): 900 GB/s of NVLink both ways, 1800 on B200; "
    "a 400 Gb/s card for each GPU"
)
_8_GPUS, _8_B200 = Links(8, 450e9, 50e9, _HGX), Links(8, 900e9, 50e9, _HGX)
_SLINGSHOT = (
    "Alps: De Sensi et al., arXiv 2408.14090: NVLink, Slingshot 11 with 200 Gb/s for each GPU"
)
_ALPS = Links(4, 450e9, 25e9, _SLINGSHOT)

# The keys are names for the command line. A device is the first GPU whose `driver_name` is its name
# (`find`), so a chip's variants stand before it. "NVIDIA GH200 120GB" and "480GB" name
# the CPU's memory; the GPU's is 96 GB.
GPUS = {
    "gb300": Gpu("GB300", 279e9, _rates(2500, 5000, 8.0, f"{_BLACKWELL} a GB300 NVL72")),
    "gb200": Gpu("GB200", 186e9, _rates(2500, 5000, 8.0, f"{_BLACKWELL} a GB200 NVL72")),
    "b300": Gpu("B300", 270e9, _rates(2250, 4500, 8.0, f"{_BLACKWELL} an HGX B300")),
    "b200": Gpu("B200", 180e9, _rates(2250, 4500, 7.7, _B200),
                _rates(1745.0, 3432.5, 7.7, _NO_COPY), _8_B200),
    "gh200-144gb": Gpu("GH200 144G", 144e9, _rates(989, 1979, 4.9, f"{_GH200}, HBM3e"),
                       _rates(828.6, 1535.0, 4.9, f"{_NO_COPY}; at 900 W")),
    "gh200": Gpu("GH200", 96e9, _rates(989, 1979, 4.0, f"{_GH200}, HBM3"), links=_ALPS),
    "h200-nvl": Gpu("H200 NVL", 141e9, _rates(835, 1671, 4.8, f"{_H200}, NVL")),
    "h200": Gpu("H200", 141e9, _rates(989, 1979, 4.8, f"{_H200}, SXM"),
                _rates(790, 1453.4, 4.3, _H200_GOALS), _8_GPUS),
    "h100-pcie": Gpu("H100 PCIe", 80e9, _rates(756, 1513, 2.0, f"{_H100}, PCIe")),
    "h100-nvl": Gpu("H100 NVL", 94e9, _rates(835, 1671, 3.9, f"{_H100}, NVL")),
    "h100": Gpu("H100", 80e9, _rates(989, 1979, 3.35, f"{_H100}, SXM"),
                _rates(794.5, 1402.6, 3.35, _NO_COPY), _8_GPUS),
    "mi325x": Gpu("MI325X", 256e9, _rates(1307.4, 2614.9, 6.0, _CDNA3.format("MI325X"))),
    "mi300x": Gpu("MI300X", 192e9, _rates(1307.4, 2614.9, 5.3, _CDNA3.format("MI300X"))),
    "rtx-pro-6000": Gpu("RTX PRO 6000", 96e9, _rates(503.8, 1007.6, 1.792, _RTX_50)),
    "rtx-5090": Gpu("RTX 5090", 32e9, _rates(209.5, 419, 1.792, _RTX_50)),
    "rtx-4090": Gpu("RTX 4090", 24e9, _rates(165.2, 330.3, 1.008, _ADA)),
    "l40s": Gpu("L40S", 48e9, _rates(362.05, 733, 0.864, _L40S)),
    # Other A100s multiply as fast and have slower memory.
    "a100": Gpu("A100", 80e9, _rates(312, None, 2.039, _A100),
                _rates(271.2, None, 2.039, _NO_COPY)),
}  # fmt: skip

# GPUs whose matmul units are alike.
CHIPS = {
    "Hopper": ("h100", "h100-pcie", "h100-nvl", "h200", "h200-nvl", "gh200", "gh200-144gb"),
    "Blackwell": ("b200", "b300", "gb200", "gb300"),
    "RTX Blackwell": ("rtx-5090", "rtx-pro-6000"),
    "Ada": ("rtx-4090", "l40s"),
    "CDNA 3": ("mi300x", "mi325x"),
    "Ampere": ("a100",),
}


def chip(gpu: str | None) -> str | None:
    """Name the chip of a key in `GPUS`."""
    return next((name for name, gpus in CHIPS.items() if gpu in gpus), None)


# What stands around a GPU's name and leaves its matmuls as fast: makers, memories, sockets. Words
# that are not here name another chip (D, Laptop GPU, Max-Q) or a part of one (MIG 1g.10gb).
_BEFORE = r"(?:(?:NVIDIA|AMD|GeForce|Instinct) )*"
_AFTER = (
    r"(?: (?:SXM\d?|PCIe|OAM|HBM\d\w*|\d+ ?GB?|\d+W|\(presumed\)|Blackwell Workstation Edition))*"
)


def find(device_name: str) -> str | None:
    """The key in `GPUS` for a driver's or a user's name of a GPU, e.g. `NVIDIA GH200 120GB` or
    `h100-sxm`; None if it is not in the table."""
    if device_name in GPUS:
        return device_name
    words = device_name.replace("-", " ")
    for name, gpu in GPUS.items():
        if re.fullmatch(_BEFORE + gpu.driver_name + _AFTER, words, re.IGNORECASE):
            return name
    return None
