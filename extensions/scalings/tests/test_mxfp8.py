"""MXFP8 by torchao: its results, where it is emulated, what it refuses, and its proof."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torchao.prototype.moe_training.config import MXFP8TrainingOpConfig
from torchao.quantization import quantize_
from torchao.quantization.quantize_.common import KernelPreference

from experiments.config import recipes
from experiments.training.plan import plan
from experiments.training.proof import ProofError
from extensions.scalings import TORCHAO_MXFP8, mxfp8
from extensions.scalings.tests.test_scalings import layer
from models import device
from models.errors import InputError
from models.float8 import EMULATED, OPERATOR
from tests.models.layers import operands
from tests.runs import SMALLEST, TINY

M, K, N = 160, 256, 128  # 160 is no multiple of 128


# ---- the layer ----


def narrow_layer(name: str, dtype=torch.bfloat16) -> nn.Module:
    """Make one FP8 layer with the first outputs of `operands`, as many as 32 divides."""
    model = layer(name, dtype)
    model[0].weight = nn.Parameter(model[0].weight.data[:N].clone())
    return model


def narrow_results(model: nn.Module) -> list[torch.Tensor]:
    """Compute the output and gradients of a layer of `narrow_layer`."""
    x, _, gradient = operands()
    x.requires_grad_()
    out = model(x)
    out.backward(gradient[:, :N].contiguous())
    return [out.detach(), x.grad, model[0].weight.grad]


def test_the_layer_is_what_users_of_torchao_get():
    """The same output and gradients to the bit, and a weight that stays a plain parameter."""
    reference = nn.Sequential(nn.Linear(K, N, bias=False))
    reference[0].weight.data = operands()[1][:N].clone()
    config = MXFP8TrainingOpConfig(kernel_preference=KernelPreference.EMULATED)
    try:
        quantize_(reference, config, filter_fn=lambda module, name: isinstance(module, nn.Linear))
    except AssertionError as error:  # torchao wants a newer torch for its class of weights
        pytest.skip(str(error))
    model = narrow_layer(TORCHAO_MXFP8)
    assert all(map(torch.equal, narrow_results(reference), narrow_results(model)))
    assert type(model[0].weight.data) is torch.Tensor


def test_it_rounds_as_the_emulation_of_this_extension():
    torchao_results = narrow_results(narrow_layer(TORCHAO_MXFP8))
    own_results = narrow_results(narrow_layer("mxfp8"))
    for result, own_result in zip(torchao_results, own_results, strict=True):
        assert (result.float() - own_result.float()).norm() < 0.005 * own_result.float().norm()


def test_compiled_is_eager():
    model = narrow_layer(TORCHAO_MXFP8)
    model.compile(fullgraph=True, backend="aot_eager")
    eager_results = narrow_results(narrow_layer(TORCHAO_MXFP8))
    assert all(map(torch.equal, eager_results, narrow_results(model)))


def test_float32_weights_are_cast_to_the_dtype_of_autocast():
    x = operands()[0]
    with torch.autocast("cpu", torch.bfloat16):
        out = narrow_layer(TORCHAO_MXFP8, torch.float32)(x.float())
    assert torch.equal(out, narrow_layer(TORCHAO_MXFP8)(x))


# ---- how this machine multiplies ----


@pytest.fixture
def blackwell(monkeypatch):
    """A GPU with all that torchao's MXFP8 needs."""
    monkeypatch.setattr(device, "TYPE", "cuda")
    monkeypatch.setattr(device, "name", lambda: "NVIDIA B200")
    for name in ("is_sm_at_least_100", "has_triton"):
        monkeypatch.setattr(mxfp8, name, lambda: True)
    monkeypatch.setattr(mxfp8, "is_cuda_version_at_least", lambda major, minor: True)
    monkeypatch.setattr(mxfp8, "has_cast_kernel", lambda: True)


def test_blackwell_multiplies_in_mxfp8(blackwell):
    assert mxfp8.choose_mxfp8_matmul(False).kind == OPERATOR
    assert mxfp8.choose_mxfp8_matmul(True).kind == EMULATED


def test_other_devices_emulate(blackwell, monkeypatch):
    monkeypatch.setattr(mxfp8, "is_sm_at_least_100", lambda: False)
    assert mxfp8.choose_mxfp8_matmul(False).kind == EMULATED
    monkeypatch.setattr(device, "TYPE", "cpu")
    assert mxfp8.choose_mxfp8_matmul(False).kind == EMULATED


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("has_triton", "install the package triton"),
        ("is_cuda_version_at_least", "a torch for CUDA 12.8"),
        ("has_cast_kernel", "torchao::mxfp8_quantize"),
    ],
)
def test_what_torchao_lacks_on_blackwell_is_an_input_error(missing, words, blackwell, monkeypatch):
    monkeypatch.setattr(mxfp8, missing, lambda *version: False)
    with pytest.raises(InputError, match=words):
        mxfp8.choose_mxfp8_matmul(False)


@pytest.mark.skipif(torch.version.cuda is not None, reason="torchao's kernels may be loaded")
def test_a_torch_for_cpus_has_no_cast_kernel():
    assert not mxfp8.has_cast_kernel()


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("model.sizes={hidden_dim: 80}", "feed_forward"),
        ("training.seq_len=80", "training.seq_len x training.local_batch_size is 80"),
    ],
)
def test_multiples_of_16_that_32_does_not_divide_are_refused(key, words):
    recipe = recipes.load("mxfp8_compiled", ["cpu"], [*TINY, SMALLEST, key])
    with pytest.raises(InputError, match=words):
        plan(recipe)


# ---- the proof ----


def profile_matmuls(*scales: list[torch.Tensor]) -> torch.profiler.profile:
    """Profile an FP8 matmul for each pair of scales, named as the operator."""
    a, b = torch.empty(M, K), torch.empty(K, N)
    with torch.profiler.profile(record_shapes=True) as profiler:
        for pair in scales:
            with torch._C._profiler._RecordFunctionFast("aten::_scaled_mm", [a, b, *pair], {}):
                pass
    return profiler


def test_block_scaled_matmuls_are_on_record_by_shape():
    """256 rows and 8 scales a row, in tiles of 128 by 4: 160 rows are rounded up."""
    proof = SimpleNamespace(evidence={})
    blocks = [torch.empty(256 * 8), torch.empty(128 * 8)]
    mxfp8.prove_block_scales(proof, profile_matmuls(blocks, blocks))
    assert proof.evidence["scalings"] == {"block_scaled_matmuls": {"160 x 256 x 128": 2}}


@pytest.mark.parametrize(
    "scales",
    [
        [torch.empty(()), torch.empty(())],
        [torch.empty(M, 1), torch.empty(1, N)],
        [torch.empty(256 * 8), torch.empty(())],
    ],
)
def test_a_matmul_with_other_scales_fails_the_run(scales):
    with pytest.raises(ProofError):
        mxfp8.prove_block_scales(SimpleNamespace(evidence={}), profile_matmuls(scales))
