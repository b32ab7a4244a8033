"""What every command says about bad input: exit code and message, as tests/messages.txt has them,
and extensions/*/tests/messages.txt.

A case is a line `$ …` of such a file: what a user types after `python -m`, in a folder with the
files of tests/bad_files and a small corpus. `python -m tests.test_messages` writes the files anew,
so that a rewording is one diff.
"""

import contextlib
import importlib
import os
import re
import shlex
import shutil
import tempfile
from itertools import chain
from pathlib import Path
from unittest.mock import patch

import pytest

from experiments.config.yaml_with_origins import LIST_COMMAND
from models import device
from models.architectures import list_architectures
from models.errors import PYTHON
from tests.make_corpus import words, write_parquet, write_tokenizer
from tests.processes import ROOT
from tests.runs import call

SNAPSHOTS = [ROOT / "tests/messages.txt", *sorted(ROOT.glob("extensions/*/tests/messages.txt"))]


def messages_of(snapshot: Path) -> dict[str, str]:
    """Each case of a file with its exit code and message, by its line."""
    blocks = snapshot.read_text()[2:].split("\n\n$ ")
    return {block.split("\n")[0]: block.rstrip() for block in blocks}


MESSAGES = dict(chain.from_iterable(messages_of(file).items() for file in SNAPSHOTS))


def said(case: str) -> str:
    """Run a command in this process, in the current folder: the case, its exit code and message."""
    variables, command, words = re.fullmatch(r"((?:\w+=\w+ )*)(\S+) ?(.*)", case).groups()
    with patch.dict(os.environ, dict(each.split("=") for each in variables.split())):
        code, message = call(importlib.import_module(command).main, *shlex.split(words))
    message = message[max(0, message.find("error: ")) :].replace(os.getcwd(), "HERE")
    flavors = [flavor for each in list_architectures() for flavor in each.flavors]
    message = message.replace(", ".join(flavors), "FLAVORS")
    message = re.sub(r"of [\d.]+ GiB", "of N GiB", message)
    message = message.replace(PYTHON, ".venv/bin/python")
    # few recipes are left without extensions, and so all are named
    list_command = LIST_COMMAND.replace(PYTHON, ".venv/bin/python")
    message = re.sub(r"choose [^)]*\bbaseline\b[^)]*", f"{list_command} has all", message)
    # a library's words
    message = re.sub(r"\((\w+Invalid|HF\w+|Exception): .*?\)(?=:)", r"(\1)", message)
    return f"{case}\nexit {code}\n{message.rstrip()}"


@contextlib.contextmanager
def folder_with_files():
    """Work in a temporary folder with the bad files, without the variables of ranks."""
    names = re.compile("RANK|SLURM|PET_|WORLD_SIZE|MASTER_|CUDA_VISIBLE|CXX")
    others = {name: value for name, value in os.environ.items() if not names.search(name)}
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        patch.dict(os.environ, others, clear=True),
    ):
        shutil.copytree(ROOT / "tests/bad_files", ".", dirs_exist_ok=True)
        write_tokenizer("tokenizer.json")
        write_parquet("corpus.parquet", words(30))
        yield


@pytest.fixture(scope="module")
def folder():
    with folder_with_files():
        yield


@pytest.mark.skipif(device.TYPE == "cuda", reason="the messages are those of a machine without GPU")
@pytest.mark.parametrize("case", MESSAGES)
def test_message(case, folder):
    now = said(case)
    if re.search(
        r"=\S+: \w+: neither the core nor an extension has this key",
        now.replace(MESSAGES[case], ""),
    ):
        pytest.skip("needs another extension")
    assert now == MESSAGES[case], "if it is meant so: python -m tests.test_messages"


if __name__ == "__main__":
    with folder_with_files():
        for file in SNAPSHOTS:
            file.write_text("$ " + "\n\n$ ".join(map(said, messages_of(file))) + "\n")
