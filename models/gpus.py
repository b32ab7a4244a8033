"""List what GPUs can do, by their makers' datasheets, and look GPUs up by their names.

Drivers, clouds, shops and people write these names in other orders and spellings.
"""

import difflib
import re
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

_H100 = "NVIDIA H100 Tensor Core GPU datasheet (nvidia.com/en-us/data-center/h100)"
_H100_96 = "The H100 with HBM2e of 96 GB; torchtitan and torchao publish its speeds"
_H800 = "NVIDIA H800 Tensor Core GPU datasheet 2631447, February 2023"
_H200 = "NVIDIA H200 Tensor Core GPU datasheet (nvidia.com/en-us/data-center/h200)"
_GH200 = "NVIDIA GH200 Superchip datasheet (nvidia.com/en-us/data-center/grace-hopper-superchip)"
_A100 = "NVIDIA A100 Tensor Core GPU datasheet (nvidia.com/en-us/data-center/a100)"
_B200 = "NVIDIA Blackwell datasheet (resources.nvidia.com), one GPU of an HGX B200"
_B300 = "NVIDIA Blackwell Ultra datasheet (nvidia.com), one GPU of an HGX B300"
_NVL72 = "NVIDIA GB200/GB300 NVL72 datasheets (nvidia.com), one GPU of an NVL72"
_L4 = "NVIDIA L4 datasheet (nvidia.com/en-us/data-center/l4)"
_L40 = "NVIDIA L40 datasheet (nvidia.com/en-us/data-center/l40)"
_L40S = "NVIDIA L40S datasheet (nvidia.com/en-us/data-center/l40s)"
# FP8 with sums in FP32, as torch._scaled_mm asks.
_ADA = "NVIDIA Ada GPU architecture whitepaper, appendix A"
_RTX_6000_ADA = "NVIDIA RTX 6000 Ada Generation datasheet, half of its sparse 1,457 TFLOP/s in FP8"
_RTX_50 = "NVIDIA RTX Blackwell GPU architecture whitepaper, appendix A"
_MI300X = "AMD Instinct MI300X data sheet (amd.com)"
_MI325X = "AMD Instinct MI325X data sheet (amd.com)"
_MI355X = "AMD Instinct MI355X data sheet (amd.com)"
# Rates that no datasheet has stay empty: other people's figures for them are not the maker's.
_H20 = "NVIDIA publishes no datasheet of the H20"
_GB10 = "The DGX Spark's datasheet has a sparse FP4 rate and no other"
_RTX_PRO = "NVIDIA's datasheets of this edition have rates in FP32 and FP4 alone"


@dataclass(frozen=True)
class Gpu:
    """One model of GPU. Rates are None where no datasheet has them."""

    chip: str  # GPUs of one chip have the same matmul units
    memory: float  # bytes
    bf16: float | None  # dense peak of matmuls in FLOP/s: half of a sparse figure
    fp8: float | None  # the same; None without FP8 units too
    bandwidth: float  # of the memory, in B/s
    words: str  # of its name, besides those of its key and chip: sockets and memories
    source: str

    @property
    def has_fp8_units(self) -> bool:
        """True if the chip multiplies in FP8."""
        return self.chip not in _OLD_CHIPS


class PeakRates(NamedTuple):
    """What a datasheet says of a GPU's matmuls: dense peaks in FLOP/s."""

    bf16: float
    fp8: float | None  # None without FP8 units
    source: str


# The keys are names for the command line. A name is a GPU's if it has all words of the GPU's key,
# and no words but those and the GPU's other ones. So no variant takes another's figures: a further
# word names a variant that is not here, or a slice of a GPU (MIG). "GH200 120GB" and "480GB" name
# the CPU's memory; the GPU's is 96 GB.
GPUS = {
    "gb300": Gpu("Blackwell", 279e9, 2500e12, 5000e12, 8.0e12, "288gb hbm3e nvl72", _NVL72),
    "gb200": Gpu("Blackwell", 186e9, 2500e12, 5000e12, 8.0e12, "192gb hbm3e nvl72", _NVL72),
    "gb10": Gpu("RTX Blackwell", 128e9, None, None, 0.273e12, "lpddr5x", _GB10),
    "b300": Gpu("Blackwell", 270e9, 2250e12, 4500e12, 8.0e12, "sxm 288gb hbm3e ac 1100w", _B300),
    "b200": Gpu("Blackwell", 180e9, 2250e12, 4500e12, 7.7e12, "sxm 192gb hbm3e 1000w", _B200),
    "gh200-144gb": Gpu("Hopper", 144e9, 989e12, 1979e12, 4.9e12, "480gb hbm3e", _GH200),
    "gh200": Gpu("Hopper", 96e9, 989e12, 1979e12, 4.0e12, "120gb 480gb hbm3", _GH200),
    "h200-nvl": Gpu("Hopper", 141e9, 835e12, 1671e12, 4.8e12, "pcie hbm3e 600w", _H200),
    "h200": Gpu("Hopper", 141e9, 989e12, 1979e12, 4.8e12, "sxm hbm3e 700w", _H200),
    "h100-pcie": Gpu("Hopper", 80e9, 756e12, 1513e12, 2.0e12, "hbm2e 350w", _H100),
    "h100-nvl": Gpu("Hopper", 94e9, 835e12, 1671e12, 3.9e12, "pcie hbm3 400w", _H100),
    "h100-96gb": Gpu("Hopper", 96e9, 989e12, 1979e12, 2.4e12, "sxm hbm2e 500w", _H100_96),
    "h100": Gpu("Hopper", 80e9, 989e12, 1979e12, 3.35e12, "sxm hbm3 700w mega", _H100),
    "h800-pcie": Gpu("Hopper", 80e9, 756e12, 1513e12, 2.0e12, "hbm2e 350w", _H800),
    "h800": Gpu("Hopper", 80e9, 989e12, 1979e12, 3.35e12, "sxm hbm3 700w", _H800),
    "h20": Gpu("Hopper", 96e9, None, None, 4.0e12, "sxm hbm3", _H20),
    "mi355x": Gpu("CDNA 4", 288e9, 2516.6e12, 5033.2e12, 8.0e12, "hbm3e", _MI355X),
    "mi325x": Gpu("CDNA 3", 256e9, 1307.4e12, 2614.9e12, 6.0e12, "hbm3e", _MI325X),
    "mi300x": Gpu("CDNA 3", 192e9, 1307.4e12, 2614.9e12, 5.3e12, "hbm3 vf", _MI300X),
    "rtx-pro-6000-server": Gpu("RTX Blackwell", 96e9, None, None, 1.597e12, "gddr7", _RTX_PRO),
    "rtx-pro-6000-max-q": Gpu(
        "RTX Blackwell", 96e9, None, None, 1.792e12, "gddr7 workstation 300w", _RTX_PRO
    ),
    "rtx-pro-6000": Gpu(
        "RTX Blackwell", 96e9, 503.8e12, 1007.6e12, 1.792e12, "gddr7 workstation 600w", _RTX_50
    ),
    "rtx-5090": Gpu("RTX Blackwell", 32e9, 209.5e12, 419e12, 1.792e12, "gddr7 575w", _RTX_50),
    "rtx-6000-ada": Gpu("Ada", 48e9, 364.25e12, 728.5e12, 0.96e12, "gddr6 300w", _RTX_6000_ADA),
    "rtx-4090": Gpu("Ada", 24e9, 165.2e12, 330.3e12, 1.008e12, "gddr6x 450w", _ADA),
    "l40s": Gpu("Ada", 48e9, 362.05e12, 733e12, 0.864e12, "pcie gddr6 350w", _L40S),
    "l40": Gpu("Ada", 48e9, 181.05e12, 362e12, 0.864e12, "pcie gddr6 300w", _L40),
    "l4": Gpu("Ada", 24e9, 121e12, 242.5e12, 0.3e12, "pcie gddr6 72w", _L4),
    "a100-40gb": Gpu("Ampere", 40e9, 312e12, None, 1.555e12, "sxm pcie hbm2", _A100),
    "a100-pcie": Gpu("Ampere", 80e9, 312e12, None, 1.935e12, "hbm2e 300w", _A100),
    "a100": Gpu("Ampere", 80e9, 312e12, None, 2.039e12, "sxm hbm2e 400w", _A100),
}

# Chips without FP8 units, and patterns of their GPUs, whatever else stands in a name
_OLD_CHIPS = {
    "Ampere": r"a100|a800|a10[gm]?|a16|a2|a30|a40|a[245][05]00|a6000|30[5-9]0",
    "Turing": r"t4g?|t10|20[5-8]0|16[5-6]0|quadro|titan",
    "Volta": r"g?v100s?|titanv",
    "Pascal": r"p100|p40|p4|10[5-8]0|titanxp?",
    "CDNA 2": r"mi2[15]0x?",
    "CDNA": r"mi100",
    "Vega 20": r"mi[56]0",
}
# What changes nothing in a name: makers, brands, machines
_IDLE_WORDS = """
nvidia amd geforce instinct tesla rtx gtx gpu gpus graphics card accelerator tensor core cores
generation edition superchip grace lovelace hgx dgx new hbm oam
"""
_SPELLINGS = {
    r"\((r|tm)\)|[®™]": " ",
    r"\b(dgx[ -]*)?spark\b": " gb10 ",
    r"\bmax[ -]*q\b": " maxq ",
    r"\bws\b": " workstation ",
    r"pci[ -]*e?[ -]*(gen)?[ -]*[345]?(\.0)?( *x16)?\b": r" pcie ",
    r"sxm[ -]*[2-6]?\b": " sxm ",
    r"(\d)[ -]*(gib|gb|g)\b": r"\1gb ",
    r"(\d)[ -]*(watts?|w)\b": r"\1w ",
    r"[^a-z0-9.]+": " ",
    r"(?<=\D) | (?=\D)": "",  # "h 100 nvl" is "h100nvl"; between two numbers a space stays
}
_MIG_SLICE = r"\bmig\b|\d+[gc]\.\d+gb"  # MIG 1g.10gb
_GPU_COUNT = (  # 8xH100, gpu:h100:8
    r"(?:gpu[ :_-]*)?(?:(?P<before>\d{1,4})(?:[ _]*[x×*][ _]*(?=\w)|[ _]+(?=[a-z])))?"
    r"(?P<name>.*?)(?:(?:\s*[:×*]|(?<![a-z])\s*x)\s*(?P<after>\d{1,4}))?"
)


def find(name: str) -> str | None:
    """Find the key in `GPUS` for a driver's, a cloud's or a user's name of a GPU, e.g. `NVIDIA
    GH200 120GB` or `h100-sxm`; None if no GPU there has this name."""
    words = split_gpu_name(name)
    for key, gpu in GPUS.items():
        required = split_gpu_name(key)
        if required <= words <= required | optional_words(gpu):
            return key
    return None


def explain_unknown_gpu(name: str) -> str:
    """Name in a sentence the GPUs nearest to an unknown name."""
    if re.search(_MIG_SLICE, name.lower()):
        return f"{name!r:.80} is a slice of a GPU (MIG), and no datasheet has the rates of slices"
    count = re.fullmatch(_GPU_COUNT, name.lower().strip(), re.DOTALL)
    several = count and (count["before"] or count["after"])
    if count and several and find(count["name"]):
        return f"{name!r:.80} is several GPUs: write --gpu {find(count['name'])} --gpus {several}"
    words = split_gpu_name(name)
    variants = [key for key in GPUS if get_chip_word(key) in words]
    if len(variants) == 1:
        return f"{name!r:.80} is another variant than {variants[0]}, the only one in the table"
    if variants:
        return f"{name!r:.80} is not one GPU of the table: which of {', '.join(variants)} is it?"
    near = difflib.get_close_matches(re.sub(r"[\W_]+", "-", name.lower()), GPUS, 3, cutoff=0.5)
    meant = f": did you mean {' or '.join(near)}?" if near else ""
    return f"{name!r:.80} is not a GPU of the table{meant}"


def get_chip(gpu: str | None) -> str | None:
    """Name the chip of a key in `GPUS`."""
    return GPUS[gpu].chip if gpu else None


def find_old_chip(name: str) -> str | None:
    """Name the chip of a GPU without FP8 units, whatever its variant; None for other GPUs."""
    words = split_gpu_name(name)
    for chip_name, pattern in _OLD_CHIPS.items():
        if any(re.fullmatch(pattern, word) for word in words):
            return chip_name
    return None


# ---- names in words ----


def split_gpu_name(name: str) -> set[str]:
    """Split a name into words of one spelling, in any order; a rest without a word stays as it is.

    `NVIDIA H100-SXM5-80GB` and `h100 80 GB sxm` are {h100, sxm, 80gb}.
    """
    text = f" {name.lower()} "
    for spelling, usual in _SPELLINGS.items():
        text = re.sub(spelling, usual, text)
    words, end = set(), 0
    for match in re.finditer(_vocabulary_pattern(), text):
        words |= {text[end : match.start()].strip(), match[0]}
        end = match.end()
    words.add(text[end:].strip())
    return words - {"", *_IDLE_WORDS.split()}


def optional_words(gpu: Gpu) -> set[str]:
    """List what a GPU's name may have besides the words of its key."""
    chip_words = re.sub(r" (?=\d)", "", gpu.chip.lower()).split()  # cdna3; rtx, blackwell
    return {*gpu.words.split(), *chip_words, f"{gpu.memory / 1e9:.0f}gb"}


def get_chip_word(key: str) -> str:
    """Give the word of a key shared by all variants of a GPU: `h100` of `h100-pcie`."""
    return next(word for word in key.split("-") if re.search(r"\d", word))


@cache
def _vocabulary_pattern() -> str:
    """Make a pattern of all words: the longest first, then GPUs without FP8 units, then units."""
    literal = {*_IDLE_WORDS.split()}
    for key, gpu in GPUS.items():
        literal |= {*key.replace("max-q", "maxq").split("-")} | optional_words(gpu)
    words = sorted(literal, key=len, reverse=True)
    old = [f"(?:{pattern})(?!\\d)" for pattern in _OLD_CHIPS.values()]
    return "|".join([*words, *old, r"hbm\d?e?", r"\d+gb", r"\d+w"])
