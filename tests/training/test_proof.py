"""The proof fails when FP8 did not run, and when a parameter would not learn."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torchao.float8 import Float8LinearConfig, convert_to_float8_training, float8_ops

from experiments.config.keys import Config
from experiments.config.recipes import Recipe
from experiments.training.proof import ProofCollector, ProofError, find_matmuls
from models import float8

TOKENS, WIDTH = 32, 64
GEMM = 2 * TOKENS * WIDTH * WIDTH


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x):
        return self.head(self.second(self.first(x)))


class Run:
    """A bf16 net whose `head` stays out of FP8, its optimizer and recipe; `step` trains it."""

    def __init__(self, recipe: str | None = "tensorwise", convert: bool = True, emulate=False):
        torch.manual_seed(0)
        self.config, self.model = Config(), Net().to(torch.bfloat16)
        keys = self.config.quantize.linear.float8
        keys.recipe_name, keys.filter_fqns, keys.emulate = recipe, ["head"], emulate
        self.config.activation_checkpoint.mode = "none"
        self.config.training.local_batch_size, self.config.training.seq_len = 1, TOKENS
        fp8 = float8.choose_float8(self.model, keys)
        recipe = Recipe("test", "", self.config)
        self.plan = SimpleNamespace(
            recipe=recipe, config=self.config, fp8=fp8, passes=1, tokens=TOKENS
        )
        if convert:
            float8.convert_linears(self.model, self.plan)
        self.x = torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16, requires_grad=True)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0)

    def proof(self) -> ProofCollector:
        return ProofCollector(self.plan, self.model, self.optimizer)

    def step(self):
        """The proof's record of one training step, observed as the trainer observes it."""
        proof = self.proof()
        with proof.profile(1):
            self.model(self.x).float().square().mean().backward()
            with proof.watch_movement():
                self.optimizer.step()
        return proof.record()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("recipe", "fp8_gemms"), [("tensorwise", 6), ("rowwise", 6), ("rowwise_with_gw_hp", 4)]
)
def test_record_of_an_honest_run(recipe, fp8_gemms, compiled):
    """The first step is the one that compiles: the compiler's own matmuls do not count."""
    run = Run(recipe)
    if run.plan.fp8.emulated:
        pytest.skip(f"torch {torch.__version__} has no {recipe} FP8 operator for the CPU")
    if compiled:
        torch._dynamo.reset()
        run.model.compile(backend="aot_eager")
    record = run.step()
    assert record.converted_modules == {"first": [WIDTH, WIDTH], "second": [WIDTH, WIDTH]}
    in_fp8, in_bf16 = fp8_gemms * GEMM, (9 - fp8_gemms) * GEMM
    assert record.gemm_flops == {"aten::_scaled_mm": in_fp8, "aten::mm": in_bf16}
    assert record.fp8_share == pytest.approx(fp8_gemms / 9)
    assert record.parameters.moved_in_first_step == record.parameters.trainable == 3


def test_what_is_not_fp8_is_not_called_so():
    bf16, emulated = Run(None, convert=False).step(), Run(emulate=True).step()
    assert bf16.fp8_share == emulated.fp8_share == 0
    assert emulated.emulated and not bf16.emulated


def skip_step(run: Run) -> None:
    run.optimizer.step = lambda: None


def freeze(run: Run) -> None:
    """Nothing is computed backward of a frozen layer before all others."""
    run.model.first.weight.requires_grad_(False)
    run.x = run.x.detach()


def add_unused(run: Run) -> None:
    run.model.unused = nn.Parameter(torch.ones(4))
    run.optimizer.add_param_group({"params": [run.model.unused]})


def convert_late(run: Run) -> None:
    """The optimizer is built before a conversion that replaces parameters."""
    config = Float8LinearConfig(enable_fsdp_float8_all_gather=True)
    convert_to_float8_training(run.model, config=config, module_filter_fn=lambda _, n: n != "head")


def compile_nothing(run: Run) -> None:
    """As with TORCHDYNAMO_DISABLE=1."""
    run.config.compile.enable = True
    counters.clear()


@pytest.mark.parametrize(
    ("harm", "converted", "sentence"),
    [
        (compile_nothing, True, "torch.compile made no graph"),
        (skip_step, True, "3 parameters did not move"),
        (freeze, True, "ran 3 instead of 4"),
        (add_unused, True, "unused is trainable and got no gradient"),
        (lambda run: None, False, "converts 2 linear layers to FP8, and 0 were converted"),
        (convert_late, False, "2 trainable parameters are in no optimizer.*first.weight"),
    ],
)
def test_a_run_that_is_not_what_its_recipe_says_fails(harm, converted, sentence):
    run = Run(convert=converted)
    harm(run)
    with pytest.raises(ProofError, match=sentence):
        run.step()


def test_one_matmul_in_bf16_fails(monkeypatch):
    """The last of the two layers' six, a gradient of a weight."""
    in_fp8, calls = float8_ops.addmm_float8_unwrapped, []

    def multiply(a, a_scale, b, b_scale, dtype, *rest, **keys):
        calls.append(a)
        if len(calls) < 6:
            return in_fp8(a, a_scale, b, b_scale, dtype, *rest, **keys)
        return a.to(dtype) @ b.to(dtype) / (a_scale * b_scale).to(dtype)

    monkeypatch.setattr(float8_ops, "addmm_float8_unwrapped", multiply)
    with pytest.raises(ProofError, match="the FP8 matmuls are not the recipe's: .* instead of "):
        Run().step()


def test_fp8_matmuls_in_bf16_steps_fail():
    run = Run()
    proof = run.proof()
    proof.fp8 = float8.Float8Choice()
    with pytest.raises(ProofError, match="ran 2 instead of 0"), proof.profile(1):
        run.model(run.x)


def test_weights_that_need_not_move():
    """Those that bf16 cannot move (neighbours of 1.0 are 2^-8 away) are named, and frozen ones do
    not count. After a resume the optimizer's moments can be far larger than its gradients."""
    run = Run(None, convert=False)
    run.model.first.weight.requires_grad_(False)
    nn.init.ones_(run.model.head.weight)
    first = run.step().parameters
    assert (first.trainable, first.dtype_cannot_hold_first_update) == (2, ["head.weight"])
    for state in run.optimizer.state.values():
        state["exp_avg_sq"].fill_(1e9)
    assert run.step().parameters.moved_in_first_step == 0


@pytest.mark.parametrize("transposed", [False, True])
def test_kernels_of_max_autotune_are_matmuls(transposed):
    """A Triton kernel in an operator's place names itself to the profiler, with its arguments. An
    operand that the graph transposes may be passed as it lies in memory."""
    m, k, n = 32, 64, 16
    a, b, out = torch.empty(m, k), torch.empty(k, n), torch.empty(m, n)
    operands = [a, b.T.contiguous() if transposed else b]
    kernels = {
        "triton_tem_fused__scaled_mm_3": [torch.empty(m, 1), torch.empty(1, n)],
        "triton_tem_fused_mm_t_1": [],
        "triton_poi_fused_mm_2": [],
    }
    with torch.profiler.profile(record_shapes=True) as profiler:
        for kernel, scales in kernels.items():
            with torch._C._profiler._RecordFunctionFast(kernel, [*operands, *scales, out], {}):
                pass
    fp8, bf16 = find_matmuls(profiler.events())
    assert [fp8.is_fp8, bf16.is_fp8] == [True, False] and fp8.is_row_scaled
    assert fp8.flops == bf16.flops == 2 * m * k * n
