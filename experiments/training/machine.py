"""Check this machine for a run, and describe it.

`check_here` raises `InputError` with a sentence that says what to change.
"""

import os
from collections.abc import Iterable
from glob import glob

import torch

from experiments.training import visible_gpus
from experiments.training.compilation import check_compilation
from experiments.training.plan import Plan, refuse_keys
from experiments.training.sizes import check_memory
from experiments.training.wandb_runs import check_wandb
from models import device, gpus, nvidia_smi
from models.errors import REINSTALL, InputError
from models.flops import GIB

DEVICE_FILES = "/dev/nvidia[0-9]*"
"""Linux has one for each NVIDIA GPU, whether nvidia-smi works or not."""
AMD_DEVICE_FILE = "/dev/kfd"
"""Linux has it for all AMD GPUs together."""
QUERIED_FIELDS = ("driver_version", "clocks.max.sm", "power.limit")
"""The fields of nvidia-smi that run.json has."""
NVIDIA_FIX = (
    f"`{REINSTALL}` takes the torch for its driver (docs/installing.md); after an upgrade of the "
    "driver, reboot"
)
AMD_FIX = f"look whether this user may open {AMD_DEVICE_FILE}, as the groups render and video may"
CPU_OPTION = "or set CUDA_VISIBLE_DEVICES= to train on the CPU"
CheckResult = tuple[str, str]  # topic, and a sentence for people
TORCH_TOPIC = "torch"  # of a result that is a warning


# ---- checks ----


def check_here(plan: Plan) -> list[CheckResult]:
    """Check this machine's driver, units and memory for a run; describe the device.

    The estimated memory is an error only far beyond what each device has.
    """
    check_driver()
    check_units(plan)
    check_wandb(plan.config)
    memory_gib = device.memory_bytes() / GIB
    results = [
        ("device", f"{device.name()}, {memory_gib:.0f} GiB ({device.TYPE})"),
        ("memory", check_memory(plan)),
    ]
    untried_torch = device.describe_untried_torch()
    if untried_torch:
        results.append((TORCH_TOPIC, untried_torch))
    return results


def check_driver() -> None:
    """Raise `InputError` for a GPU unusable by torch: a run would train on the CPU.

    An empty CUDA_VISIBLE_DEVICES, or -1, asks for the CPU.
    """
    if torch.cuda.is_available():
        visible_gpus.warn_of_ignored_gpus()
        return
    if visible_gpus.asks_for_cpu():
        return
    device_files = glob(DEVICE_FILES)
    listed_gpus = nvidia_smi.list_gpus()
    is_amd = bool(torch.version.hip and glob(AMD_DEVICE_FILE))
    if not (device_files or listed_gpus or is_amd):
        return
    whole_gpus = [gpu for gpu in listed_gpus if gpu.uuid.startswith("GPU-")]
    name = whole_gpus[0].name if whole_gpus else "a GPU"
    n_gpus = max(len(device_files), len(whole_gpus))
    hidden = visible_gpus.explain_hidden_gpus(n_gpus, [gpu.uuid for gpu in listed_gpus])
    if hidden:
        reason = f", because {hidden}"
    else:
        reason = f": {AMD_FIX if is_amd else NVIDIA_FIX}{visible_gpus.suggest_variables()}"
    raise InputError(
        f"there is {name} here, which torch {torch.__version__} cannot use{reason}; {CPU_OPTION}"
    )


def check_units(plan: Plan, cache_folders: Iterable[str] = ()) -> None:
    """Check this machine's matmul units and compiler for a plan, whatever the plan's size.

    Args:
        cache_folders: the run compiles into them, if not into those of this process's variables.
    """
    if device.TYPE == "cpu":
        _refuse_gpu_keys(plan.config)
    elif plan.fp8.layers and not plan.fp8.emulated:
        _check_fp8_units()
    if plan.config.compile.enable:
        check_compilation(cache_folders)


def _refuse_gpu_keys(config) -> None:
    """Raise `InputError` for a key that a CPU cannot follow."""
    keys = [
        "comm.nccl_max_ctas",
        "profiling.enable_memory_snapshot",
        "training.dataloader.pin_memory",
    ]
    if config.model.attention_backend == "cudnn":
        keys.append("model.attention_backend")
    if config.checkpoint.async_mode == "async_with_pinned_mem":
        keys.append("checkpoint.async_mode")
    refuse_keys(config, keys, "a GPU")


def _check_fp8_units() -> None:
    """Raise `InputError` for a GPU without FP8 matrix units.

    On an AMD GPU the capability is the number of its architecture: (9, 0) of gfx90a, the MI250X.
    As in torch, FP8 came with gfx942 (MI300) and gfx1200, and gfx10 and gfx11 have none.
    """
    name = device.name()
    capability = torch.cuda.get_device_capability()
    if torch.version.hip or "AMD" in name:
        has_fp8 = (9, 4) <= capability < (10, 0) or capability >= (12, 0)
        first_gpus = "AMD's MI300 and Radeon RX 9000"
    else:
        has_fp8 = capability >= (8, 9)
        first_gpus = "compute capability 8.9 (Ada, Hopper)"
    if not has_fp8:
        raise InputError(
            f"{name} has no FP8 units, which came with {first_gpus}: train the recipe "
            "`baseline_compiled` instead"
        )


# ---- descriptions ----


def hardware() -> dict:
    """Describe the machine for run.json: clock in MHz, power in W, unknown values None."""
    uuid = None
    driver = clock_mhz = power_w = vboost = None
    if device.TYPE == "cuda":  # by UUID: nvidia-smi may number GPUs in another order than torch
        uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        driver, clock_mhz, power_w = nvidia_smi.query_fields(QUERIED_FIELDS, uuid)
        vboost = nvidia_smi.query_vboost(uuid)
    return {
        "type": device.TYPE,
        "name": device.name(),
        "memory_bytes": device.memory_bytes(),
        "threads": torch.get_num_threads(),
        "cpu": device.cpu_name(),
        "cpu_instruction_sets": device.INSTRUCTION_SETS,
        "visible_devices": os.environ.get(visible_gpus.CUDA_VARIABLE),
        "uuid": uuid,
        "cudnn": _format_cudnn_version(),
        "driver": driver,
        "sm_clock_max_mhz": clock_mhz and float(clock_mhz),
        "power_limit_w": power_w and float(power_w),
        "vboost": vboost,
    }


def _format_cudnn_version() -> str | None:
    """Write the version of the cuDNN that torch has loaded, as 9.15.1; None without cuDNN.

    The version decides which attention runs.
    """
    if device.TYPE == "cpu" or not torch.backends.cudnn.version():
        return None
    major, rest = divmod(torch.backends.cudnn.version(), 10_000)
    minor, patch = divmod(rest, 100)
    return f"{major}.{minor}.{patch}"


def print_gpus() -> int:
    """Print how many GPUs runs can have and the first one's name in models/gpus.py, for scripts.

    Returns an exit code. Raises `InputError` as `check_driver`.
    """
    check_driver()
    n_gpus = torch.cuda.device_count()
    print(n_gpus, gpus.find(device.name()) if n_gpus else None)
    return 0
