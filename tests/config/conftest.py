"""Recipes to spoil."""

import shutil

import pytest

from experiments.config import recipes, yaml_source


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A copy of recipes/ to spoil: `write("foo", text)` makes recipes/foo.yaml."""
    folder = tmp_path / "recipes"
    shutil.copytree(recipes.RECIPES, folder)
    monkeypatch.setattr(yaml_source, "ROOT", tmp_path)
    monkeypatch.setattr(recipes, "RECIPES", folder)
    monkeypatch.setattr(recipes, "OVERLAYS", folder / "overlays")

    def write(name, text):
        (folder / f"{name}.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())

    return write
