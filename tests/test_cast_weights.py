"""FP8 weights cast once a step: the same losses bit for bit, fewer casts, and what contradicts the key."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
from torchtitan.tools.utils import set_default_dtype

from experiments import breakdown
from experiments import recipe as recipes
from models import float8, float8_weights, llama, roofline
from models.errors import InputError
from tests.costs import fp8_casts, total, work
from tests.runs import ONE_DEVICE, TINY

FLOAT8 = "quantize.linear.float8"
EAGER = "compile.enable=false"
SIZES = dict(dim=64, n_layers=2, n_heads=4, n_kv_heads=2, vocab_size=256, max_seq_len=32)


def load(*overrides: str, overlays: tuple = (), once: bool = True):
    once = f"{FLOAT8}.cast_weights_once={str(once).lower()}"
    return recipes.load("candidate_weights_cast_once", ["cpu", *overlays], [*overrides, once]).config


def build(config) -> torch.nn.Module:
    """A small Llama as torchtitan builds it: converted on the meta device, then given memory and weights."""
    torch.manual_seed(0)
    with torch.device("meta"), set_default_dtype(getattr(torch, config.training.dtype)):
        model = llama.Llama(replace(llama.FLAVORS["cpu"], **SIZES))
    float8.Float8Converter(config, ONE_DEVICE).convert(model)
    model = llama.parallelize(model, ONE_DEVICE, config)
    model.to_empty(device="cpu")
    with torch.no_grad():
        model.init_weights()
    return model


def losses_of(config, steps: int = 3, passes: int = 2) -> list[float]:
    """Losses of all passes."""
    model, losses = build(config), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for batch in torch.randint(256, (steps, passes, 1, 33), generator=torch.Generator().manual_seed(0)):
        float8_weights.cast_weights(model, config.compile)
        for tokens in batch:
            with torch.autocast("cpu", torch.bfloat16, enabled=config.training.dtype == "float32"):
                loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


@pytest.mark.parametrize(
    ("overrides", "overlays"),
    [
        ([EAGER], ()),
        ([EAGER], ("fp32_master",)),
        ([EAGER, f"{FLOAT8}.emulate=true", f"{FLOAT8}.filter_fqns=[]"], ()),
        ([EAGER, "activation_checkpoint.mode=full"], ()),
        (["compile.backend=aot_eager"], ("fp32_master",)),
    ],
)
def test_losses_are_those_of_casting_in_every_pass(overrides, overlays):
    once, always = (losses_of(load(*overrides, overlays=overlays, once=once)) for once in (True, False))
    assert once == always
    assert len(set(once)) == len(once)


def test_copies_stay_until_they_are_renewed_and_out_of_checkpoints():
    config = load(EAGER)
    model, tokens = build(config), torch.arange(32)[None]
    assert model.state_dict().keys() == build(load(EAGER, once=False)).state_dict().keys()
    float8_weights.cast_weights(model, config.compile)
    before = model(tokens)
    with torch.no_grad():
        model.layers["0"].feed_forward.w1.weight.mul_(torch.linspace(0, 1, 64))
    assert torch.equal(model(tokens), before)
    float8_weights.cast_weights(model, config.compile)
    assert not torch.equal(model(tokens), before)


def test_compiled_cast_is_torchaos_bit_for_bit():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    weight = torch.randn(64, 96, device=device, dtype=torch.bfloat16)
    data, scale = torch.empty_like(weight, dtype=torch.float8_e4m3fn), torch.empty((), device=device)
    float8_weights._compiled_cast("inductor")(weight, data, scale)
    theirs = hp_tensor_to_float8_dynamic(weight, torch.float8_e4m3fn, None)
    assert scale == theirs._scale and torch.equal(data.view(torch.uint8), theirs._data.view(torch.uint8))


def test_compiled_block_casts_no_weight():
    """Four inputs, by rows and by columns, and seven gradients; with weights it would be 14 more (test_blocks.py)."""
    config = load(EAGER)
    model = build(config)
    float8_weights.cast_weights(model, config.compile)
    assert fp8_casts(model.layers["0"], model.freqs_cis) == 2 * 4 + 7


def test_the_benchmark_counts_them_as_casts():
    config = load(EAGER)
    model = build(config)
    with torch.profiler.profile() as profiler:
        float8_weights.cast_weights(model, config.compile)
    seconds = breakdown.busy_seconds(breakdown.read_kernels(profiler))
    assert seconds[roofline.CASTS] == sum(seconds.values()) > 0


def test_run_equals_that_of_its_parent(train):
    """Through the trainer, with accumulated gradients; eager, to be quick."""
    losses = []
    for once in (True, False):
        trainer, windows = train(load(*TINY, "training.global_batch_size=2", EAGER, once=once), count=4)
        losses.append([window["losses"] for window in windows])
        assert trainer.proof.record()["fp8_share_of_matmul_flops"] > 0.7
    assert losses[0] == losses[1] and len(losses[0]) == 4


# ---- bytes ----

WEIGHTS = 32 * 218_103_808  # in the blocks of 8B-published


@pytest.mark.parametrize(
    ("overrides", "saved"),
    [
        # compiled, always: largest value 2, forward 2 + 1, backward 2 + 1. Once: 2 + 2 + 1, a transposed copy 1 + 1
        ([], 8 - (5 + 2)),
        (["training.global_batch_size=4"], 4 * 8 - (5 + 4 * 2)),
        # eager: 33 forward, 33 and a transposed copy 2 backward. Once: 33 and 2 for where it is kept, the copy 2
        ([EAGER], 68 - (35 + 2)),
        ([EAGER, "training.global_batch_size=4"], 4 * 68 - (35 + 4 * 2)),
    ],
)
def test_cast_bytes_saved_by_hand(overrides, saved):
    always, once = (
        total(work(name, *overrides), "bytes", roofline.CASTS)
        for name in ("tensorwise_fp8_compiled", "candidate_weights_cast_once")
    )
    assert always - once == pytest.approx(saved * WEIGHTS)


# ---- contradictions ----


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (f"{FLOAT8}.recipe_name=null", "does nothing without a recipe_name"),
        (f"{FLOAT8}.recipe_name=rowwise", "need other scales backward than forward"),
        (f"{FLOAT8}.enable_fsdp_float8_all_gather=true", "makes its own copy"),
    ],
)
def test_keys_that_contradict_it(override, expected):
    with pytest.raises(InputError, match=expected) as error:
        load(override)
    assert len(str(error.value).splitlines()) == 1
