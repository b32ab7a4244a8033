"""Should this training be in FP8? The data, what is fitted to it, and the command's answers."""

import json
import re
import shlex
import sys

import pandas as pd
import pytest

from experiments.config import recipes
from experiments.training.plan import plan
from extensions.decide import __main__ as decide
from extensions.decide import answer, fit, measure, read
from extensions.decide.fit import HERE
from extensions.decide.model import MODELS, read_model, sizes
from models.architectures import list_architectures
from models.gpus import GPUS
from tests.processes import ROOT, run


@pytest.fixture
def ask(capsys):
    """Ask the command; returns its answer from JSON."""

    def call(words: str) -> dict:
        assert decide.main([*shlex.split(words), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return call


def words_of(path) -> str:
    """Read a page as one line."""
    return " ".join(path.read_text(encoding="utf-8").split())


def lines_of(text: str) -> list[str]:
    """Split a table into its lines."""
    return text.strip().splitlines()


# ---- the data, and what is fitted to it ----


def test_the_file_of_pairs_has_its_form():
    table, words = pd.DataFrame(fit.SPEEDUPS["pairs"]), fit.SPEEDUPS["words"]
    numbers, texts = fit.SPEEDUPS["numbers"], fit.SPEEDUPS["texts"]
    assert set(table) <= {*words, *numbers, *texts}
    for key, allowed in words.items():
        assert set(table[key].dropna()) <= set(allowed)
    assert (table[numbers].fillna(1) > 0).all(axis=None)
    assert table.source.str.contains(r"\w\.(?:com|org|co)/").all()
    assert table.name.is_unique and fit.published().speed_up.between(0.4, 2.5).all()


def test_reports_of_the_loss_have_their_form():
    for report in read("loss.yaml")["reports"]:
        assert ("gap" in report) != ("bf16" in report) and report["format"] in answer.FORMAT_NAMES
        assert re.search(r"\w\.(com|org)/", report["source"]) and report["parameters"] > 0


def test_the_readme_says_what_the_pairs_say():
    readme, pairs, fair = words_of(ROOT / "README.md"), fit.published(), fit.calibrating()
    table = re.findall(r"\| \*\*(\d\.\d\d)\*\*", readme)
    assert len(table) > 5 and set(table) <= set(pairs.speed_up.map("{:.2f}".format))
    assert f"{len(pairs)} published pairs" in readme
    of_8b = fair.billions.between(8, 8.1) & (fair.scaling == "tensorwise")
    gains = fair[of_8b & (fair.gpu != "mi300x")].speed_up
    assert (
        f"{gains.min():.2f} to {gains.max():.2f} times the tokens/s of compiled bf16, "
        f"{gains.median():.2f} in the median"
    ) in readme


FIGURES = (
    "{pairs} pairs of {sources} sources. Predicted from the other sources, a pair is off by "
    "{mean_error:.1%} on average, and {inside} of {pairs} lie in the range, which is "
    "{half_width:.1%} up and down."
)


def test_what_is_kept_is_what_the_pairs_give():
    """The fitted factors, the errors of left-out sources, and what the page says of them."""
    pairs = fit.calibrating()
    unseen = fit.left_out(pairs)
    kept = (HERE / "fitted.yaml").read_text(encoding="utf-8")
    assert kept == fit.fitted(pairs, unseen), "stale: run `make readme`"
    errors = read("fitted.yaml")["left_out"]
    assert FIGURES.format(**errors) in words_of(HERE / "README.md"), "write these into README.md"
    assert 0.75 <= errors["inside"] / errors["pairs"] <= 0.92
    surely = unseen[abs(unseen.predicted - 1) > errors["half_width"]]
    assert ((surely.predicted > 1) == (surely.speed_up > 1)).all()


# ---- answers ----


def test_an_answer_needs_none_of_the_slow_libraries():
    command = shlex.split("-X importtime -m extensions.decide llama3.1-8B --gpu h200")
    done = run([sys.executable, *command])
    assert done.stdout.startswith("YES: ") and "extensions.decide.answer" in done.stderr
    assert not re.search(r"\b(torch|scipy|pandas)\b", done.stderr)


ANSWERS = """
8B --gpu h100-sxm --gpus 8 --seq-len 8192 --tokens 100B: YES
70B --gpu h100 --gpus 256 --seq-len 8192: YES
7B --gpu 'NVIDIA GH200 120GB': YES
8B --gpu a100 --gpus 8 --steps 1M: NO
8B --gpu 'RTX 3090': NO
mixtral --gpu V100: NO
3B --gpu h100 --batch 2 --seq-len 256 --gpus 8: NO
1B --gpu h100: MEASURE FIRST
1B --gpu h100 dim=128 n_heads=2 n_kv_heads=2 hidden_dim=256: MEASURE FIRST
8B --gpu rtx-5090: DOES NOT FIT
8B --gpu h100 --freeze w1 w2 w3: MEASURE FIRST
8B --gpu h20: MEASURE FIRST
8B --gpu b200 --gpus 8 --format mxfp8: YES
70B --gpu b200 --gpus 256 --format mxfp8: YES
8B --gpu h100 --format mxfp8: NO
8B --gpu gb200 --gpus 4 --format nvfp4: MEASURE FIRST
Qwen3-30B-A3B --gpu h100 --gpus 8: MEASURE FIRST
deepseek-v3 --gpu b200 --gpus 64: MEASURE FIRST
deepseek-v3 --gpu b200: DOES NOT FIT
"""


@pytest.mark.parametrize("line", lines_of(ANSWERS))
def test_four_answers(ask, line):
    words, verdict = line.split(": ")
    if "Qwen3" in words:
        pytest.importorskip("extensions.qwen3")
    found = ask(words)
    assert found["verdict"] == verdict
    assert {"memory_gib", "step_s", "hours", "nearest", "fitted_to", "measure"} < set(found)
    assert (found["loss"] is not None) == (verdict == "YES")
    if verdict == "NO":
        assert found["measure"] is None
    elif "deepseek" not in words and "format" not in words:
        assert found["measure"].startswith(".venv/bin/python -m experiments.study ")


def test_a_near_pair_that_disagrees_is_measured_first(ask, monkeypatch):
    hopper = read("fitted.yaml")["Hopper"] | {"told": [[8e9, 0.9]]}
    monkeypatch.setattr(answer, "read", lambda name: {"Hopper": hopper})
    found = ask("8B --gpu h100 --gpus 8")
    assert found["verdict"] == "MEASURE FIRST" and found["speedup"]["tensorwise"][1] > 1


def test_the_range_doubles_outside_of_the_pairs(ask):
    value, low, high = ask("8B-published --gpu gh200")["speedup"]["tensorwise"]
    assert low < 10898 / 8777 < high and low < value < high
    for elsewhere in ("405B --gpu h100 --gpus 512", "1B --gpu l40s"):
        _, lower, higher = ask(elsewhere)["speedup"]["tensorwise"]
        assert higher / lower == pytest.approx((high / low) ** 2)


def test_the_pcie_card_has_its_own_figures(ask):
    pcie = ask("8B --gpu 'NVIDIA H100 80GB PCIe'")
    assert pcie == ask("8B --gpu h100-pcie") != ask("8B --gpu h100")


FEW_PAIRS = fit.predictable()
FEW_PAIRS = FEW_PAIRS[FEW_PAIRS.gpu.isin(["b200", "mi300x"]) & FEW_PAIRS.left_out.isna()]


@pytest.mark.parametrize("name", FEW_PAIRS.name)
def test_where_there_are_few_pairs_the_range_holds_them(ask, name):
    pair = FEW_PAIRS.set_index("name").loc[name]
    names = ("dim", "n_layers", "n_heads", "n_kv_heads", "hidden_dim", "vocab_size")
    words = " ".join(f"{name}={getattr(pair.sizes, name)}" for name in names)
    found = ask(
        f"{words} --gpu {pair.gpu} --gpus {pair.gpus} "
        f"--batch {pair.batch:.0f} --seq-len {pair.seq_len:.0f}"
    )
    if found["speedup"].get(pair.scaling):
        _, low, high = found["speedup"][pair.scaling]
        assert low <= pair.speed_up <= high
    if pair.unit == "tok/s/gpu" and found["step_s"]:
        _, low, high = found["step_s"]["bf16"]
        assert low <= pair.step_tokens / pair.bf16 <= high


def test_without_a_measured_step_of_its_kind_there_are_no_hours(ask):
    found = ask("1B --gpu l40s --steps 1000 --price 2")
    assert found["speedup"]["tensorwise"] and not any(
        found[name] for name in ("step_s", "hours", "cost")
    )


def test_cost_carries_the_range_of_hours_and_frozen_weights_need_less_memory(ask):
    words = "8B --gpu h200 --gpus 2 --steps 1000 --price 3"
    found, frozen = ask(words), ask(f"{words} --freeze w1 w2")
    hours = found["hours"]["tensorwise"]
    assert hours[1] < hours[0] < hours[2]
    assert found["cost"]["tensorwise"] == pytest.approx([6 * value for value in hours])
    assert frozen["memory_gib"] < found["memory_gib"] - 3


def test_experts_have_the_answer_of_their_pairs(ask):
    pytest.importorskip("extensions.qwen3")
    pytest.importorskip("extensions.sharded")
    found = ask("qwen3-30B-A3B --gpu h100 --gpus 8")
    experts = read("fitted.yaml")["experts"]
    assert (round(experts["low"], 2), round(experts["high"], 2)) == (0.75, 1.43)
    assert "0.75 to 1.43" in found["why"] and "at most 1.175" in found["why"]
    planned = plan(recipes.load("baseline_compiled", overrides=keys_of(found)))
    assert found["memory_gib"] == pytest.approx(planned.memory_needed / 2**30, abs=0.1)


def test_formats_have_the_answers_of_their_pairs(ask):
    answer = ask("8B --gpu b200 --gpus 8 --format mxfp8")
    assert [round(value, 2) for value in answer["speedup"]["mxfp8"][1:]] == [1.2, 1.35]
    figures = [pair["figures"] for pair in ask("8B --gpu gb200 --format nvfp4")["nearest"]]
    assert any("21,919 and 30,040" in text for text in figures)
    assert any("21,919 and 28,084" in text for text in figures)


def test_mxfp8_is_measured_by_its_recipe(ask):
    pytest.importorskip("extensions.scalings")
    answer = ask("8B --gpu b200 --gpus 8 --format mxfp8")
    assert "baseline_compiled mxfp8_compiled" in answer["measure"]
    assert ask("8B --gpu gb200 --format nvfp4")["measure"] is None


def test_one_scale_a_row_may_be_refused_on_rtx_blackwell(ask):
    notes = "".join(ask("1B --gpu rtx-pro-6000")["notes"])
    assert "CUBLAS_STATUS_NOT_SUPPORTED" in notes and not ask("1B --gpu b200")["notes"]


@pytest.mark.parametrize("page", [ROOT / "README.md", HERE / "README.md"])
def test_pages_show_what_the_command_prints(page, capsys):
    text = page.read_text(encoding="utf-8")
    command = r"^    \$ \.venv/bin/python -m extensions\.decide (.*)\n((?:    (?!\$|…).*\n)+)"
    for words, block in re.findall(command, text, re.MULTILINE):
        assert decide.main(shlex.split(words, comments=True)) == 0
        shown = [line.removeprefix("    ") for line in block.splitlines()]
        assert capsys.readouterr().out.splitlines()[: len(shown)] == shown


# ---- layers that stay in bf16 ----

ODD = "dim=4096 n_layers=32 n_heads=32 n_kv_heads=8 hidden_dim=10922 vocab_size=32000"


def test_layers_whose_sides_16_does_not_divide_are_counted_in_bf16(ask):
    pytest.importorskip("extensions.sharded")
    odd = ask(f"{ODD} --gpu h100 --gpus 8")
    even = ask(f"{ODD.replace('10922', '10928')} --gpu h100 --gpus 8")
    assert odd["verdict"] != "YES" and "bf16_share" in odd["outside"] and "76%" in odd["notes"][0]
    assert odd["speedup"]["tensorwise"][0] < 1.05 < even["speedup"]["tensorwise"][0]
    words = keys_of(odd)
    assert plan(recipes.load("tensorwise_fp8_compiled", overrides=words)).fp8.layers


REFUSED = """
8B dim=4096 hidden_dim=14337 n_heads=32 head_dim=127 n_kv_heads=32
dim=4104 n_layers=2 n_heads=8 hidden_dim=8 vocab_size=32000
8B dim=4097 | 8B n_heads=6 | 8B n_kv_heads=3
8B --seq-len 4095 | 8B --batch 3 --seq-len 1000 | 8B --seq-len 8
"""


@pytest.mark.parametrize("words", re.split(r" \| |\n", REFUSED.strip()))
def test_what_a_run_refuses_is_refused(words, fails):
    assert fails(decide.main, *shlex.split(words), "--gpu", "h100")


def test_the_refusal_is_that_of_a_run(fails):
    tokens = fails(decide.main, "8B", "--gpu", "h100", "--seq-len", "4095")
    keys = ["training.seq_len=4095"]
    assert tokens.partition("seq_len x")[2] in fails(
        lambda words: recipes.load("tensorwise_fp8_compiled", overrides=words), *keys
    )


def test_a_recipes_filters_count(ask, tmp_path):
    path = tmp_path / "filtered.yaml"
    path.write_text(
        "description: filtered\nmodel: {flavor: llama3.1-8B}\nquantize: {linear: {float8:\n"
        "  {recipe_name: tensorwise, filter_fqns: [output, layers.*.feed_forward.w1]}}}\n"
    )
    filtered, whole = ask(f"{path} --gpu h100"), ask("8B --gpu h100")
    assert filtered["speedup"]["tensorwise"][0] < whole["speedup"]["tensorwise"][0] - 0.05
    planned = plan(recipes.load("tensorwise_fp8_compiled", overrides=keys_of(filtered)))
    assert planned.fp8.layers == plan(recipes.load(str(path))).fp8.layers
    assert "tensorwise_fp8_compiled" in ask("tensorwise_fp8_compiled --gpu h100")["measure"]


# ---- the command that measures ----


def keys_of(found: dict) -> list[str]:
    """List the keys of an answer's command."""
    words = shlex.split(found["measure"], comments=True)
    return [word for word in words[words.index("--overlay") + 2 :] if "=" in word]


MEASURED = """
h100 1: qwen3-0.6b llama3.2-1B gemma2-9b gpt2-xl granite-3.3-8b starcoder2-7b
b200 8: 8B qwen3-32B falcon3-7b olmo2-7B 70B
rtx-4090 64: 70B qwen3-32B mistral-nemo qwen3-30B-A3B qwen2.5-7B
l40s 8: mistral-7B smollm2-1.7B yi-34b
h20 2: phi-4 smollm3 command-r 405B
mi300x 1: olmo2-7B yi-34b apertus-8B qwen3-14B
rtx-pro-6000 2: llama2-13b qwen3-1.7b
h100 512: 405B 70B
"""


@pytest.mark.parametrize("line", lines_of(MEASURED))
def test_the_command_trains_the_asked_model_or_names_its_stand_in(ask, line):
    pytest.importorskip("extensions.sharded")
    pytest.importorskip("extensions.qwen3")
    gpu, names = line.split(": ")
    gpu, n_gpus = gpu.split()
    for name in names.split():
        found = ask(f"{name} --gpu {gpu} --gpus {n_gpus}")
        planned = plan(recipes.load("baseline_compiled", ["no_recompute"], keys_of(found)))
        assert planned.memory_needed <= GPUS[gpu].memory, name
        assert planned.world_size == min(8, int(n_gpus))
        same = planned.args.parameters() == read_model([name]).parameters
        told = any("stand-in" in note for note in found["notes"])
        assert same or told, name


def test_short_rows_of_405b_have_a_command_that_a_node_can_hold(ask):
    pytest.importorskip("extensions.sharded")
    found = ask("405B --gpu h100 --gpus 512 --seq-len 512")
    planned = plan(recipes.load("baseline_compiled", ["no_recompute"], keys_of(found)))
    assert planned.memory_needed <= GPUS["h100"].memory and "stand-in" in found["notes"][0]


def test_without_other_extensions_a_llama_stands_in_on_one_gpu(ask, monkeypatch):
    monkeypatch.setattr(measure, "has_extension", lambda name: False)
    measure.flavor_sizes.cache_clear()
    found = ask("8B --gpu h200 --gpus 8")
    assert "sharded" not in found["measure"] and "model.flavor=llama3.1-8B" in found["measure"]
    assert ask("qwen3-8B --gpu h200")["measure"] is None
    measure.flavor_sizes.cache_clear()


# ---- what people type ----


NAMES = """
llama3.1-8B 8b 8B Llama-3.1-8B meta-llama/Llama-3.1-8B-Instruct llama3.1:8b-instruct-q4_K_M
llama3-8B Meta-Llama-3-8B llama3:8b
llama3.1-70B 70B llama-3.1-70b
llama3.3-70B Llama-3.3-70B-Instruct
llama2-7B 7B llama-2-7b meta-llama/Llama-2-7b-hf llama2:7b-chat
llama2-13B 13B Llama-2-13b-chat-hf
qwen2.5-7B Qwen/Qwen2.5-7B-Instruct Qwen2.5-Coder-7B
qwen3-4B Qwen3-4B-Instruct-2507 Qwen/Qwen3-4B-Base
qwen3-30B-A3B Qwen3-30B-A3B-Instruct-2507 qwen3:30b-a3b Qwen3-Coder-30B-A3B-Instruct
mistral-7B mistralai/Mistral-7B-v0.3 mistral:7b
mistral-nemo-12B mistralai/Mistral-Nemo-Instruct-2407
mixtral-8x7B Mixtral mistralai/Mixtral-8x7B-Instruct-v0.1
gemma2-9B gemma-2-9b google/gemma-2-9b-it gemma2:9b
gemma3-27B google/gemma-3-27b-it
phi-4 microsoft/phi-4 phi4 phi4:14b
phi-3-mini Phi-3-mini-4k-instruct Phi-3.5-mini-instruct
olmo2-7B OLMo-2-7B allenai/OLMo-2-1124-7B
smollm2-1.7B SmolLM2-1.7B HuggingFaceTB/SmolLM2-1.7B-Instruct
smollm3-3B SmolLM3
gpt2 openai-community/gpt2 gpt2-124M
tinyllama-1.1B TinyLlama/TinyLlama-1.1B-Chat-v1.0
apertus-8B swiss-ai/Apertus-8B-Instruct-2509
gpt-oss-20B openai/gpt-oss-20b gpt-oss:20b
deepseek-v3 deepseek-ai/DeepSeek-V3
8B-published baseline
"""


@pytest.mark.parametrize("names", lines_of(NAMES))
def test_names_as_people_write_them(names):
    assert len({read_model([name]).sizes for name in names.split()}) == 1


def test_the_table_of_models_is_that_of_the_recipes():
    flavors = {}
    for architecture in list_architectures():
        flavors |= architecture.flavors
    named = {entry.get("flavor") for entry in MODELS["models"].values()} - {None}
    assert {name for name in flavors if not re.search("cpu|layers", name)} <= named
    for name, known in measure.flavor_sizes().items():
        assert known.parameters() == flavors[name].parameters()
        for size in ("dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "vocab_size"):
            assert getattr(known, size) == getattr(flavors[name], size)


CONFIGS = json.loads((HERE / "tests" / "configs.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("family", CONFIGS)
def test_models_of_other_families_by_their_config(family, tmp_path):
    """What a config.json leaves unsaid is its family's: the published number of parameters."""
    known = CONFIGS[family]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(known["config"]))
    published = pytest.approx(known["billions"] * 1e9, rel=0.01)
    assert sizes([str(path)]).parameters() == published
    assert sizes([str(tmp_path)]).parameters() == published  # its folder


def test_a_mixture_of_experts_by_its_config_has_an_answer(ask, tmp_path):
    (tmp_path / "config.json").write_text(
        '{"model_type": "deepseek_v3", "hidden_size": 7168, "n_routed_experts": 256}'
    )
    found = ask(f"{tmp_path} --gpu h200 --gpus 8")
    assert found["verdict"] == "MEASURE FIRST" and found["memory_gib"] is None


def test_the_list_has_every_name(capsys):
    assert decide.main(["--list"]) == 0
    printed = capsys.readouterr().out
    for name in [*MODELS["models"], *MODELS["other_experts"], *GPUS, "smollm3"]:
        assert name in printed


# What is not known, and what its sentence proposes
NEAR = """
llama3 --gpu h100: llama3-8B
lama3.1-8b --gpu h100: llama3.1-8B
9B --gpu h100: gemma2-9B
qwen3-9B --gpu h100: qwen3-8B
gemma2 --gpu h100: gemma2-27B
8B n_layer=16 --gpu h100: n_layers
8B --gpu 'RTX 6000': rtx-6000-ada
8B --gpu 'RTX 4090 Laptop GPU': rtx-4090
8B --gpu 8xH100: --gpu h100 --gpus 8
8B --gpu h1000: h100
"""


@pytest.mark.parametrize("line", lines_of(NEAR))
def test_near_names_are_proposed(line, fails):
    words, proposed = line.split(": ")
    assert proposed in fails(decide.main, *shlex.split(words))


# Beside `8B --gpu h100`
WRONG_WORDS = """
--gpus 0 | --gpus -1 | --gpus 1.5 | --gpus inf | --batch 0 | --batch -2
--batch nan | --batch 0.5 | --batch inf | --seq-len 0 | --seq-len -1 | --seq-len many | --seq-len 8k
--steps 0 | --steps -5 | --steps nan | --steps 1e999 | --tokens 0 | --tokens -1B | --tokens inf
--tokens 1e400 | --price 0 | --price -3 | --price nan | --price inf | --steps 5 --tokens 1B
--price two | --recompute some | --freeze | --freeze nothing | --freez w1 | --tensor-parallel 4
--tensor-parallel=2 | --tp 2 | --lr 1 | dim= | dim=0 | dim=-5 | dim=1.5 | dim=inf | dims=5 | =5 | =
compile.enable=false | vocab_size=lots | n_heads=99999999 | dim=1e99 | --first-step 3 | --verbose
--gpus two | --batch 1k5 | --json=yes | qk_norm=many | 1B | --gpu rtx9000 | --gpu ""
n_heads=8192 | n_layers=900000 | --price 1e19 | --format fp4 | --format | 70B | n_layer=16
--gpu "H100 80GB HBM3 MIG 1g.10gb" | --gpu 94GB | --gpus 1_000 | --batch ٣ | --list=all
"""
WRONG = """
8B | 8B --gpu | --gpu h100 | 12345B --gpu h100 | llama-9-7b --gpu h100 | dim=512 --gpu h100
dim=512 n_layers=2 n_heads=8 --gpu h100 | nowhere.json --gpu h100 | . --gpu h100 | "" --gpu h100
tests/bad_files/file --gpu h100 | nowhere.yaml --gpu h100 | 8B 70B --gpu h100 | / --gpu h100
deepseek-v3 n_layers=3 --gpu h100 | --gpu h100 n_layers=16 | tests --gpu h100
"""
CASES = [f"8B --gpu h100 {case}" for case in re.split(r"[|\n]", WRONG_WORDS.strip())]
CASES += re.split(r"[|\n]", WRONG.strip())


@pytest.mark.parametrize("words", CASES)
def test_a_wrong_command_line_ends_in_a_sentence(words, fails):
    sentence = fails(decide.main, *shlex.split(words))
    assert not re.search(r"invalid \w+ value|object|KeyError|\bdict\b|unpack", sentence)


WRONG_CONFIGS = """
[] | { | {} | {"model_type": ["llama"]} | {"model_type": "llama"} | {"model_type": "mamba"} | null
{"model_type": "llama", "hidden_size": "x", "num_hidden_layers": 2} | 5 | "text"
{"model_type": "olmo", "d_model": 2048, "n_heads": 16, "n_layers": 16, "mlp_ratio": 8}
{"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000}
{"model_type": "llama", "hidden_size": 4097, "num_hidden_layers": 2} | {"dim": 4096} | {"dim": "x"}
{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 1e9}
{"dim": 64, "n_layers": 2, "n_heads": 2, "vocab_size": -1, "ffn_dim_multiplier": 1.3}
{"dim": 64, "n_layers": 2, "n_heads": 2, "vocab_size": 512, "ffn_dim_multiplier": "x"}
{"text_config": []} | {"text_config": {"hidden_size": 5}} | {"model_type": "gpt2", "n_embd": 8}
"""


@pytest.mark.parametrize("wrong", re.split(r" \| |\n", WRONG_CONFIGS.strip()))
def test_a_wrong_config_ends_in_a_sentence(wrong, tmp_path, fails):
    path = tmp_path / "config.json"
    path.write_text(wrong)
    assert str(path) in fails(decide.main, str(path), "--gpu", "h100")
