"""What is left when an extension's folder is deleted."""

import pytest

from experiments.config import recipes, studies
from tests.processes import ROOT

FOLDERS = sorted(path.parent for path in ROOT.glob("extensions/*/__init__.py"))


@pytest.mark.parametrize("gone", FOLDERS, ids=lambda folder: folder.name)
def test_without_an_extension_all_other_recipes_and_studies_load(gone, tmp_path, monkeypatch):
    for folder in FOLDERS:
        if folder != gone:
            (tmp_path / folder.name).symlink_to(folder)
    monkeypatch.setattr(recipes, "EXTENSIONS", tmp_path)
    for name in recipes.names():
        recipes.load(name, ["cpu"])
    for name in recipes.studies():
        known = [recipes.split_variant(each)[0] for each in studies.load([name]).recipes]
        assert {*known} <= {*recipes.names()}, name
