"""Should this training be in FP8? The data, what is fitted to it, and the command's answers."""

import json
import math
import re
import shlex
import subprocess
import sys
from statistics import median

import pytest
import yaml

from experiments.jobs.command import code_of
from extensions.decide import __main__ as decide
from extensions.decide import fit, pairs
from extensions.decide.answer import FITTED
from extensions.decide.asked import KNOWN as NAMED
from extensions.decide.asked import model, number, whole
from models.architectures import architectures
from models.flops import Sizes
from tests.processes import ROOT


@pytest.fixture
def ask(capsys):
    """Ask the command; returns its answer from JSON."""

    def call(words: str) -> dict:
        assert decide.main([*shlex.split(words), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return call


# ---- the data, and what is fitted to it ----

ALLOWED = {
    "kind": {"dense", "experts", "lora", "part"},
    "stack": {"torchao", "Transformer Engine", "hand-written", "torchao eager", "XLA", "other"},
    "recompute": {"none", "half", "full"},
    "confidence": {"a", "b", "c"},
    "fairness": {"clean", "minor", "doubtful"},
}
NEEDED = {"name", "model", "kind", "stack", "scaling", "gpu", "source", "place"}
KNOWN = (
    NEEDED
    | {*ALLOWED}
    | {
        "billions",
        "gpus",
        "parallelism",
        "tensor_parallel",
        "context_parallel",
        "batch",
        "sequence",
        "passes",
        "assumed",
        "compile",
        "software",
        "matmuls",
        "left_out",
        "head_fp8",
        "all_gather",
        "unit",
        "bf16",
        "fp8",
        "lower_is_better",
        "ratio",
        "date",
        "note",
    }
)


def test_the_file_of_pairs_has_its_form():
    content = yaml.safe_load((pairs.HERE / "speedups.yaml").read_text(encoding="utf-8"))
    for sizes in content["models"].values():
        Sizes(**sizes)
    found = content["pairs"]
    assert len({pair["name"] for pair in found}) == len(found) > 250
    for pair in found:
        assert KNOWN >= set(pair) >= NEEDED, pair["name"]
        assert ("ratio" in pair) != ({"bf16", "fp8", "unit"} <= set(pair)), pair["name"]
        assert 0.4 < pairs.speed_up(pair) < 2.5, pair["name"]
        assert re.search(r"\w\.(com|org|co)/", pair["source"]), pair["name"]
        for key in ALLOWED.keys() & pair:
            assert pair[key] in ALLOWED[key], (pair["name"], key)


def test_the_readme_counts_the_pairs_and_its_table_is_among_them():
    found, readme = pairs.read(), (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"*{len(found)} published pairs" in readme
    assert f"holds {len(found)} pairs" in (pairs.HERE / "README.md").read_text(encoding="utf-8")
    measured = {f"{pair['speed_up']:.2f}" for pair in found}
    table = re.findall(r"^\| \[.*\| \*\*(\S+)\*\* \| (\S+) \|$", readme, re.MULTILINE)
    assert table and measured | {"-"} >= {ratio for row in table for ratio in row}


def test_the_readme_gives_the_range_of_all_fair_pairs_of_its_stack():
    alike = {"stack": "torchao", "scaling": "tensorwise", "kind": "dense"}
    fair = [pair["speed_up"] for pair in pairs.read()
            if alike.items() <= pair.items() and 8 <= pair.get("billions", 0) < 8.1
            and pair["fairness"] != "doubtful" and "compile" in pair
            and "tensor_parallel" not in pair and pair["gpu"] != "MI300X"]  # fmt: skip
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"{min(fair):.2f} to {max(fair):.2f} times the tokens/s" in readme
    assert f"{median(fair):.2f} in the median" in readme and len(fair) == 12


def test_what_is_kept_is_what_the_pairs_give():
    """The fitted factors, and the errors of left-out sources."""
    facts, left_out = fit.fitted()
    kept = json.loads(FITTED.read_text(encoding="utf-8"))
    assert kept["factors"] == pytest.approx(facts["factors"], rel=0.01)
    assert kept["half_width"] == pytest.approx(facts["half_width"], abs=1e-3)
    assert kept["near"] == facts["near"], "stale: run `make readme`"
    assert kept["mean_absolute_error"] < 0.042
    assert 0.75 <= kept["inside"] <= 0.92
    for pair in left_out:
        won = pair["speed_up"] > 1
        surely = abs(math.log(pair["predicted"])) > kept["half_width"]
        assert won == (pair["predicted"] > 1) or not surely, pair["name"]


def test_pairs_of_another_file_are_tried(tmp_path, capsys):
    content = yaml.safe_load((pairs.HERE / "speedups.yaml").read_text(encoding="utf-8"))
    content["pairs"] = [p for p in content["pairs"] if p["name"] == "course_gh200_tensorwise"]
    (tmp_path / "pairs.yaml").write_text(yaml.safe_dump(content))
    fit.main(["--try", str(tmp_path / "pairs.yaml")])
    assert capsys.readouterr().out.endswith("1 of 1 inside\n")


# ---- answers ----


def test_an_answer_needs_none_of_the_slow_libraries():
    watched = "import sys; from extensions.decide.__main__ import main; main(sys.argv[1:]); "
    watched += "print({'torch', 'scipy', 'pandas', 'numpy'} & set(sys.modules), file=sys.stderr)"
    command = [sys.executable, "-c", watched, "llama3.1-8B", "--gpu", "h200"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "set()" and done.stdout.startswith("YES: ")


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        ("8B --gpu h100-sxm --gpus 8 --seq-len 8192 --tokens 100B", "YES"),
        ("70B --gpu h100 --gpus 256 --seq-len 8192", "YES"),
        ("7B --gpu 'NVIDIA GH200 120GB'", "YES"),
        ("8B --gpu a100 --gpus 8 --steps 1M", "NO"),
        ("8B --gpu h100 --gpus 8 --steps 10", "NO"),
        ("1B --gpu h100", "MEASURE FIRST"),
        ("1B --gpu h100 dim=128 n_heads=2 n_kv_heads=2 hidden_dim=256", "MEASURE FIRST"),
        ("8B --gpu rtx-5090 --gpus 8", "YES"),
        ("8B --gpu rtx-5090", "DOES NOT FIT"),
        ("8B --gpu h100 --freeze w1 w2 w3", "MEASURE FIRST"),
    ],
)
def test_four_answers(ask, words, verdict):
    answer = ask(words)
    assert answer["verdict"] == verdict
    assert (answer["measure"] is not None) == (verdict == "MEASURE FIRST")
    assert decide.text(answer).startswith(f"{verdict}: ")
    for key in ("speedup", "memory_gib", "step_s", "hours", "nearest", "fitted_to"):
        assert key in answer
    assert set(answer["speedup"]) == {"tensorwise", "rowwise"}


def test_the_range_holds_the_study_that_it_repeats_and_doubles_outside(ask):
    value, low, high = ask("8B-published --gpu gh200")["speedup"]["tensorwise"]
    assert low < 10898 / 8777 < high and low < value < high
    unseen = ask("405B --gpu h100 --gpus 512 --recompute full")["speedup"]["tensorwise"]
    assert unseen[2] / unseen[1] == pytest.approx((high / low) ** 2)


def test_time_and_cost_carry_the_range(ask):
    answer = ask("8B --gpu h200 --gpus 2 --steps 1000 --price 3")
    for name, (value, low, high) in answer["hours"].items():
        assert low < value < high
        assert answer["cost"][name] == pytest.approx([6 * value, 6 * low, 6 * high])


def test_frozen_weights_need_less_memory_and_recomputation_too(ask):
    whole, frozen, again = (
        ask(f"8B --gpu h200 {words}") for words in ("", "--freeze w1 w2", "--recompute full")
    )
    assert frozen["memory_gib"] < whole["memory_gib"] - 10
    assert again["memory_gib"] < whole["memory_gib"] and again["recompute"] == "full"


COMMAND = r"\.venv/bin/python -m extensions\.decide"


@pytest.mark.parametrize("page", [ROOT / "README.md", pairs.HERE / "README.md"])
def test_pages_show_what_the_command_prints(page, capsys):
    for block in page.read_text(encoding="utf-8").split("\n\n"):
        for example in re.findall(
            r"^    \$ \.venv/bin/python -m extensions\.decide .*", block, re.M
        ):
            words = shlex.split(example.split("decide ")[1], comments=True)
            assert decide.main(words) == 0
            printed = capsys.readouterr().out.splitlines()
            lines = [line[4:] for line in block.splitlines()]
            shown = lines[lines.index(example[4:]) + 1 :]
            shown = shown[: shown.index("")] if "" in shown else shown
            assert printed[: len(shown)] == shown, f"stale: {example}"


# ---- what people type ----


def test_names_as_people_write_them():
    for flavor, names in {
        "llama3.1-8B": "8b 8B llama3-8B Llama-3.1-8B meta-llama/Llama-3.1-8B-Instruct",
        "llama3.1-70B": "70B llama-3.1-70b Llama-3.3-70B",
        "llama2-7B": "7B llama-2-7b meta-llama/Llama-2-7b-hf",
        "llama2-13B": "13B Llama-2-13b-chat-hf",
        "qwen2.5-7B": "qwen2.5-7B Qwen/Qwen2.5-7B-Instruct",
        "qwen3-8B": "Qwen3-8B qwen3-8b",
        "mistral-7B": "mistralai/Mistral-7B-v0.3",
    }.items():
        for name in names.split():
            assert model([name])[1] == model([flavor])[1], name
    assert [number(text) for text in ("300", "100k", "1.5T")] == [300, 1e5, 1.5e12]
    assert whole("2M") == 2_000_000


def test_the_table_of_models_is_that_of_the_recipes():
    flavors = [flavor for each in architectures() for flavor in each.flavors.items()]
    for name, args in flavors:
        if name in NAMED["models"]:
            sizes = model([name])[1]
            assert all(getattr(args, field) == value for field, value in vars(sizes).items()), name


def test_a_recipe_has_sizes_too():
    assert model(["baseline"])[1].vocab_size == 131072


CONFIGS = {
    "qwen2": ("1.54", [1536, 28, 12, 2, None, 8960, 151936, True]),  # Qwen2.5-1.5B
    "qwen3": ("8.19", [4096, 36, 32, 8, 128, 12288, 151936, False]),  # Qwen3-8B
    "llama": ("1.71", [2048, 24, 32, 32, None, 8192, 49152, True]),  # SmolLM2-1.7B
    "mistral": ("12.2", [5120, 40, 32, 8, 128, 14336, 131072, False]),  # Mistral-Nemo
    "gemma": ("8.54", [3072, 28, 16, 16, 256, 24576, 256000, None]),  # Gemma-7B
    "gemma2": ("9.24", [3584, 42, 16, 8, 256, 14336, 256000, None]),  # Gemma-2-9B
    "phi3": ("14.7", [5120, 40, 40, 10, None, 17920, 100352, False]),  # Phi-4
    "phi": ("2.78", [2560, 32, 32, 32, None, 10240, 51200, False]),  # Phi-2
    "gpt_neox": ("6.86", [4096, 32, 32, None, None, 16384, 50432, False]),  # Pythia-6.9B
    "olmo2": ("7.3", [4096, 32, 32, 32, None, 11008, 100352, False]),  # OLMo-2-7B
}
KEYS = [
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "tie_word_embeddings",
]


@pytest.mark.parametrize("family", CONFIGS)
def test_models_of_other_families_by_their_config(family, tmp_path, ask):
    billions, values = CONFIGS[family]
    config = {key: value for key, value in zip(KEYS, values, strict=True) if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": family}))
    answer = ask(f"{tmp_path / 'config.json'} --gpu b200 --gpus 8")
    assert answer["billions"] == pytest.approx(float(billions), rel=0.01)


# Beside `8B --gpu h100`
WRONG_WORDS = """
--gpus 0 | --gpus -1 | --gpus 1.5 | --gpus inf | --batch 0 | --batch -2
--batch nan | --batch 0.5 | --batch inf | --seq-len 0 | --seq-len -1 | --seq-len many
--steps 0 | --steps -5 | --steps nan | --steps 1e999 | --tokens 0 | --tokens -1B | --tokens inf
--tokens 1e400 | --steps 5 --tokens 1B | --price 0 | --price -3 | --price nan | --price inf
--price two | --recompute some | --freeze | --freeze nothing | --freez w1 | --tensor-parallel 4
--tensor-parallel=2 | --tp 2 | --lr 1 | dim= | dim=0 | dim=-5 | dim=1.5 | dim=inf | dims=5 | =5
compile.enable=false | n_kv_heads=3 | n_heads=99999999 | dim=1e99 | --first-step 3 | --verbose
--gpus two | --batch 1k5 | --json=yes | enable_weight_tying=1
--freeze wq wk wv wo w1 w2 w3 output tok_embeddings
"""
WRONG = """
8B | 8B --gpu | 8B --gpu rtx9000 | 8B --gpu "" | --gpu h100 | 9B --gpu h100
llama-9-7b --gpu h100 | 8B 1B --gpu h100 | dim=512 --gpu h100
dim=512 n_layers=2 n_heads=8 --gpu h100 | nowhere.json --gpu h100 | . --gpu h100
tests/bad_files/file --gpu h100 | nowhere.yaml --gpu h100 | qwen3-30B-A3B --gpu h100
"""


def cases(text: str) -> list[str]:
    """Split a list of cases."""
    return [case.strip() for case in text.replace("\n", "|").split("|") if case.strip()]


@pytest.mark.parametrize("words", cases(WRONG_WORDS))
def test_a_wrong_option_ends_in_a_sentence(words, fails):
    assert fails(decide.main, "8B", "--gpu", "h100", *shlex.split(words))


@pytest.mark.parametrize("words", cases(WRONG))
def test_a_wrong_command_line_ends_in_a_sentence(words, fails):
    assert fails(decide.main, *shlex.split(words))


@pytest.mark.parametrize(
    "wrong",
    ["[]", "{", "{}", '{"model_type": "mamba"}', '{"model_type": "llama", "num_experts": 8}',
     '{"model_type": "llama", "hidden_size": "x"}', '{"kv_lora_rank": 512}'],
)  # fmt: skip
def test_a_wrong_config_ends_in_a_sentence(wrong, tmp_path, fails):
    (tmp_path / "config.json").write_text(wrong)
    assert fails(decide.main, str(tmp_path), "--gpu", "h100")


def test_help_ends_well(capsys):
    assert code_of(lambda: decide.main(["--help"])) == 0
    assert "--json" in capsys.readouterr().out
