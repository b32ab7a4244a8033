"""What is left when an extension's folder is deleted."""

import re
from types import SimpleNamespace

import pytest
import torch

import extensions
from experiments import study
from experiments.config import keys, recipes, yaml_with_origins
from tests.processes import ROOT

FOLDERS = sorted(path.parent for path in ROOT.glob("extensions/*/__init__.py"))


@pytest.mark.parametrize("gone", FOLDERS, ids=lambda folder: folder.name)
def test_without_an_extension_all_other_recipes_and_studies_load(gone, tmp_path, monkeypatch):
    for folder in FOLDERS:
        if folder != gone:
            (tmp_path / folder.name).symlink_to(folder)
    for module in (keys, yaml_with_origins):
        monkeypatch.setattr(module, "EXTENSIONS", tmp_path)
    for name in recipes.yaml_files(recipes.RECIPES):
        recipes.load(name, ["cpu"])
    for name in recipes.yaml_files(recipes.STUDIES):
        assert study.load([name])


def test_the_smallest_extension_of_the_guide_works(tmp_path, monkeypatch):
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    for file, text in re.findall(r"`extensions/([^`\n]*)`\n\n```\w+\n(.*?)```", guide, re.DOTALL):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    for module in (keys, yaml_with_origins):
        monkeypatch.setattr(module, "EXTENSIONS", tmp_path)
    monkeypatch.setattr(extensions, "__path__", [str(tmp_path)])
    recipe = recipes.load("baseline_ema", ["cpu"])
    model = torch.nn.Linear(1, 1, bias=False)
    trainer = SimpleNamespace(first_step=1, model_parts=[model], job_config=recipe.config)
    for step in (1, 2):
        for prepare in recipe.hooks("before_step"):
            prepare(trainer, step)
        model.weight.data += 1
    # after step 1 the average is 1 below, of which step 2 takes a tenth off; then 1 more
    assert recipe.hooks("notes")[0](trainer) == ["the average is at most 1.9 from the weights"]
