"""Print the command that measures FP8's speed here, for the asked model or a stand-in for it."""

import shlex
from dataclasses import replace
from functools import cache

from experiments.config import recipes
from experiments.config.yaml_with_origins import EXTENSIONS, yaml_files
from extensions.decide.model import HEAD, MODELS, TYPED_SIZES, known_sizes, make_sizes
from extensions.decide.sizes import ExpertSizes, UngatedSizes
from extensions.decide.training import Training, count_memory, step_seconds
from models.errors import PYTHON, format_name_patterns
from models.flops import Sizes, format_parameters
from models.gpus import GPUS
from models.scaling import FILTER_KEY

NODE_GPUS = 8
MEMORY_SHARE = 0.95  # of the memory, as a run chooses its size: CUDA and gaps come on top
N_STEPS, N_SEEDS = 60, 3
TOKENIZER_SIZE = 32_768  # of the recipes' tokenizer, which the model's vocabulary has to hold
START_MINUTES = 1.5  # of a run, compilation included
COMMAND_LINE = PYTHON + " -m experiments.study {recipes} --seeds 3 --overlay no_recompute {keys}"
FP8_RECIPES = ["tensorwise_fp8_compiled", "rowwise_fp8_compiled"]
RECIPES_BY_FORMAT = {"fp8": FP8_RECIPES, "mxfp8": ["mxfp8_compiled"], "nvfp4": []}


def measuring_command(
    training: Training, format_name: str, step_factors: list | None
) -> tuple[str | None, list[str]]:
    """Write the command that compares bf16 and a format here, on one node.

    Where no recipe trains the asked model, or the node cannot hold it, a stand-in is trained.

    Args:
        format_name: fp8, mxfp8 or nvfp4.
        step_factors: of fitted.yaml; None where the seconds of a step are not known.

    Returns the command, None if there is none, and sentences about it.
    """
    fp8_recipes = (
        [training.model.recipe] if training.model.recipe else RECIPES_BY_FORMAT[format_name]
    )
    fp8_recipes = [name for name in fp8_recipes if name in yaml_files(recipes.RECIPES)]
    if not fp8_recipes:
        return None, [f"measure: no recipe here measures the speed of {format_name.upper()}"]
    flavor_name, trained_sizes, notes = choose_flavor(training.sizes)
    if flavor_name is None:
        return None, [f"measure: {note}" for note in notes]
    n_processes = min(training.gpus, NODE_GPUS) if has_extension("sharded") else 1
    full_training = replace(
        training,
        model=replace(training.model, sizes=trained_sizes, parameters=trained_sizes.parameters()),
        frozen=0,
    )
    node_training = fit_on_node(full_training, n_processes)
    if node_training is None:
        return None, [*notes, "measure: one layer does not fit: take fewer or shorter rows"]
    if node_training.sizes.n_layers < trained_sizes.n_layers:
        notes.append(describe_fewer_layers(full_training, node_training, n_processes, step_factors))
    if training.frozen:
        notes.append("the command trains all layers, frozen ones too")
    recipe_keys = [
        f"training.steps={N_STEPS}",
        f"training.local_batch_size={training.batch}",
        f"training.seq_len={training.seq_len}",
        f"activation_checkpoint.mode={training.recompute}",
    ]
    if n_processes > 1:
        recipe_keys.append(f"sharded.processes={n_processes}")
    recipe_keys += [
        f"model.flavor={flavor_name}",
        *size_keys(node_training.sizes, flavor_sizes()[flavor_name]),
    ]
    if node_training.sizes.vocab_size < TOKENIZER_SIZE:
        recipe_keys.append(f"data.bpe_vocab_size={node_training.sizes.vocab_size}")
    if training.bf16_layers != HEAD and not training.model.recipe:
        filter_text = ",".join(filter_patterns(training.bf16_layers, training.sizes.n_layers))
        recipe_keys.append(shlex.quote(f"{FILTER_KEY}=[{filter_text}]"))
    command_line = COMMAND_LINE.format(
        recipes=" ".join(["baseline_compiled", *fp8_recipes]), keys=" ".join(recipe_keys)
    )
    if step_factors:
        n_runs = N_SEEDS * (1 + len(fp8_recipes))
        minutes = N_STEPS / 60 * step_seconds(node_training, step_factors)[-1, -1] + START_MINUTES
        command_line += f"  # about {n_runs * minutes:.0f} minutes"
    return command_line, [f"measure: {note}" for note in notes]


# ---- which model a recipe can train ----


def has_extension(extension_name: str) -> bool:
    """Return true if an extension's folder is there."""
    return (EXTENSIONS / extension_name / "__init__.py").exists()


@cache
def flavor_sizes() -> dict[str, Sizes]:
    """Give the sizes of each flavor that a recipe can train here."""
    sizes_by_flavor = {}
    for model_key, model_entry in MODELS["models"].items():
        flavor_name = model_entry.get("flavor")
        if flavor_name and (not flavor_name.startswith("qwen3") or has_extension("qwen3")):
            sizes_by_flavor[flavor_name] = make_sizes(known_sizes(model_key), model_key)
    return sizes_by_flavor


def choose_flavor(asked_sizes: Sizes) -> tuple[str | None, Sizes | None, list[str]]:
    """Choose the flavor nearest to some sizes, and the sizes that it trains for them.

    Returns None, None if there is none, and what the trained model has in another way.
    """
    flavors = flavor_sizes()
    for flavor_name, trained_sizes in flavors.items():
        if trained_sizes == asked_sizes:
            return flavor_name, trained_sizes, []
    if isinstance(asked_sizes, ExpertSizes):
        return choose_experts_flavor(asked_sizes)
    trained_sizes = Sizes(**vars(asked_sizes))
    notes = []
    if isinstance(asked_sizes, UngatedSizes):
        trained_sizes = replace(
            trained_sizes, hidden_dim=max(16, round(asked_sizes.hidden_dim / 24) * 16)
        )
        notes.append("its FFN has a gate, and two thirds of the width: as many FLOPs")
    has_llama_heads = (
        trained_sizes.head_dim * trained_sizes.n_heads == trained_sizes.dim
        and not trained_sizes.qk_norm
    )
    flavor_family = "llama3" if has_llama_heads else "qwen3"
    fitting_flavors = {
        flavor_name: other_sizes
        for flavor_name, other_sizes in flavors.items()
        if flavor_name.startswith(flavor_family)
        and not isinstance(other_sizes, ExpertSizes)
        and other_sizes.enable_weight_tying == trained_sizes.enable_weight_tying
    }
    if not fitting_flavors:
        return None, None, ["no recipe here has heads of another width than dim / n_heads"]
    if not has_llama_heads and not trained_sizes.qk_norm:
        trained_sizes = replace(trained_sizes, qk_norm=True)
        notes.append("its queries and keys are normed, as Qwen3's")
    if notes:
        parameters = format_parameters(trained_sizes.parameters())
        notes = [f"a stand-in of {parameters} parameters: {', and '.join(notes)}"]
    return next(iter(fitting_flavors)), trained_sizes, notes


def choose_experts_flavor(asked_sizes: ExpertSizes) -> tuple[str | None, Sizes | None, list[str]]:
    """Choose the flavor for a mixture of experts, as `choose_flavor`: experts are as they are."""
    for flavor_name, flavor_size in flavor_sizes().items():
        changed_sizes = {
            name
            for name in vars(asked_sizes)
            if getattr(asked_sizes, name) != getattr(flavor_size, name, 0)
        }
        if isinstance(flavor_size, ExpertSizes) and changed_sizes <= {"n_layers", "vocab_size"}:
            return flavor_name, asked_sizes, []
    return None, None, ["no recipe here trains this mixture of experts"]


def size_keys(trained_sizes: Sizes, base_sizes: Sizes) -> list[str]:
    """Write the keys that change a flavor's sizes into others."""
    changed_sizes = [
        name for name in TYPED_SIZES if getattr(trained_sizes, name) != getattr(base_sizes, name)
    ]
    if trained_sizes.dim != base_sizes.dim and "hidden_dim" not in changed_sizes:
        changed_sizes.append("hidden_dim")  # a Llama's follows from dim
    if not trained_sizes.qk_norm and "head_dim" in changed_sizes:
        changed_sizes.remove("head_dim")  # a Llama's is dim / n_heads
    return [f"model.sizes.{name}={getattr(trained_sizes, name)}" for name in changed_sizes]


def filter_patterns(bf16_layers: frozenset[str], n_layers: int) -> list[str]:
    """Write names of layers as filters: a pattern where all blocks have the layer."""
    layer_patterns = []
    for layer_pattern in format_name_patterns(bf16_layers).split(", "):
        layer_names = [layer_pattern.replace("*", str(i)) for i in range(n_layers)]
        if "*" in layer_pattern and not bf16_layers.issuperset(layer_names):
            layer_patterns += sorted(bf16_layers.intersection(layer_names))
        else:
            layer_patterns.append(layer_pattern)
    return layer_patterns


# ---- what a node can hold ----


def fit_on_node(training: Training, n_processes: int) -> Training | None:
    """Give the training on one node, with as many layers as it can hold; None if with none."""
    for n_layers in range(training.sizes.n_layers, 0, -1):
        fewer_sizes = replace(training.sizes, n_layers=n_layers)
        fewer_layers = replace(
            training.model, sizes=fewer_sizes, parameters=fewer_sizes.parameters()
        )
        node_training = replace(training, model=fewer_layers, gpus=n_processes)
        if count_memory(node_training) <= MEMORY_SHARE * GPUS[training.gpu].memory:
            return node_training
    return None


def describe_fewer_layers(
    full_training: Training, node_training: Training, n_processes: int, step_factors: list | None
) -> str:
    """Say which part of a model is trained, and by estimate how its gain differs."""
    gpus_text = f"{n_processes} GPUs hold" if n_processes > 1 else "one GPU holds"
    note = (
        f"a stand-in of {node_training.sizes.n_layers} of {full_training.sizes.n_layers} layers, "
        f"which {gpus_text}; a layer gains what the others gain, but the head, in bf16, weighs more"
    )
    if not step_factors:
        return note
    speed_ratios = []
    for training in (node_training, full_training):
        step_range = step_seconds(training, step_factors)
        speed_ratios.append(step_range[-1, 0] / step_range[0, 0])
    return f"{note}: {speed_ratios[0]:.2f} by estimate, and the whole model {speed_ratios[1]:.2f}"
