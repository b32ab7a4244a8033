"""Work out once what a recipe asks for, and refuse what cannot run before anything is written.

    plan        the model, its layers in FP8, ranks, memory, checkpoints: needs no GPU and no data
    check_here  what this machine must have: FP8 units, a compiler, memory
    open_data   the token file, prepared where it is not there yet

And which size suits this machine: `choose_scale`, `fit`.

Each raises `InputError` with a sentence that says what to change.
"""

import math
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from experiments.config import recipes
from experiments.config.rules import fp8_steps
from experiments.jobs import ranks
from experiments.jobs.ranks import number
from experiments.jobs.runner import BUDGET
from experiments.records.run import Fit
from experiments.training import checkpoint
from models import device, float8, flops
from models.architectures import build, freeze, model_args
from models.errors import InputError, by_pattern
from models.flops import memory_by_use, memory_finding
from models.gpus import GPUS

if TYPE_CHECKING:
    from experiments.corpus.tokens import TokenFile

MOST = 0.95  # of the memory: the estimate is what PyTorch allocates, and CUDA and gaps come on top
HOPELESS = 1.3  # times the memory: more is an error; less a remark, since it is an estimate


@dataclass(frozen=True)
class Plan:
    """What a recipe asks of each of `world_size` processes."""

    recipe: recipes.Recipe
    world_size: int
    args: object  # of the model's class
    parameters: int
    flops_per_token: int
    fp8_layers: frozenset[str]  # names of linear layers; empty for a run in bf16
    fp8_steps: range  # counted from 1
    shards: int  # processes that share parameters, gradients and optimizer states
    memory: dict[str, float]  # bytes on each device by use

    @property
    def config(self):
        return self.recipe.config

    @property
    def memory_needed(self) -> float:
        """Bytes on each device."""
        return sum(self.memory.values())

    @property
    def checkpoint_bytes(self) -> float:
        """Size of a checkpoint on disk; 0 if the recipe writes none."""
        if not self.config.checkpoint.enable:
            return 0
        return (self.memory["parameters"] + self.memory["optimizer"]) * self.shards

    def describe(self) -> str:
        """Say what is trained, in which precision."""
        size = f"{count(self.parameters)} parameters"
        if flops.has_experts(self.args):
            size += f" ({count(flops.parameters(self.args, active=True))} active)"
        name, steps = self.config.quantize.linear.float8.recipe_name, self.fp8_steps
        precision = "no FP8"
        if name:
            precision = f"{len(self.fp8_layers)} linear layers in {name} FP8"
            precision += f" in {len(steps)} of {self.config.training.steps} steps"
        return f"{size}, {self.flops_per_token / 1e9:.4g} GFLOP per token, {precision}"


def count(number: int) -> str:
    """Write a number of parameters with three digits, in millions or billions."""
    return f"{number / 1e9:.3g} B" if number >= 1e9 else f"{number / 1e6:.3g} M"


def plan(recipe: recipes.Recipe, world_size: int | None = None) -> Plan:
    """Work out and check a recipe for so many processes.

    Without `world_size` it is the work of one device, whoever the others are: ranks and checkpoints
    are not checked then.
    """
    config, args = recipe.config, model_args(recipe.config)
    with torch.device("meta"):  # modules by name, no weights
        model = build(config)
    freeze(model, config.model.freeze)
    keys = config.quantize.linear.float8
    layers = set()
    if keys.recipe_name:
        layers = float8.choose_modules(model, keys.recipe_name, keys.filter_fqns)
    shards = 1
    if world_size:
        shards = _check_ranks(config, args, world_size, layers)
        if config.checkpoint.initial_load_path:
            _check_first_weights(config, model)
    return Plan(
        recipe=recipe,
        world_size=world_size or 1,
        args=args,
        parameters=flops.parameters(args),
        flops_per_token=flops.flops_per_token(args, config.training.seq_len),
        fp8_layers=frozenset(layers),
        fp8_steps=fp8_steps(config),
        shards=shards,
        memory=memory_by_use(config, args, shards),
    )


# ---- ranks ----


def _check_ranks(config, args, world_size: int, fp8_layers: set[str]) -> int:
    """Check what must suit the number of processes; returns the number of shards."""
    degrees, keys, several = config.parallelism, config.training, world_size > 1
    float8_keys = config.quantize.linear.float8
    replicas, shards = degrees.data_parallel_replicate_degree, degrees.data_parallel_shard_degree
    if shards == -1:
        shards = max(1, world_size // replicas)
    batch, parts = keys.global_batch_size, keys.local_batch_size * world_size
    built, gathered = config.optimizer.built, float8_keys.enable_fsdp_float8_all_gather
    tied_head_in_fp8 = args.enable_weight_tying and "output" in fp8_layers
    rows = {name: n for name, (n, _) in flops.linear_shapes(args).items() if name in fp8_layers}
    uneven = [name for name, n in rows.items() if n % shards]
    even = max(n for n in range(1, shards + 1) if not math.gcd(*rows.values()) % n)
    alone = "needs FSDP over two or more processes: run it with --processes 2 or more, or set it to"
    sharded = f"needs whole weights, and {world_size} processes shard them: set it to"
    refused = (
        (
            replicas * shards != world_size,
            "parallelism.data_parallel_replicate_degree x data_parallel_shard_degree is "
            f"{replicas} x {shards}, which must be the number of processes, {world_size}: "
            "change a degree (1 and -1 always fit), or start as many",
        ),
        (
            batch > 0 and batch % parts,
            f"training.global_batch_size={batch}: expected a multiple of local_batch_size x "
            f"processes, {keys.local_batch_size} x {world_size}, or -1",
        ),
        (shards == 1 and config.quantize.gradients, f"quantize.gradients {alone} null"),
        (
            shards == 1 and gathered and built is None,
            f"quantize.linear.float8.enable_fsdp_float8_all_gather {alone} false",
        ),
        (
            # the loss is divided by all ranks' tokens before DDP takes the mean over ranks
            several and replicas == world_size,
            f"parallelism.data_parallel_replicate_degree={world_size} leaves nothing to shard, and "
            f"torchtitan 0.2.2 then divides gradients by the {world_size} processes twice: set it "
            "to 1, or to less than the processes",
        ),
        (several and config.model.fused_projections, f"model.fused_projections {sharded} false"),
        (several and built == "before_conversion", f"optimizer.built {sharded} null"),
        (
            several and gathered and tied_head_in_fp8,
            f"the head of {config.model.flavor} is also its embedding, which FSDP gathers in bf16: "
            "set quantize.linear.float8.filter_fqns to [output]",
        ),
        (
            gathered and uneven,
            f"FP8 all-gather shards rows evenly, and {', '.join(uneven[:1])} has rows that do not "
            f"divide by {shards}: set quantize.linear.float8.enable_fsdp_float8_all_gather to "
            f"false, or shard over {even} processes",
        ),
    )
    for applies, sentence in refused:
        if applies:
            raise InputError(sentence)
    return shards


# ---- checkpoints ----


def _check_first_weights(config, model: torch.nn.Module) -> None:
    first = f"checkpoint.initial_load_path={config.checkpoint.initial_load_path}"
    folder = Path(config.checkpoint.initial_load_path)
    try:
        tensors = checkpoint.tensors(folder)
        step = checkpoint.train_state(folder, "step") or 0
    except Exception as error:  # whatever unpickling raises
        raise InputError(
            f"{first}: holds no checkpoint that can be read ({error}): give the folder of one, "
            "as runs/STUDY/RECIPE/seed0/checkpoint/step-500"
        ) from error
    missing = [
        name
        for name, weight in model.named_parameters()
        if name not in tensors or tensors[name][0] != weight.shape
    ]
    if missing:
        raise InputError(
            f"{first}: is of another model, without this one's {by_pattern(missing)}: "
            "give another one"
        )
    if not config.checkpoint.initial_load_model_only:
        if step > config.training.steps:
            raise InputError(
                f"{first}: is of step {step}, and training.steps={config.training.steps} asks for "
                "fewer: raise it, or set checkpoint.initial_load_model_only to true"
            )
        _check_first_states(config, first, tensors)


def _check_first_states(config, first: str, tensors: dict) -> None:
    """Refuse optimizer states of other dtypes: a cast would not fit a state's scale."""
    states = asdict(config.optimizer.states)
    asked = {name: dtype for name, dtype in states.items() if dtype}
    saved = {name.rpartition(".")[2]: dtype for name, (_, dtype) in tensors.items()}
    found = {name: str(saved[name]).removeprefix("torch.") for name in states if name in saved}
    if asked != found:
        raise InputError(
            f"{first}: has optimizer.states {found or 'null'}, the recipe {asked or 'null'}: "
            "choose a recipe with the same, or set checkpoint.initial_load_model_only to true"
        )


# ---- this machine ----


Finding = tuple[str, str]  # topic, and a sentence for people


def check_here(plan: Plan, budget_s: float | None = None) -> list[Finding]:
    """Check what this machine must have for a run."""
    config = plan.config
    device.check_driver()
    if budget_s is not None and not config.checkpoint.enable:
        raise InputError(
            "--budget needs checkpoints, or what it stops starts again from the first step: "
            "add checkpoint.enable=true"
        )
    if config.quantize.linear.float8.recipe_name and not config.quantize.linear.float8.emulate:
        float8.check_device(torch.device(device.TYPE))
    if device.TYPE == "cpu":
        _check_cpu(config)
    number(BUDGET, 0)  # which the manifest needs: refused now, where it is no number
    here = f"{device.name()}, {device.memory_bytes() / 2**30:.0f} GiB ({device.TYPE})"
    slow = slow_attention(config)
    if slow:
        here += f"; {slow}"
    return [("device", here), ("memory", _check_memory(plan))]


def _check_cpu(config) -> None:
    cudnn, snapshot = config.model.attention_backend == "cudnn", config.profiling
    needs_gpu = {
        "model.attention_backend": (cudnn, "auto, flash or math"),
        "compile.cuda_graphs": (config.compile.cuda_graphs, "false"),
        "comm.nccl_max_ctas": (config.comm.nccl_max_ctas, "null"),
        "profiling.enable_memory_snapshot": (snapshot.enable_memory_snapshot, "false"),
    }
    for key, (asked, off) in needs_gpu.items():
        if asked:
            raise InputError(f"{key} needs a GPU: set it to {off}")
    compiler = os.environ.get("CXX", "g++").split(" ")[0]
    compiles = config.compile.enable or config.optimizer.stochastic_rounding
    if compiles and not shutil.which(compiler):
        raise InputError(
            f"a compiled model or optimizer needs a C++ compiler on a CPU and `{compiler}` is not "
            "there: install g++, point the environment variable CXX at another one, or run the "
            "recipe `baseline`, which is not compiled"
        )


def slow_attention(config) -> str | None:
    """Say what to do about a cuDNN older than 9.15, whose attention PyTorch does not take.

    None if there is nothing to do. PyTorch prefers cuDNN's attention on GPUs of compute capability
    9 and up.
    """
    version, other = device.cudnn(), config.model.attention_backend in ("flash", "math")
    if not version or other or torch.cuda.get_device_capability() < (9, 0):
        return None
    if tuple(map(int, version.split(".")[:2])) >= (9, 15):
        return None
    package = f"nvidia-cudnn-cu{(torch.version.cuda or '13').split('.')[0]}"
    return (
        f"cuDNN {version} is older than 9.15, with which PyTorch takes a slower attention: take "
        "its folder off LD_LIBRARY_PATH, or install a newer one "
        f"(python -m pip install '{package}>=9.15')"
    )


def _check_memory(plan: Plan) -> str:
    """Compare the estimate with what each device has; an error only far beyond that."""
    available = device.memory_bytes()
    if device.TYPE == "cpu":  # the processes of the run here share it
        available /= number("LOCAL_WORLD_SIZE", 1, least=1)
    finding = memory_finding(plan.memory_needed, available)
    if plan.memory_needed > HOPELESS * available:
        mend = less_memory(plan.config)
        if device.TYPE == "cpu":
            mend = "without a GPU, take the small Llama (--overlay cpu)"
        raise InputError(f"the run needs {finding} here: {mend}, or choose a smaller model.flavor")
    if plan.memory_needed > available:
        finding += ": this will probably not fit"
    return finding


def less_memory(config) -> str:
    """Say by which overlay or key a run needs less memory."""
    recompute = "recompute activations (overlay `full_recompute`), "
    if config.activation_checkpoint.mode == "full":
        recompute = ""
    return f"{recompute}lower training.local_batch_size, or shard over more GPUs"


# ---- data ----


def open_data(plan: Plan) -> tuple["TokenFile", str]:
    """Open the token file of a plan, prepared where it is not there yet; say what it holds."""
    from experiments.corpus import tokens

    token_file = tokens.prepare(plan.config)
    return token_file, check_data(plan, token_file)


def check_data(plan: Plan, token_file: "TokenFile") -> str:
    """Check that the model has a row for each token; returns what the run would read."""
    from experiments.corpus import rows

    rows.check_vocabulary(token_file, plan.args.vocab_size)
    return rows.describe(token_file, plan.config, plan.world_size)


# ---- the size that suits this machine ----


def choose_scale(processes: int = 1) -> tuple[list[str], str]:
    """Choose overlays for runs of so many processes on this machine, and say why in a sentence."""
    device.check_driver()
    if device.TYPE == "cpu":
        small = "a small Llama of the same architecture, because there is no GPU here"
        return ["cpu"], f"the CPU scale, {small}"
    have = f"{device.name()} has {device.memory_bytes() / 2**30:.0f} GiB"
    for overlay in ("no_recompute", "full_recompute"):
        needed = plan(recipes.load("baseline", [overlay]), processes).memory_needed
        gib = f"{needed / 2**30:.0f} GiB"
        if needed <= MOST * device.memory_bytes():
            size = f"the published size (overlay {overlay})"
            return [overlay], f"{size}, because it needs about {gib} and {have}"
    return ["cpu"], f"the CPU scale, because the published size needs {gib} even so and {have}"


def fit(values: dict[str, str | int], plans: list[Plan], gpu: str | None = None) -> Fit:
    """Compare the neediest run of a sweep's cell with this machine, or with GPUs of a kind."""
    processes = plans[0].world_size
    needed = max(planned.memory_needed for planned in plans)
    here, available, obstacle = ranks.gpus(), device.memory_bytes(), None
    if gpu:
        available = GPUS[gpu].memory
    elif device.TYPE == "cpu":  # its processes share it
        available /= processes
    if needed > available:
        obstacle = f"needs {memory_finding(needed, available)}"
    elif gpu and not GPUS[gpu].datasheet.fp8 and any(planned.fp8_layers for planned in plans):
        obstacle = f"{GPUS[gpu].driver_name} has no FP8 units"
    elif not gpu and here != [None] and processes > len(here):
        obstacle = f"takes {processes} GPUs, and {len(here)} are here"
    return Fit(values=values, needed=needed, available=available, obstacle=obstacle)
