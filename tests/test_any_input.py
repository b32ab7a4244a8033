"""Whatever a user writes gives a valid result or an `InputError`: nothing else is raised, and
nothing is written."""

import json
import os
from unittest.mock import patch

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments.config import recipes, studies
from experiments.config.keys import Config
from experiments.config.rules import flat
from experiments.config.values import VALUES
from experiments.jobs.ranks import set_rank_environment
from models.errors import InputError

bounded = settings(
    max_examples=60, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
KEYS = [key for key, _ in flat(Config().to_dict())]
NUMBERS = st.integers() | st.floats() | st.sampled_from([0, -1, 1, 10**18, 1e-300, 1e300])
SCALARS = (
    st.none()
    | st.booleans()
    | NUMBERS
    | st.text(max_size=20)
    | st.sampled_from(["", ".", "..", "/x", "a/../b"])
)
VALUES_OF_ANY_TYPE = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
)
SECTIONS = st.dictionaries(st.sampled_from(KEYS + list(VALUES) * 2), VALUES_OF_ANY_TYPE, max_size=4)
WORDS = st.text(max_size=30) | st.sampled_from(
    [*recipes.names(), "cpu", "four_way", "", "..", "/", "x.yaml"]
)


def in_sections(keys: dict[str, object]) -> dict:
    """A tree of `key.path`s."""
    tree: dict = {}
    for path, value in keys.items():
        *sections, key = path.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = value
    return tree


def written(keys: dict[str, object]) -> str:
    return yaml.safe_dump(
        {"description": "x", "base": "baseline"} | in_sections(keys), allow_unicode=True
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, in which nothing but `input.yaml` may be found afterwards."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert {path.name for path in tmp_path.iterdir()} <= {"input.yaml"}


@bounded
@given(
    text=st.binary(max_size=80)
    | st.text(max_size=80).map(str.encode)
    | SECTIONS.map(written).map(str.encode)
)
def test_files_of_recipes_and_studies(folder, text):
    (folder / "input.yaml").write_bytes(text)
    try:
        recipe = recipes.load("input.yaml", ["cpu"])
    except InputError:
        pass
    else:  # and what it resolves to is the same recipe
        (folder / "input.yaml").write_text(recipes.to_yaml(recipe), encoding="utf-8")
        assert recipes.load("input.yaml").config == recipe.config
    (folder / "input.yaml").write_bytes(text)
    with pytest.raises(InputError):  # no study has a recipe's keys, or names nothing
        studies.read(folder / "input.yaml")


@bounded
@given(
    keys=st.lists(
        st.builds(
            "{}={}".format,
            st.sampled_from(KEYS) | st.text(max_size=20),
            SCALARS.map(json.dumps) | st.text(),
        )
        | st.text(max_size=40),
        max_size=3,
    ),
    seed=st.none() | st.integers(),
)
def test_keys_and_seeds_of_the_command_line(folder, keys, seed):
    try:
        config = recipes.load("baseline", ["cpu"], keys, seed).config
    except InputError:
        return
    assert all(
        rule(value) is None for key, value in flat(config.to_dict()) if (rule := VALUES.get(key))
    )


@bounded
@given(
    name=WORDS, overlays=st.lists(WORDS, max_size=2), names=st.lists(WORDS, min_size=1, max_size=3)
)
def test_names(folder, name, overlays, names):
    for load, arguments in (recipes.load, (name, overlays)), (studies.load, (names,)):
        try:
            load(*arguments)
        except InputError as error:
            assert str(error)


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


@bounded
@given(
    variables=st.dictionaries(
        st.sampled_from(["RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID",
                         "MASTER_ADDR", "MASTER_PORT"]),
        NUMBERS.map(str) | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    )
)  # fmt: skip
def test_variables_of_ranks(variables):
    alone = {
        name: value
        for name, value in os.environ.items()
        if "RANK" not in name and "SLURM" not in name
    }
    with patch.dict(os.environ, alone | variables, clear=True):
        try:
            rank, world_size = set_rank_environment()
        except InputError:
            return
        assert (
            0 <= rank < world_size
            and os.environ["MASTER_ADDR"]
            and int(os.environ["LOCAL_RANK"]) >= 0
        )
