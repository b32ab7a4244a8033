"""What is left when an extension's folder is deleted, and what one needs."""

import re
import shutil
import sys

import pytest

import extensions
from experiments.config import keys, recipes, yaml_with_origins
from experiments.records.run import METRICS, read_log
from tests import processes
from tests.processes import ROOT
from tests.runs import SMALLEST, TINY, attempt_of, read_curve

GUIDE = ROOT / "docs/extensions.md"
KEYS = [*TINY, SMALLEST, "training.steps=2", "compile.enable=false"]


@pytest.mark.slow
def test_without_any_one_extension_the_rest_is_listed_resolved_trained_and_collected(
    tmp_path, corpus_keys
):
    copy = shutil.copytree(
        ROOT,
        tmp_path / "copy",
        ignore=shutil.ignore_patterns(".[cgv]*", "published_logs", "results", "runs"),
    )
    processes.run(
        [sys.executable, "-m", "tests.config.deleted", *KEYS, *corpus_keys], 600, cwd=copy
    )


def test_the_smallest_extension_of_the_guide_works(tmp_path, monkeypatch, run_here, corpus_keys):
    guide = GUIDE.read_text()
    for file, text in re.findall(r"`extensions/([^`\n]*)`\n\n```\w+\n(.*?)```", guide, re.DOTALL):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    for module in (keys, yaml_with_origins):
        monkeypatch.setattr(module, "EXTENSIONS", tmp_path)
    monkeypatch.setattr(extensions, "__path__", [str(tmp_path)])
    run = tmp_path / "run"
    assert run_here("baseline_ema", "--overlay", "cpu", "--out", run, *KEYS, *corpus_keys) == 0
    notes = str(attempt_of(run)["notes"])
    assert re.search(r"the average is at most \S*[1-9]\S* from the weights", notes)
    intervals = read_log(run / METRICS)
    assert [interval.step for interval in intervals] == [1, 2]
    values = [interval.model_extra["ema"]["rms"] for interval in intervals]
    assert values[0] > 0 and values[0] != values[1]
    assert read_curve(run, "ema/rms") == pytest.approx(values)


def test_the_guide_lists_the_functions_that_are_called():
    """A function that nothing calls would be dead in an extension that follows the guide."""
    pytest.importorskip("extensions.sharded")  # it calls one of them
    added, replacing = re.findall(
        r"\| function \| what it does \|\n\|---\|---\|\n((?:\|.*\n)+)", GUIDE.read_text()
    )
    functions = {*re.findall(r"^\| `(\w+)\(", replacing, re.MULTILINE)}
    assert functions == {*recipes.SINGLE_HOOKS}
    functions |= {*re.findall(r"^\| `(\w+)\(", added, re.MULTILINE)}
    sources = [*ROOT.glob("experiments/**/*.py"), *ROOT.glob("extensions/*/*.py")]
    called = set()
    for path in sources:
        calls = r'(?:find_hooks?\(|hasattr\(extension,)\s*"(\w+)"'
        called |= {*re.findall(calls, path.read_text())}
    assert functions == called
