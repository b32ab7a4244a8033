"""Check this machine for a run, and describe it.

`check_here` raises `InputError` with a sentence that says what to change.
"""

import os
from collections.abc import Iterable
from glob import glob

import torch

from experiments.training import places, visible_gpus
from experiments.training.compilation import check_compilation
from experiments.training.plan import Plan, refuse
from experiments.training.sizes import check_memory
from models import device, gpus, nvidia_smi
from models.errors import REINSTALL, InputError
from models.flops import GIB

DEVICE_FILES = "/dev/nvidia[0-9]*"
"""What Linux has of each GPU, whether nvidia-smi works or not."""
AMD_FILES = "/dev/kfd"
"""The same of all AMD GPUs together."""
ASKED = ("driver_version", "clocks.max.sm", "power.limit")
"""What nvidia-smi is asked for a manifest."""
NO_DRIVER = (
    f"`{REINSTALL}` takes the torch for its driver (docs/installing.md); after an upgrade of the "
    "driver, reboot"
)
NO_AMD_ACCESS = f"look whether this user may open {AMD_FILES}, as the groups render and video may"
Finding = tuple[str, str]  # topic, and a sentence for people
TORCH = "torch"  # the topic of a finding that is a warning


def check_here(plan: Plan) -> list[Finding]:
    """Check this machine's driver, units and memory for a run; describe the device.

    The estimated memory is an error only far beyond what each device has.
    """
    check_driver()
    check_units(plan)
    here = f"{device.name()}, {device.memory_bytes() / GIB:.0f} GiB ({device.TYPE})"
    findings = [("device", here), ("memory", check_memory(plan))]
    untried = device.describe_untried_torch()
    return [*findings, (TORCH, untried)] if untried else findings


def check_driver() -> None:
    """Raise `InputError` for a GPU unusable by torch: a run would train on the CPU.

    An empty CUDA_VISIBLE_DEVICES, or -1, asks for the CPU.
    """
    if torch.cuda.is_available():
        visible_gpus.warn_of_ignored_gpus()
        return
    if visible_gpus.asks_for_cpu():
        return
    files, listed = glob(DEVICE_FILES), nvidia_smi.list_gpus()
    is_amd = bool(torch.version.hip and glob(AMD_FILES))
    if not (files or listed or is_amd):
        return
    whole = [gpu for gpu in listed if gpu.uuid.startswith("GPU-")]
    count = max(len(files), len(whole))
    hidden = visible_gpus.explain_hidden_gpus(count, [gpu.uuid for gpu in listed])
    fix = NO_AMD_ACCESS if is_amd else NO_DRIVER + visible_gpus.doubt()
    reason = f", because {hidden}" if hidden else f": {fix}"
    raise InputError(
        f"there is {whole[0].name if whole else 'a GPU'} here, which torch {torch.__version__} "
        f"cannot use{reason}; or set CUDA_VISIBLE_DEVICES= to train on the CPU"
    )


def check_units(plan: Plan, caches: Iterable[str] = ()) -> None:
    """Check this machine's matmul units and compiler for a plan, whatever the plan's size.

    Args:
        caches: folders that the run compiles into, if not those of this process's variables.
    """
    config = plan.config
    if device.TYPE == "cpu":
        needs_gpu = ["comm.nccl_max_ctas", "profiling.enable_memory_snapshot"]
        needs_gpu.append("training.dataloader.pin_memory")
        if config.model.attention_backend == "cudnn":
            needs_gpu.append("model.attention_backend")
        if config.checkpoint.async_mode == "async_with_pinned_mem":
            needs_gpu.append("checkpoint.async_mode")
        refuse(config, needs_gpu, "a GPU")
    elif plan.fp8.layers and not plan.fp8.emulated:
        _check_fp8_units()
    if config.compile.enable:
        check_compilation(caches)


def _check_fp8_units() -> None:
    """Raise `InputError` for a GPU without FP8 matrix units.

    On an AMD GPU the capability is the number of its architecture: (9, 0) of gfx90a, the MI250X.
    As in torch, FP8 came with gfx942 (MI300) and gfx1200, and gfx10 and gfx11 have none.
    """
    name, capability = device.name(), torch.cuda.get_device_capability()
    if torch.version.hip or "AMD" in name:
        has_fp8 = (9, 4) <= capability < (10, 0) or capability >= (12, 0)
        since = "AMD's MI300 and Radeon RX 9000"
    else:
        has_fp8 = capability >= (8, 9)
        since = "compute capability 8.9 (Ada, Hopper)"
    if not has_fp8:
        raise InputError(
            f"{name} has no FP8 units, which came with {since}: train the recipe "
            "`baseline_compiled` instead"
        )


# ---- what it is ----


def hardware() -> dict:
    """Describe the machine for a manifest: clock in MHz, power in W, unknown values None."""
    uuid, answers = None, [None] * len(ASKED)
    if device.TYPE == "cuda":  # whose numbers of GPUs are not always nvidia-smi's
        uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        answers = nvidia_smi.query_fields(ASKED, uuid)
    driver, clock, power = answers
    return {
        "type": device.TYPE,
        "name": device.name(),
        "memory_bytes": device.memory_bytes(),
        "threads": torch.get_num_threads(),
        "cpu": device.cpu_name(),
        "cpu_instruction_sets": device.INSTRUCTION_SETS,
        "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),  # which GPUs of several
        "uuid": uuid,
        "cudnn": cudnn(),  # the version that PyTorch has loaded: it decides which attention runs
        "driver": driver,
        "sm_clock_max_mhz": clock and float(clock),
        "power_limit_w": power and float(power),
        "vboost": places.vboost(uuid),
    }


def cudnn() -> str | None:
    """Return the version of cuDNN, as in 9.15.1; None without a GPU or without cuDNN."""
    version = torch.backends.cudnn.version() if device.TYPE == "cuda" else None
    return version and f"{version // 10000}.{version % 10000 // 100}.{version % 100}"


def print_gpus() -> int:
    """Print how many GPUs runs can have and the first one's name in models/gpus.py, for scripts.

    Returns an exit code. Raises `InputError` as `check_driver`.
    """
    check_driver()
    count = torch.cuda.device_count()
    print(count, gpus.find(device.name()) if count else None)
    return 0
