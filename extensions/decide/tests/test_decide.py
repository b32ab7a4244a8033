"""Should this training be in FP8? The data, what is fitted to it, and the command's answers."""

import json
import re
import shlex
import sys

import pandas as pd
import pytest

from experiments.config import recipes
from extensions.decide import __main__ as decide
from extensions.decide import answer, read
from extensions.decide.model import sizes
from extensions.decide.tests import fit
from extensions.decide.tests.fit import HERE
from models.architectures import architectures, model_args
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


def test_the_readme_says_what_the_pairs_say():
    readme, pairs, fair = words_of(ROOT / "README.md"), fit.published(), fit.calibrating()
    table = re.findall(r"\| \*\*([\d.]+)\*\* \|", readme)
    assert table and set(table) <= set(pairs.speed_up.map("{:.2f}".format))
    assert f"{len(pairs)} published pairs" in readme
    of_8b = fair.billions.between(8, 8.1) & (fair.scaling == "tensorwise")
    gains = fair[of_8b & (fair.gpu != "mi300x")].speed_up
    assert (
        f"{gains.min():.2f} to {gains.max():.2f} times the tokens/s of compiled bf16, "
        f"{gains.median():.2f} in the median"
    ) in readme


FIGURES = (
    "{pairs} pairs of {sources} sources. Predicted from the other sources, a pair is off by "
    "{mean_error:.1%} in the mean, and {inside} of {pairs} lie in the range, which is "
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
3B --gpu h100 --batch 2 --seq-len 256 --gpus 8: NO
1B --gpu h100: MEASURE FIRST
1B --gpu h100 dim=128 n_heads=2 n_kv_heads=2 hidden_dim=256: MEASURE FIRST
8B --gpu rtx-5090: DOES NOT FIT
8B --gpu h100 --freeze w1 w2 w3: MEASURE FIRST
"""


@pytest.mark.parametrize("line", ANSWERS.strip().splitlines())
def test_four_answers(ask, line):
    words, verdict = line.split(": ")
    found = ask(words)
    assert found["verdict"] == verdict
    assert ("experiments.study" in found["why"]) == (verdict == "MEASURE FIRST")
    assert {"memory_gib", "step_s", "hours", "nearest", "fitted_to"} < set(found)
    assert set(found["speedup"]) == {"tensorwise", "rowwise"}


def test_a_near_pair_that_disagrees_is_measured_first(ask, monkeypatch):
    hopper = read("fitted.yaml")["Hopper"] | {"told": [[8e9, 0.9]]}
    monkeypatch.setattr(answer, "read", lambda name: {"Hopper": hopper})
    found = ask("8B --gpu h100 --gpus 8")
    assert found["verdict"] == "MEASURE FIRST" and found["speedup"]["tensorwise"][1] > 1


def test_the_command_that_measures_is_one_of_ours(ask):
    pytest.importorskip("extensions.sharded")
    words = shlex.split(ask("1B --gpu h100 --gpus 64")["why"], comments=True)
    keys = words[words.index("no_recompute") + 1 :]
    config = recipes.load("baseline_compiled", ["no_recompute"], keys).config
    assert model_args(config).dim == 2048 and config.training.steps == 60


def test_the_range_doubles_outside_of_the_pairs(ask):
    value, low, high = ask("8B-published --gpu gh200")["speedup"]["tensorwise"]
    assert low < 10898 / 8777 < high and low < value < high
    for elsewhere in ("405B --gpu h100 --gpus 512", "1B --gpu l40s"):
        _, lower, higher = ask(elsewhere)["speedup"]["tensorwise"]
        assert higher / lower == pytest.approx((high / low) ** 2)


def test_cost_carries_the_range_of_hours_and_frozen_weights_need_less_memory(ask):
    words = "8B --gpu h200 --gpus 2 --steps 1000 --price 3"
    found, frozen = ask(words), ask(f"{words} --freeze w1 w2")
    hours = found["hours"]["tensorwise"]
    assert hours[1] < hours[0] < hours[2]
    assert found["cost"]["tensorwise"] == pytest.approx([6 * value for value in hours])
    assert frozen["memory_gib"] < found["memory_gib"] - 3


@pytest.mark.parametrize("page", [ROOT / "README.md", HERE / "README.md"])
def test_pages_show_what_the_command_prints(page, capsys):
    text = page.read_text(encoding="utf-8")
    command = r"^    \$ \.venv/bin/python -m extensions\.decide (.*)\n    (.*)"
    for words, shown in re.findall(command, text, re.MULTILINE):
        assert decide.main(shlex.split(words, comments=True)) == 0
        assert capsys.readouterr().out.splitlines()[0] == shown


# ---- what people type ----


NAMES = """
llama3.1-8B 8b 8B llama3-8B Llama-3.1-8B meta-llama/Llama-3.1-8B-Instruct
llama3.1-70B 70B llama-3.1-70b Llama-3.3-70B
llama2-7B 7B llama-2-7b meta-llama/Llama-2-7b-hf
llama2-13B 13B Llama-2-13b-chat-hf
qwen2.5-7B Qwen/Qwen2.5-7B-Instruct
mistral-7B mistralai/Mistral-7B-v0.3
8B-published baseline
"""


@pytest.mark.parametrize("names", NAMES.strip().splitlines())
def test_names_as_people_write_them(names):
    assert len({sizes([name]) for name in names.split()}) == 1


def test_the_table_of_models_is_that_of_the_recipes():
    for architecture in architectures():
        for name in architecture.flavors:
            if not re.search("cpu|A3B", name):  # a miniature; experts
                for size, known in vars(sizes([name])).items():
                    assert getattr(architecture.flavors[name], size) == known


CONFIGS = json.loads((HERE / "tests" / "configs.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("family", CONFIGS)
def test_models_of_other_families_by_their_config(family, tmp_path):
    known = CONFIGS[family]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(known["config"]))
    assert sizes([str(path)]).parameters() == pytest.approx(known["billions"] * 1e9, rel=0.01)


# Beside `8B --gpu h100`
WRONG_WORDS = """
--gpus 0 | --gpus -1 | --gpus 1.5 | --gpus inf | --batch 0 | --batch -2
--batch nan | --batch 0.5 | --batch inf | --seq-len 0 | --seq-len -1 | --seq-len many
--steps 0 | --steps -5 | --steps nan | --steps 1e999 | --tokens 0 | --tokens -1B | --tokens inf
--tokens 1e400 | --price 0 | --price -3 | --price nan | --price inf
--price two | --recompute some | --freeze | --freeze nothing | --freez w1 | --tensor-parallel 4
--tensor-parallel=2 | --tp 2 | --lr 1 | dim= | dim=0 | dim=-5 | dim=1.5 | dim=inf | dims=5 | =5 | =
compile.enable=false | vocab_size=lots | n_heads=99999999 | dim=1e99 | --first-step 3 | --verbose
--gpus two | --batch 1k5 | --json=yes | qk_norm=many | 1B | --gpu rtx9000 | --gpu ""
n_heads=8192 | n_layers=900000 | --price 1e19
"""
WRONG = """
8B | 8B --gpu | --gpu h100 | 9B --gpu h100 | llama-9-7b --gpu h100 | dim=512 --gpu h100
dim=512 n_layers=2 n_heads=8 --gpu h100 | nowhere.json --gpu h100 | . --gpu h100
tests/bad_files/file --gpu h100 | nowhere.yaml --gpu h100 | qwen3-30B-A3B --gpu h100
"""
CASES = [f"8B --gpu h100 {case}" for case in re.split(r"[|\n]", WRONG_WORDS.strip())]
CASES += re.split(r"[|\n]", WRONG.strip())


@pytest.mark.parametrize("words", CASES)
def test_a_wrong_command_line_ends_in_a_sentence(words, fails):
    assert fails(decide.main, *shlex.split(words))


WRONG_CONFIGS = """
[] | { | {} | {"model_type": "gpt2"} | {"model_type": "mixtral"} | {"model_type": ["llama"]}
{"model_type": "llama", "hidden_size": "x"} | {"model_type": "llama"}
"""


@pytest.mark.parametrize("wrong", re.split(r"[|\n]", WRONG_CONFIGS.strip()))
def test_a_wrong_config_ends_in_a_sentence(wrong, tmp_path, fails):
    path = tmp_path / "config.json"
    path.write_text(wrong)
    assert fails(decide.main, str(path), "--gpu", "h100")
