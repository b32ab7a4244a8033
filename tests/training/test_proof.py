"""The proof fails when FP8 did not run, and when a parameter would not learn."""

from functools import partial

import pytest
import torch
from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

from experiments.training.proof import Proof, ProofError, count_gemm_flops
from models import float8
from models.fp8_adamw import STATES, AdamWFp8LM
from models.fp8_linear import Fp8Linear, Products

TOKENS, WIDTH = 32, 64
GEMM = 2 * TOKENS * WIDTH * WIDTH


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x):
        return self.head(self.second(self.first(x)))


def build(recipe="tensorwise", convert=True, emulate=False):
    """(model, optimizer, x): a bf16 net whose `head` stays out of FP8."""
    torch.manual_seed(0)
    model = Net().to(torch.bfloat16)
    for name in ("first", "second") if convert else ():
        model.set_submodule(
            name, Fp8Linear.from_float(getattr(model, name), Products(recipe, emulate=emulate))
        )
    x = torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0), x


def record_of_step(model, optimizer, x, recipe: str | None = "tensorwise") -> dict:
    """The proof's record of one training step, observed as the trainer observes it."""
    proof = Proof(model, [optimizer], recipe, TOKENS)
    with proof.profile(1):
        model(x).float().square().mean().backward()
        proof.before_step()
        optimizer.step()
    proof.after_step()
    return proof.record()


@pytest.mark.parametrize(
    ("recipe", "fp8_gemms"), [("tensorwise", 6), ("rowwise", 6), ("rowwise_with_gw_hp", 4)]
)
def test_record_of_an_honest_run(recipe, fp8_gemms):
    if float8.product("cpu", recipe, False).how == float8.EMULATED:
        pytest.skip(f"torch {torch.__version__} has no {recipe} FP8 operator for the CPU")
    record = record_of_step(*build(recipe), recipe)
    assert record["converted_modules"] == {"first": [WIDTH, WIDTH], "second": [WIDTH, WIDTH]}
    assert record["gemm_flops"]["aten::_scaled_mm"] == fp8_gemms * GEMM
    assert record["gemm_flops"]["aten::mm"] == (9 - fp8_gemms) * GEMM
    assert record["fp8_share_of_matmul_flops"] == pytest.approx(fp8_gemms / 9)
    assert record["parameters"]["moved_in_first_step"] == record["parameters"]["trainable"] == 3


def test_products_of_the_compiler_do_not_count():
    """The first step is the one that compiles."""
    torch._dynamo.reset()
    model, optimizer, x = build()
    model.compile(backend="aot_eager")
    assert record_of_step(model, optimizer, x)["gemm_flops"] == {
        "aten::_scaled_mm": 6 * GEMM,
        "aten::mm": 3 * GEMM,
    }


def test_with_states_in_fp8_every_parameter_moves_and_their_bytes_are_on_record():
    model, adamw, x = build(convert=False)
    assert record_of_step(model, adamw, x, None)["parameters"][
        "bytes_per_parameter"
    ] == pytest.approx({"weights": 2, "states": 4}, rel=0.001)
    model, _, x = build(convert=False)
    dtypes = dict(zip(STATES, (torch.float8_e4m3fn, torch.float16, torch.float16), strict=True))
    adamw = AdamWFp8LM(
        model.parameters(), dtypes, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0
    )
    parameters = record_of_step(model, adamw, x, None)["parameters"]
    assert parameters["moved_in_first_step"] == parameters["trainable"] == 3
    assert parameters["bytes_per_parameter"] == pytest.approx(
        {"weights": 2, "states": 5}, rel=0.001
    )


def test_what_is_not_fp8_is_not_called_so():
    bf16, emulated = (
        record_of_step(*build(convert=False), None),
        record_of_step(*build(emulate=True)),
    )
    assert bf16["fp8_share_of_matmul_flops"] == emulated["fp8_share_of_matmul_flops"] == 0
    assert emulated["emulated"] and not bf16["emulated"]


def test_skipped_conversion_fails():
    with pytest.raises(ProofError, match="asks for tensorwise FP8 and no layer was converted"):
        record_of_step(*build(convert=False))


def in_bf16(layer: Fp8Linear) -> None:
    layer.forward = partial(nn.functional.linear, weight=layer.weight)


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (
            lambda model, _: [in_bf16(model.first), in_bf16(model.second)],
            r"did 0.000e\+00 FLOPs, and the 2 converted",
        ),
        (lambda model, _: in_bf16(model.second), "did .* FLOPs"),
        (
            lambda _, optimizer: setattr(optimizer, "step", lambda: None),
            "3 parameters did not move in the first optim",
        ),
    ],
)
def test_a_run_that_is_not_what_its_recipe_says_fails(harm, sentence):
    model, optimizer, x = build()
    harm(model, optimizer)
    with pytest.raises(ProofError, match=sentence):
        record_of_step(model, optimizer, x)


def test_frozen_layers_without_a_backward_pass_get_a_hint():
    model, optimizer, x = build()
    model.first.weight.requires_grad_(False)
    with pytest.raises(ProofError, match="did .* FLOPs.* add them to filter_fqns"):
        record_of_step(model, optimizer, x.detach())


def test_products_of_the_other_phase_fail():
    model, _, x = build()
    proof = Proof(model, [], "tensorwise", TOKENS, allow_orphans=True)
    with (
        pytest.raises(ProofError, match="did .* FLOPs, and the recipe has this step in bf16"),
        proof.profile(1, in_fp8=False),
    ):
        model(x)
    float8.switch(model, on=False)
    with (
        pytest.raises(ProofError, match=r"did 0.000e\+00 FLOPs, and the 2 converted"),
        proof.profile(5, first=4),
    ):
        model(x)


def test_parameter_without_gradient_fails():
    model, _, x = build()
    model.unused = nn.Parameter(torch.ones(4))
    with pytest.raises(ProofError, match="unused is trainable and got no gradient"):
        record_of_step(model, torch.optim.AdamW(model.parameters()), x)


def test_optimizer_built_before_a_conversion_that_replaces_parameters_fails():
    model = Net().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())
    config = Float8LinearConfig(enable_fsdp_float8_all_gather=True)
    convert_to_float8_training(
        model, config=config, module_filter_fn=lambda _, name: name != "head"
    )
    with pytest.raises(
        ProofError, match="2 trainable parameters are in no optimizer.*first.weight"
    ):
        record_of_step(model, optimizer, None)


def test_weights_that_need_not_move():
    """Those that bf16 cannot move (neighbours of 1.0 are 2^-8 away) are named; frozen ones do not
    count."""
    model, optimizer, x = build()
    nn.init.ones_(model.head.weight)
    assert record_of_step(model, optimizer, x)["parameters"]["dtype_cannot_hold_first_update"] == [
        "head.weight"
    ]
    model, optimizer, x = build()
    model.head.weight.requires_grad_(False)
    assert record_of_step(model, optimizer, x)["parameters"]["trainable"] == 2


def test_resumed_optimizer_is_not_asked_for_a_first_step():
    """Its moments can be far larger than its gradients, and then no element is sure to move."""
    model, optimizer, x = build(convert=False)
    record_of_step(model, optimizer, x, None)
    for state in optimizer.state.values():
        state["exp_avg_sq"].fill_(1e9)
    assert record_of_step(model, optimizer, x, None)["parameters"]["moved_in_first_step"] == 0


def test_gemm_flops_of_every_operator():
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    with torch.profiler.profile(record_shapes=True) as profiler:
        a @ b
        torch.addmm(torch.zeros(5), a, b)
        torch.bmm(a.expand(2, 3, 4), b.expand(2, 4, 5))  # as attention's fallback does
    assert count_gemm_flops(profiler.events()) == {"aten::mm": 120, "aten::addmm": 120}


@pytest.mark.parametrize("transposed", [False, True])
def test_products_that_inductor_compiled_count(transposed):
    """With max-autotune a Triton kernel takes an operator's place; it names itself to the profiler,
    with its arguments.

    An operand that the graph transposes may be passed as it lies in memory.
    """
    m, k, n = 32, 64, 32
    a, b, out = (
        torch.empty(m, k),
        torch.empty(n, k) if transposed else torch.empty(k, n),
        torch.empty(m, n),
    )
    scales = [torch.empty(m, 1), torch.empty(1, n)]
    kernels = {
        "triton_tem_fused__scaled_mm_3": scales,
        "triton_tem_fused_mm_t_1": [],
        "triton_poi_fused_mm_2": [],
    }
    with torch.profiler.profile(record_shapes=True) as profiler:
        for kernel, more in kernels.items():
            with torch._C._profiler._RecordFunctionFast(kernel, [a, b, *more, out], {}):
                pass
    counted = count_gemm_flops(profiler.events())
    assert counted == {"triton _scaled_mm": 2 * m * k * n, "triton mm": 2 * m * k * n}
    proof = Proof(build()[0], [], "tensorwise", TOKENS, allow_orphans=True)
    proof.gemm_flops = counted
    assert proof.fp8_flops == 2 * m * k * n
