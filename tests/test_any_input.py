"""Whatever a user writes gives a valid result or an `InputError`: nothing else is raised, and
nothing is written."""

import contextlib
import json

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments.config import recipes, studies
from experiments.config.keys import Config
from experiments.config.recipes import flat
from models.errors import InputError

bounded = settings(
    max_examples=60, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
KEYS = [key for key, _ in flat(Config().to_dict())]
TEXT = st.text(st.characters(exclude_categories=["C"]), max_size=20)
NUMBERS = st.integers() | st.floats() | st.sampled_from([0, -1, 1, 10**18, 1e-300, 1e300])
SCALARS = st.none() | st.booleans() | NUMBERS | TEXT | st.sampled_from(["", "..", "a/../b"])
VALUES_OF_ANY_TYPE = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
)
KEYS_AND_VALUES = st.dictionaries(st.sampled_from(KEYS), VALUES_OF_ANY_TYPE, max_size=4)
WORDS = TEXT | st.sampled_from([*recipes.names(), "cpu", "four_way", "", "..", "/", "x.yaml"])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, in which nothing but `input.yaml` may be found afterwards."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert {path.name for path in tmp_path.iterdir()} <= {"input.yaml"}


@bounded
@given(keys=KEYS_AND_VALUES)
def test_files_of_recipes_and_studies(folder, keys):
    tree = {"description": "x", "base": "baseline"} | keys
    (folder / "input.yaml").write_text(yaml.safe_dump(tree, allow_unicode=True))
    with pytest.raises(InputError):  # no study has a recipe's keys
        studies.read(folder / "input.yaml")
    try:
        recipe = recipes.load("input.yaml", ["cpu"])
    except InputError:
        return
    (folder / "input.yaml").write_text(recipes.to_yaml(recipe), encoding="utf-8")
    assert recipes.load("input.yaml").config == recipe.config


@bounded
@given(override=st.builds("{}={}".format, st.sampled_from(KEYS) | TEXT, SCALARS.map(json.dumps)))
def test_keys_of_the_command_line(folder, override):
    with contextlib.suppress(InputError):
        recipes.load("baseline", ["cpu"], [override])


@bounded
@given(
    study=st.fixed_dictionaries(
        {},
        optional={
            key: VALUES_OF_ANY_TYPE | st.lists(WORDS | NUMBERS)
            for key in studies.Study.model_fields
        },
    )
)
def test_studies(folder, study):
    (folder / "input.yaml").write_text(yaml.safe_dump(study, allow_unicode=True), encoding="utf-8")
    try:
        read = studies.read(folder / "input.yaml")
    except InputError:
        return
    assert len(list(read.runs())) == len(read.recipes) * len(read.seeds) > 0
