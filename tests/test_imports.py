"""A command imports what it needs: the first process of a machine reads all of that from its disk."""

import sys

import pytest

from tests import processes

FOR_ANALYSIS = {"pandas", "scipy", "matplotlib"}


@pytest.mark.parametrize(
    ("module", "needless"),
    [
        ("experiments.run", FOR_ANALYSIS | {"torch", "torchtitan", "pyarrow", "datasets"}),
        ("experiments.study", {"torch", "torchtitan", "datasets"}),
        ("analysis.report", {"torch", "torchtitan", "datasets"}),
        ("experiments.trainer", FOR_ANALYSIS | {"datasets", "huggingface_hub", "torchvision", "transformers"}),
    ],
)
def test_what_is_not_imported(module, needless):
    line = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    assert needless.isdisjoint(processes.run([sys.executable, "-c", line]).stdout.split())


def test_torchtitans_own_loaders_can_still_be_imported():
    texts = "torchtitan.hf_datasets.text_datasets"
    line = f"import experiments.device; from {texts} import build_text_dataloader as b; b.__name__"
    processes.run([sys.executable, "-c", line])
