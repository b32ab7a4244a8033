"""The roofline: FLOPs against counted ones, bytes against operators' and by hand, floors against published steps."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from experiments import recipe as recipes
from experiments import roofline as command
from models import flops, gpus, llama, roofline
from models.casts import casts_of

RECIPES = ["baseline", "baseline_compiled", "rowwise_fp8_compiled", "tensorwise_fp8_compiled",
           "rowwise_gw_hp_fp8_compiled"]  # fmt: skip
PUBLISHED = {"baseline": 8_151, "baseline_compiled": 8_800, "rowwise_fp8_compiled": 9_315,
             "tensorwise_fp8_compiled": 10_945}  # tokens/s on a GH200: README, "What differs"  # fmt: skip


def work(name: str, *overrides: str, overlays: tuple = ()) -> list[roofline.Work]:
    config = recipes.load(name, overlays, overrides).config
    args = llama.FLAVORS[config.model.flavor]
    return roofline.step_work(config, args, command.fp8_layers(config, args))


def total(work: list[roofline.Work], field: str, *parts: str) -> float:
    return sum(getattr(w, field) for w in work if w.part in parts)


def tokens_per_s(name: str, rates: gpus.Rates, *overrides: str) -> float:
    return 4096 / sum(roofline.floors(work(name, *overrides), rates).values())


# ---- FLOPs ----


@pytest.mark.parametrize("name", RECIPES)
def test_flops_are_those_of_the_formula_in_every_recipe(name):
    args, step = llama.FLAVORS["8B-published"], work(name)
    causal = 6 * 32 * 4096 * 4096  # per token: the formula's attention, 12 layers dim seq, halved
    norms = 6 * (2 * 32 + 1) * 4096  # per token: weights that the formula counts and that no matrix product has
    matmul = total(step, "flops", roofline.MATMUL_FP8, roofline.MATMUL_BF16)
    assert matmul == 4096 * (flops.flops_per_token(args, 4096, causal=True) - causal - norms)
    # the formula counts 6 products of attention; flash attention computes the scores once more, 7
    assert total(step, "flops", roofline.ATTENTION) == 4096 * causal * 7 / 6


def test_fp8_takes_all_but_the_head_and_with_gw_hp_two_thirds_of_that():
    blocks = 2 * 3 * 4096 * 32 * 4096 * (4096 + 1024 + 1024 + 4096 + 3 * 14336)
    assert total(work("tensorwise_fp8_compiled"), "flops", roofline.MATMUL_FP8) == blocks
    assert total(work("rowwise_gw_hp_fp8_compiled"), "flops", roofline.MATMUL_FP8) == blocks * 2 / 3


@pytest.mark.parametrize("checkpointing", [["mode=none"], ["mode=full"], ["mode=full", "early_stop=true"]])
def test_matmul_flops_are_what_torch_counts(checkpointing):
    from torchtitan.distributed.activation_checkpoint import apply_ac

    overrides = [f"activation_checkpoint.{key}" for key in checkpointing]
    config = recipes.load("baseline", ["cpu"], overrides).config
    model = llama.Llama(llama.FLAVORS["cpu"])
    if "mode=full" in checkpointing:
        apply_ac(model, config.activation_checkpoint, model_compile_enabled=False)
    with FlopCounterMode(display=False) as counter:
        model(torch.randint(4096, (4, 256))).sum().backward()
    counted = counter.get_flop_counts()["Global"][torch.ops.aten.mm]
    assert total(work("baseline", *overrides, overlays=("cpu",)), "flops", roofline.MATMUL_BF16) == counted


# ---- bytes ----


class Traffic(TorchDispatchMode):
    """Bytes that eager operators read and write, but for matrix products, attention and views."""

    NOT = ("mm", "scaled_dot_product", "view", "permute", "transpose", "aten.t.", "expand", "unsqueeze", "slice",
           "select", "split", "unbind", "detach", "reshape", "ones_like")  # fmt: skip

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        if not any(word in str(operator) for word in self.NOT):
            tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor)]
            self.bytes += sum(t.numel() * t.element_size() for t in tensors)
        return result


@pytest.mark.parametrize("fused", [False, True])
def test_eager_block_moves_the_bytes_of_its_operators(fused):
    args = replace(llama.FLAVORS["cpu"], fused_projections=fused)
    model = llama.Llama(args)
    with torch.no_grad():
        model.init_weights()
    model.to(torch.bfloat16)
    rope = model.freqs_cis.float()
    block = model.layers["0"]
    block.attention_norm = block.ffn_norm = torch.nn.Identity()  # one kernel on a GPU, several here
    x = torch.randn(4, 256, args.dim, dtype=torch.bfloat16, requires_grad=True)
    with Traffic() as traffic:
        block(x, rope, None).backward(torch.ones_like(x))
    norms = (2 * 4 + 2 * 10) * args.dim
    assert traffic.bytes / (4 * 256) == pytest.approx(sum(roofline._eager_block(args, 2)) - norms, rel=0.02)


def test_eager_tensorwise_casts_move_the_bytes_of_their_operators():
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    layer = torch.nn.Sequential(torch.nn.Linear(256, 512, bias=False)).bfloat16()
    convert_to_float8_training(layer, config=Float8LinearConfig.from_recipe_name("tensorwise"))
    x = torch.randn(1024, 256, dtype=torch.bfloat16, requires_grad=True)
    with Traffic() as traffic:
        layer(x).sum().backward()
    keys = recipes.load("tensorwise_fp8_compiled").config.quantize.linear.float8
    casts = casts_of(keys, compiled=False, b=2)
    k, n, t = 256, 512, 1024
    expected = t * k * sum(casts.input) + n * k * sum(casts.weight) + t * n * casts.grad_output
    copies = 2 * (t * k + n * k + t * n)  # made inside of _scaled_mm's wrapper, unseen here
    loss = 2 * t * n + 2 * t * n  # sum, and its gradient made contiguous
    assert traffic.bytes == pytest.approx(expected - copies + loss, rel=0.02)


def test_optimizer_bytes_by_hand():
    # 8,053,329,920 parameters of 2 bytes; norm 1, clipping 2, AdamW 4 reads and 3 writes: 20 bytes each
    assert total(work("baseline"), "bytes", roofline.OPTIMIZER) == 161_066_598_400
    foreach = work("baseline", "optimizer.implementation=foreach")
    assert total(foreach, "bytes", roofline.OPTIMIZER) > 2 * 161_066_598_400


@pytest.mark.parametrize(
    ("name", "of_inputs", "of_gradients", "of_weights"),
    [
        # forward 2 + 1, backward 2 + 1; 2 + 1 + 1; largest value 2, forward 2 + 1, backward 2 + 1
        ("tensorwise_fp8_compiled", 6, 4, 8),
        # by rows 1, by columns 2 + 2 + 1; the same; by rows 2 + 1, by columns 2 + 2 + 1, scaled gradient 2 + 2
        ("rowwise_fp8_compiled", 6, 6, 12),
        ("rowwise_gw_hp_fp8_compiled", 1, 1, 8),
    ],
)
def test_cast_bytes_by_hand(name, of_inputs, of_gradients, of_weights):
    # A block's elements: inputs 3 x 4096 + 14336 a token, gradients 3 x 4096 + 2 x 1024 + 2 x 14336, weights.
    inputs, gradients, weights = 26_624, 43_008, 218_103_808
    by_hand = 32 * (4096 * (of_inputs * inputs + of_gradients * gradients) + of_weights * weights)
    assert total(work(name), "bytes", roofline.CASTS) == by_hand


def test_compiled_elementwise_and_loss_bytes_by_hand():
    # A block and token, of widths 4096, 5120 (queries and keys) and 14336, bf16: forward 18 + 4 + 6 bytes an element,
    # backward 24 + 4 + 10. The last norm 14, the embedding 10, and its gradient once.
    block = 42 * 4096 + 8 * 5120 + 16 * 14336
    step = work("baseline_compiled")
    by_hand = 4096 * (32 * block + 24 * 4096) + 2 * 131_072 * 4096
    assert total(step, "bytes", roofline.ELEMENTWISE) == by_hand
    assert total(step, "bytes", roofline.LOSS) == 4096 * 131_072 * 6


def test_compiled_block_casts_a_shared_input_once():
    """Seven weights and four inputs, by rows and by columns, and seven gradients; eager makes six casts a layer."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    casts = []

    def count(graph, _):
        made = [node.meta["val"] for node in graph.graph.nodes if "_to_copy" in str(node.target)]
        casts.append(sum(value.dtype.itemsize == 1 for value in made))
        return graph

    block = llama.Llama(llama.FLAVORS["cpu"]).layers["0"].bfloat16()
    convert_to_float8_training(block, config=Float8LinearConfig.from_recipe_name("tensorwise"))
    backend = aot_autograd(fw_compiler=count, bw_compiler=count, partition_fn=min_cut_rematerialization_partition)
    x, rope = torch.randn(1, 64, 256, dtype=torch.bfloat16, requires_grad=True), torch.randn(64, 16, 2)
    torch.compile(block, backend=backend, fullgraph=True)(x, rope, None).sum().backward()
    assert sum(casts) == 2 * (7 + 4) + 7


@pytest.mark.parametrize("overrides", [[], ["training.dtype=float32"], ["activation_checkpoint.mode=full"]])
@pytest.mark.parametrize("name", ["baseline", "tensorwise_fp8_compiled", "rowwise_gw_hp_fp8_compiled"])
def test_compilation_only_saves(name, overrides):
    rates = gpus.GPUS["h200"].datasheet
    eager = roofline.floors(work(name, "compile.enable=false", *overrides), rates)
    compiled = roofline.floors(work(name, "compile.enable=true", *overrides), rates)
    assert all(compiled[part] <= eager[part] for part in roofline.PARTS)
    assert compiled[roofline.ELEMENTWISE] < 0.6 * eager[roofline.ELEMENTWISE]


def test_head_in_fp8_is_cast_eagerly_unless_the_whole_model_is_compiled():
    casts = {
        scope: total(work("tensorwise_fp8_compiled", f"compile.scope={scope}", *more), "bytes", roofline.CASTS)
        for scope in ("block", "model")
        for more in [["quantize.linear.float8.filter_fqns=[]"]]
    }
    assert casts["block"] - casts["model"] > 50 * 131072 * 4096  # the weight alone: 68 bytes an element instead of 8


def test_accumulation_repeats_all_but_the_optimizer():
    one, two = work("baseline"), work("baseline", "training.global_batch_size=2")
    for part in (roofline.MATMUL_BF16, roofline.ATTENTION, roofline.LOSS):
        assert total(two, "bytes", part) == 2 * total(one, "bytes", part)
    assert total(two, "bytes", roofline.OPTIMIZER) == total(one, "bytes", roofline.OPTIMIZER)
    assert total(two, "bytes", roofline.ELEMENTWISE) > 2 * total(one, "bytes", roofline.ELEMENTWISE)


# ---- floors ----


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_steps_are_slower_than_their_floor(name):
    assert PUBLISHED[name] < tokens_per_s(name, gpus.GPUS["gh200"].datasheet) < 2.2 * PUBLISHED[name]


def test_limits_that_the_goals_were_set_by():
    """About 14,000 tokens/s in bf16, 19,000 with every linear layer in FP8, for an H200's measured rates."""
    sustained = gpus.GPUS["h200"].sustained
    everything = ["quantize.linear.float8.filter_fqns=[]", "compile.scope=model"]
    assert tokens_per_s("baseline_compiled", sustained) == pytest.approx(14_000, rel=0.1)
    assert tokens_per_s("tensorwise_fp8_compiled", sustained, *everything) == pytest.approx(19_000, rel=0.1)


@pytest.mark.parametrize(
    ("device_name", "gpu", "bf16", "fp8"),
    [("NVIDIA GH200 120GB", "gh200", 989, 1979), ("NVIDIA GH200 144G HBM3e", "gh200-144gb", 989, 1979),
     ("NVIDIA H200", "h200", 989, 1979), ("NVIDIA H100 80GB HBM3", "h100", 989, 1979),
     ("NVIDIA H100 PCIe", "h100-pcie", 756, 1513), ("NVIDIA H100 NVL", "h100-nvl", 835, 1671),
     ("NVIDIA B200", "b200", 2250, 4500), ("NVIDIA A100-SXM4-80GB", "a100", 312, None)],
)  # fmt: skip
def test_drivers_names_find_their_gpu_and_its_dense_peaks(device_name, gpu, bf16, fp8):
    assert gpus.find(device_name) == gpu
    peak = gpus.GPUS[gpu].datasheet
    assert (peak.bf16, peak.fp8) == (pytest.approx(bf16 * 1e12, rel=1e-3), fp8 and pytest.approx(fp8 * 1e12, rel=1e-3))


def test_other_devices_are_not_in_the_table():
    assert gpus.find("GeForce 256") is None


# ---- command line ----


def test_command_prints_the_parts_of_a_small_recipe():
    line = [sys.executable, "-m", "models.roofline", "tensorwise_fp8_compiled", "--overlay", "cpu", "--gpu", "h200"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert all(part in done.stdout for part in roofline.PARTS)
    assert "tokens/s" in done.stdout and "MFU" in done.stdout and "H200 Tensor Core GPU datasheet" in done.stdout


def write_bench(path, variants, device="NVIDIA H200", **facts) -> None:
    variants = {label: {"rounds": [{}], "error": None} | variant for label, variant in variants.items()}
    bench = {"machine": {"name": device}, "overlays": [], "overrides": [], "variants": variants}
    path.write_text(json.dumps(bench | facts))


def test_error_against_measured_parts_is_printed_and_kept(tmp_path, capsys):
    bench, out = tmp_path / "bench.json", tmp_path / "roofline.json"
    floors = roofline.floors(work("baseline_compiled"), gpus.GPUS["h200"].sustained)
    measured = {part: 2 * seconds for part, seconds in floors.items() if seconds} | {"idle": 0.01}
    step = {"step_s": sum(measured.values()), "parts": measured}
    write_bench(bench, {"baseline_compiled": step})
    options = ["--gpu", "h200", "--against", str(bench), "--json", str(out)]
    assert command.main(["baseline_compiled", *options]) == 0
    printed, kept = capsys.readouterr().out, json.loads(out.read_text())
    assert "-50%" in printed and "idle" in printed
    assert kept["parts"]["attention"]["error"] == pytest.approx(-0.5)
    assert kept["parts"]["idle"] == {"measured": {"s": 0.01}}
    assert kept["error"] == pytest.approx(sum(floors.values()) / step["step_s"] - 1)


def test_measurements_stand_beside_the_floors_of_what_was_measured(tmp_path, capsys):
    bench, out = tmp_path / "bench.json", tmp_path / "roofline.json"
    label = "baseline+compile.enable=true"
    step = {"step_s": 0.01, "parts": {"attention": 0.001}}
    write_bench(bench, {label: step}, overlays=["cpu"], overrides=["training.seq_len=64"])
    options = [label, "--gpu", "h200", "--against", str(bench)]
    assert command.main([*options, "--json", str(out)]) == 0
    kept = json.loads(out.read_text())
    assert (kept["overlays"], kept["overrides"]) == (["cpu"], ["training.seq_len=64", "compile.enable=true"])
    assert kept["step"]["measured"]["tokens_per_s"] == pytest.approx(4 * 64 / 0.01)
    assert command.main([*options, "--overlay", "cpu"]) == 2
    assert "leave them out" in capsys.readouterr().err


def test_gpu_without_measured_rates_says_so(capsys):
    assert command.main(["baseline", "--gpu", "gh200"]) == 0
    assert "no measured rates" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["baseline", "--gpu", "h20"], "unknown GPU `h20`; did you mean `h200`"),
        (["baselin", "--gpu", "h200"], "unknown recipe `baselin`"),
        (["tensorwise_fp8_compiled", "--gpu", "a100"], "no FP8 units"),
        (["baseline", "--gpu", "h200", "activation_checkpoint.mode=selective"], "set it to none or full"),
        (["baseline", "--gpu", "h200", "--against", "nowhere.json"], "nowhere.json: No such file"),
    ],
)
def test_mistakes_are_a_sentence(arguments, said, capsys):
    assert command.main(arguments) == 2
    message = capsys.readouterr().err
    assert said in message and "Traceback" not in message and len(message.splitlines()) == 1


def test_file_without_the_recipe_names_what_it_has(tmp_path, capsys):
    bench = tmp_path / "bench.json"
    write_bench(bench, {"baseline": {"step_s": 1, "parts": {}}})
    assert command.main(["baseline_compiled", "--gpu", "h200", "--against", str(bench)]) == 2
    assert "known: baseline" in capsys.readouterr().err
    bench.write_text("{}")
    assert command.main(["baseline", "--gpu", "h200", "--against", str(bench)]) == 2
    assert "does not hold a measurement" in capsys.readouterr().err
    write_bench(bench, {"baseline": {"rounds": [], "error": "failed: CUDA out of memory."}})
    assert command.main(["baseline", "--gpu", "h200", "--against", str(bench)]) == 2
    assert "CUDA out of memory" in capsys.readouterr().err
    write_bench(bench, {"baseline": {"step_s": 1, "parts": {}}}, device="AMD EPYC")
    assert command.main(["baseline", "--gpu", "h200", "--against", str(bench)]) == 2
    assert "measured on AMD EPYC" in capsys.readouterr().err
    bench.write_bytes(b"\xff\xfe")
    assert command.main(["baseline", "--gpu", "h200", "--against", str(bench)]) == 2
