"""What every command says about bad input: exit code and message, as tests/messages.txt has them.

`python -m tests.test_messages` writes that file anew, so that a rewording is one diff. A case is a
line as a user types it after `python -m`, in a folder with the `FILES` below and a small corpus.
What argparse prints before `error:` is left out: it depends on Python's version.
"""

import contextlib
import importlib
import io
import os
import re
import shlex
import tempfile
from pathlib import Path
from unittest.mock import patch

import pytest

from experiments.config import recipes
from models import device
from tests.make_corpus import words, write_parquet, write_tokenizer
from tests.processes import ROOT

SNAPSHOT = ROOT / "tests/messages.txt"
STUDY = "description: x\nrecipes: [baseline]\nbaseline: baseline\nseeds: [0]\noverlays: [cpu]\n"
FILES = {
    "file": "",
    "thesis/thesis.tex": "",
    "empty/.keep": "",
    "other_study/study.yaml": STUDY,
    "unknown_flavor/study.yaml": STUDY + "axes: {model: {flavor: [qwen3-cpuu]}}\n",
    "no_axis/study.yaml": STUDY + "axes: {training: {steps: [1]}}\n",
    "zero/study.yaml": STUDY + "axes: {processes: [0]}\n",
    "wrong_study/study.yaml": "description: x\nrecipes: baseline\nbaseline: b\nseedz: [0]\n",
    "torn.yaml": "description: x\nbase: baseline\ntraining: {steps: [\n",
    "no_mapping.yaml": "- a\n",
    "no_description.yaml": "base: baseline\n",
    "no_base.yaml": "description: x\nbase: nowhere\n",
    "keys.yaml": "description: x\nbase: baseline\ntraning: {}\ntraining: {steps: 0, seq_len: x}\n",
    "twice.yaml": "description: x\nbase: baseline\ntraining: {steps: 1}\ntraining: {steps: 2}\n",
}
FP8 = "quantize.linear.float8"
RUN = "experiments.run baseline --overlay cpu --dry-run"
DATA = "training.dataset=parquet training.dataset_path=corpus.parquet data.cache_dir=cache"
DATA += " model.hf_assets_path=tokenizer.json training.seq_len=8"
QWEN = "model.name=qwen3 model.flavor=qwen3-cpu"
CASES = [
    # names
    "experiments.run tensorwise",
    "experiments.run baseline --overlay cpuu",
    "experiments.run nowhere.yaml",
    "experiments.recipe show rowwis",
    "experiments.data prepare baselin",
    "experiments.bench baselin",
    "experiments.bench baseline+training.stepz=3 --overlay cpu",
    "experiments.roofline tensorwise --gpu h200",
    "experiments.study four_wy",
    "experiments.study four_way baseline",
    "experiments.study ./empty",
    "experiments.study ./torn.yaml",
    "experiments.study ./nowhere",
    # files
    "experiments.run torn.yaml",
    "experiments.run no_mapping.yaml",
    "experiments.run no_description.yaml",
    "experiments.run no_base.yaml",
    "experiments.run keys.yaml",
    "experiments.run twice.yaml",
    "experiments.study wrong_study",
    "experiments.study unknown_flavor",
    "experiments.study no_axis",
    "experiments.study zero",
    # keys
    f"{RUN} training.stepz=3",
    f"{RUN} training.steps=0",
    f"{RUN} training.steps=many",
    f"{RUN} training.steps",
    f"{RUN} compile.cuda_graphs=true",
    f"{RUN} parallelism.tensor_parallel_degree=2",
    f"{RUN} {FP8}.recipe_name=tensor",
    f"{RUN} optimizer.lr=-1",
    f"{RUN} checkpoint.folder=/tmp",
    f"{RUN} checkpoint.initial_load_path=empty",
    "experiments.study baseline --overlay cpu --dry-run training.steps=0",
    # models
    f"{RUN} model.flavor=8B",
    f"{RUN} model.flavor=qwen3-8B",
    f"{RUN} model.sizes.n_heads=7",
    f"{RUN} {QWEN} model.fused_projections=true",
    f"{RUN} {QWEN} model.sizes.head_dim=15",
    f"{RUN} {QWEN} model.sizes.n_kv_heads=3",
    f"{RUN} model.name=qwen3",
    f"{RUN} model.sizes.head_dim=64",
    f"{RUN} \"model.freeze=['*.weight']\"",
    f"{RUN} checkpoint.enable=true checkpoint.initial_load_path=empty",
    f"experiments.run tensorwise_fp8_compiled --overlay cpu --dry-run {FP8}.filter_fqns=[lm_head]",
    "experiments.run tensorwise_fp8_compiled --overlay cpu --dry-run model.sizes.hidden_dim=1000",
    # this machine
    f"{RUN} comm.nccl_max_ctas=16",
    f"{RUN} model.attention_backend=cudnn",
    f"{RUN} model.flavor=llama3.1-8B training.seq_len=131072 training.local_batch_size=64",
    "CXX=none experiments.run baseline_compiled --overlay cpu --dry-run",
    f"{RUN} profiling.enable_memory_snapshot=true",
    f"STUDY_BUDGET_S=hour {RUN}",
    f"{RUN} {DATA} model.sizes.vocab_size=16",
    f"{RUN} model.hf_assets_path=./nowhere",
    f"{RUN} training.dataset=c4",
    f"{RUN} training.dataset=parquet training.dataset_path=nowhere",
    # several processes
    "experiments.run tensorwise_fp8_allgather --overlay cpu --dry-run",
    f"{RUN} --processes 2 model.fused_projections=true",
    f"{RUN} --processes 2 parallelism.data_parallel_replicate_degree=3",
    f"{RUN} --processes 2 parallelism.data_parallel_replicate_degree=2",
    f"{RUN} --processes 2 training.global_batch_size=12",
    f"{RUN} --processes 2 optimizer.built=before_conversion",
    f"{RUN} --processes 2 model.flavor=llama3.2-1B model.sizes.n_layers=1 {FP8}.filter_fqns=[] "
    f"{FP8}.recipe_name=tensorwise {FP8}.enable_fsdp_float8_all_gather=true",
    f"RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=a MASTER_PORT=1 {RUN[:-10]} {DATA}",
    f"{RUN} --processes 0",
    f"CUDA_VISIBLE_DEVICES=0,1 {RUN} --processes 3",
    f"RANK=1 {RUN}",
    f"RANK=2 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=a MASTER_PORT=1 {RUN}",
    f"RANK=1 WORLD_SIZE=2 LOCAL_RANK=first MASTER_ADDR=a MASTER_PORT=1 {RUN}",
    f"RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 {RUN}",
    f"RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 MASTER_ADDR=a MASTER_PORT=1 {RUN} --processes 2",
    f"SLURM_STEP_NUM_TASKS=8 {RUN}",
    f"SLURM_STEP_NUM_TASKS=8 SLURM_PROCID=1 SLURM_LOCALID=1 {RUN}",
    "WORLD_SIZE=4 experiments.study four_way",
    # folders and options
    f"{RUN[:-10]} {DATA} --out thesis",
    f"{RUN[:-10]} {DATA} --out file/x",
    f"experiments.study baseline --overlay cpu {DATA} --out file/x",
    f"experiments.study baseline --overlay cpu {DATA} --out thesis",
    f"experiments.study baseline --overlay cpu {DATA} --budget 3",
    f"experiments.study baseline --overlay cpu {DATA} --out other_study --seeds 1",
    "experiments.study other_study --seeds 1",
    "experiments.bench baseline --overlay cpu --steps 10",
    f"{RUN} --budget 60",
    f"{RUN} --budget nan",
    f"{RUN} --seed x",
    "experiments.study baseline --overlay cpu --seeds 0,-1",
    "experiments.study baseline --overlay cpu --seeds 1000000000000000000",
    "experiments.study four_way --gpu h200",
    # questions and reports
    "experiments.decide llama3.1-8B",
    "experiments.decide llama3.1-8B --gpu mi300x",
    "experiments.decide llama3-8B --gpu h100",
    "experiments.decide llama3.1-8B llama3.2-1B --gpu h100",
    "experiments.decide llama3.1-8B --gpu h100 --price -3",
    "experiments.decide llama3.1-8B --gpu h100 compile.enable=false",
    "experiments.roofline baseline --gpu mi300x",
    "analysis.report nowhere",
    "analysis.report empty",
]


def said(case: str) -> str:
    """Run a command in this process, in the current folder: its exit code and its message."""
    words = shlex.split(case)
    at = next(place for place, word in enumerate(words) if "=" not in word)
    variables = dict(word.split("=", 1) for word in words[:at])
    main = importlib.import_module(words[at]).main
    printed = io.StringIO()
    with (
        patch.dict(os.environ, variables),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        try:
            code = main(words[at + 1 :])
        except SystemExit as end:  # argparse's
            code = end.code
    message = printed.getvalue()
    message = message[max(0, message.find("error: ")) :].replace(os.getcwd(), "HERE")
    message = message.replace(", ".join(recipes.names()), "RECIPES")
    message = re.sub(r"of \d+ GiB", "of N GiB", message)
    return f"$ {case}\nexit {code}\n{message.rstrip()}\n"


@contextlib.contextmanager
def folder_with_files():
    """Work in a temporary folder that holds `FILES`, without the variables of ranks."""
    names = re.compile("RANK|SLURM|WORLD_SIZE|MASTER_|CUDA_VISIBLE|CXX")
    others = {name: value for name, value in os.environ.items() if not names.search(name)}
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        patch.dict(os.environ, others, clear=True),
    ):
        for name, text in FILES.items():
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_text(text)
        write_tokenizer("tokenizer.json")
        write_parquet("corpus.parquet", words(30))
        yield


@pytest.fixture(scope="module")
def messages():
    """The snapshot by case."""
    blocks = ("\n" + SNAPSHOT.read_text()).split("\n$ ")[1:]
    with folder_with_files():
        yield {block.split("\n")[0]: f"$ {block}" for block in blocks}


@pytest.mark.skipif(device.TYPE == "cuda", reason="the messages are those of a machine without GPU")
@pytest.mark.parametrize("case", CASES)
def test_message(case, messages):
    assert said(case).rstrip() == messages[case].rstrip(), (
        "if the message is meant so: python -m tests.test_messages"
    )


if __name__ == "__main__":
    with folder_with_files():
        text = "\n".join(map(said, CASES))
    SNAPSHOT.write_text(text)
