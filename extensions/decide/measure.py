"""Print the command that measures FP8's speed here, for the asked model or a stand-in for it."""

import shlex
from dataclasses import replace
from functools import cache

from experiments.config import recipes
from experiments.config.yaml_with_origins import EXTENSIONS, yaml_files
from extensions.decide.model import HEAD, MODELS, TYPED_SIZES, known_sizes, make_sizes
from extensions.decide.sizes import ExpertSizes, UngatedSizes
from extensions.decide.training import Training, count_memory, step_seconds
from models.errors import by_pattern
from models.flops import Sizes, count
from models.gpus import GPUS
from models.scaling import FILTERS

NODE = 8  # GPUs
MOST = 0.95  # of the memory, as a run chooses its size: CUDA and gaps come on top
N_STEPS, N_SEEDS = 60, 3
TOKENIZER_SIZE = 32_768  # of the recipes' tokenizer, which the model's vocabulary has to hold
START_MINUTES = 1.5  # of a run, compilation included
COMMAND = ".venv/bin/python -m experiments.study {recipes} --seeds 3 --overlay no_recompute {keys}"
FP8_RECIPES = ["tensorwise_fp8_compiled", "rowwise_fp8_compiled"]
RECIPES_BY_FORMAT = {"fp8": FP8_RECIPES, "mxfp8": ["mxfp8_compiled"], "nvfp4": []}


def measuring_command(
    asked: Training, name: str, factors: list | None
) -> tuple[str | None, list[str]]:
    """Write the command that compares bf16 and a format here, on one node.

    Where no recipe trains the asked model, or the node cannot hold it, a stand-in is trained.

    Args:
        name: of the format.
        factors: of the seconds of a step, of fitted.yaml; None where they are not known.

    Returns the command, None if there is none, and sentences about it.
    """
    compared = [asked.model.recipe] if asked.model.recipe else RECIPES_BY_FORMAT[name]
    compared = [recipe for recipe in compared if recipe in yaml_files(recipes.RECIPES)]
    if not compared:
        return None, [f"measure: no recipe here measures the speed of {name.upper()}"]
    flavor, sizes, notes = choose_flavor(asked.sizes)
    if flavor is None:
        return None, [f"measure: {note}" for note in notes]
    processes = min(asked.gpus, NODE) if has_extension("sharded") else 1
    whole = replace(
        asked, model=replace(asked.model, sizes=sizes, parameters=sizes.parameters()), frozen=0
    )
    trained = fit_on_node(whole, processes)
    if trained is None:
        return None, [*notes, "measure: one layer does not fit: take fewer or shorter rows"]
    if trained.sizes.n_layers < sizes.n_layers:
        notes.append(describe_fewer_layers(whole, trained, processes, factors))
    if asked.frozen:
        notes.append("the command trains all layers, frozen ones too")
    keys = [
        f"training.steps={N_STEPS}",
        f"training.local_batch_size={asked.batch}",
        f"training.seq_len={asked.seq_len}",
        f"activation_checkpoint.mode={asked.recompute}",
    ]
    if processes > 1:
        keys.append(f"sharded.processes={processes}")
    keys += [f"model.flavor={flavor}", *size_keys(trained.sizes, flavor_sizes()[flavor])]
    if trained.sizes.vocab_size < TOKENIZER_SIZE:
        keys.append(f"data.bpe_vocab_size={trained.sizes.vocab_size}")
    if asked.bf16_layers != HEAD and not asked.model.recipe:
        filters = ",".join(filter_patterns(asked.bf16_layers, asked.sizes.n_layers))
        keys.append(shlex.quote(f"{FILTERS}=[{filters}]"))
    line = COMMAND.format(recipes=" ".join(["baseline_compiled", *compared]), keys=" ".join(keys))
    if factors:
        runs = N_SEEDS * (1 + len(compared))
        minutes = N_STEPS / 60 * step_seconds(trained, factors)[-1, -1] + START_MINUTES
        line += f"  # about {runs * minutes:.0f} minutes"
    return line, [f"measure: {note}" for note in notes]


# ---- which model a recipe can train ----


def has_extension(name: str) -> bool:
    """Return true if an extension's folder is there."""
    return (EXTENSIONS / name / "__init__.py").exists()


@cache
def flavor_sizes() -> dict[str, Sizes]:
    """Give the sizes of each flavor that a recipe can train here."""
    flavors = {}
    for key, entry in MODELS["models"].items():
        flavor = entry.get("flavor")
        if flavor and (not flavor.startswith("qwen3") or has_extension("qwen3")):
            flavors[flavor] = make_sizes(known_sizes(key), key)
    return flavors


def choose_flavor(asked: Sizes) -> tuple[str | None, Sizes | None, list[str]]:
    """Choose the flavor nearest to some sizes, and the sizes that it trains for them.

    Returns None, None if there is none, and what the trained model has in another way.
    """
    flavors = flavor_sizes()
    for flavor, sizes in flavors.items():
        if sizes == asked:
            return flavor, sizes, []
    if isinstance(asked, ExpertSizes):
        return choose_experts_flavor(asked)
    sizes, notes = Sizes(**{name: getattr(asked, name) for name in vars(asked)}), []
    if isinstance(asked, UngatedSizes):
        sizes = replace(sizes, hidden_dim=max(16, round(asked.hidden_dim / 24) * 16))
        notes.append("its FFN has a gate, and two thirds of the width: as many FLOPs")
    llama_heads = sizes.head_dim * sizes.n_heads == sizes.dim and not sizes.qk_norm
    family = "llama3" if llama_heads else "qwen3"
    fitting = {
        flavor: sizes_there
        for flavor, sizes_there in flavors.items()
        if flavor.startswith(family)
        and not isinstance(sizes_there, ExpertSizes)
        and sizes_there.enable_weight_tying == sizes.enable_weight_tying
    }
    if not fitting:
        return None, None, ["no recipe here has heads of another width than dim / n_heads"]
    if not llama_heads and not sizes.qk_norm:
        sizes = replace(sizes, qk_norm=True)
        notes.append("its queries and keys are normed, as Qwen3's")
    if notes:
        notes = [f"a stand-in of {count(sizes.parameters())} parameters: {', and '.join(notes)}"]
    return next(iter(fitting)), sizes, notes


def choose_experts_flavor(asked: ExpertSizes) -> tuple[str | None, Sizes | None, list[str]]:
    """Choose the flavor for a mixture of experts, as `choose_flavor`: experts are as they are."""
    for flavor, sizes in flavor_sizes().items():
        changed = {name for name in vars(asked) if getattr(asked, name) != getattr(sizes, name, 0)}
        if isinstance(sizes, ExpertSizes) and changed <= {"n_layers", "vocab_size"}:
            return flavor, asked, []
    return None, None, ["no recipe here trains this mixture of experts"]


def size_keys(sizes: Sizes, base: Sizes) -> list[str]:
    """Write the keys that change a flavor's sizes into others."""
    changed = [name for name in TYPED_SIZES if getattr(sizes, name) != getattr(base, name)]
    if sizes.dim != base.dim and "hidden_dim" not in changed:
        changed.append("hidden_dim")  # a Llama's follows from dim
    if not sizes.qk_norm and "head_dim" in changed:
        changed.remove("head_dim")  # a Llama's is dim / n_heads
    return [f"model.sizes.{name}={getattr(sizes, name)}" for name in changed]


def filter_patterns(layers: frozenset[str], n_layers: int) -> list[str]:
    """Write names of layers as filters: a pattern where all blocks have the layer."""
    patterns = []
    for pattern in by_pattern(layers).split(", "):
        names = [pattern.replace("*", str(i)) for i in range(n_layers)]
        if "*" in pattern and not layers.issuperset(names):
            patterns += sorted(layers.intersection(names))
        else:
            patterns.append(pattern)
    return patterns


# ---- what a node can hold ----


def fit_on_node(training: Training, processes: int) -> Training | None:
    """Give the training on one node, with as many layers as it can hold; None if with none."""
    for n_layers in range(training.sizes.n_layers, 0, -1):
        sizes = replace(training.sizes, n_layers=n_layers)
        model = replace(training.model, sizes=sizes, parameters=sizes.parameters())
        trained = replace(training, model=model, gpus=processes)
        if count_memory(trained) <= MOST * GPUS[training.gpu].memory:
            return trained
    return None


def describe_fewer_layers(
    whole: Training, trained: Training, processes: int, factors: list | None
) -> str:
    """Say which part of a model is trained, and by estimate how its gain differs."""
    gpus = f"{processes} GPUs hold" if processes > 1 else "one GPU holds"
    note = (
        f"a stand-in of {trained.sizes.n_layers} of {whole.sizes.n_layers} layers, which {gpus}; a "
        "layer gains what the others gain, but the head, in bf16, weighs more"
    )
    if not factors:
        return note
    gains = []
    for training in (trained, whole):
        seconds = step_seconds(training, factors)
        gains.append(seconds[-1, 0] / seconds[0, 0])
    return f"{note}: {gains[0]:.2f} by estimate, and the whole model {gains[1]:.2f}"
