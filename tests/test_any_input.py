"""Whatever a user writes gives a valid result or an `InputError`: nothing else is raised."""

import contextlib
import json

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments import study as studies
from experiments.config import recipes
from experiments.config.keys import Config
from models.errors import InputError

bounded = settings(
    max_examples=60, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
KEYS = [*recipes.flatten_sections(Config().to_dict())]
ANY = st.characters(exclude_categories=[])
OF_OTHER_TYPES = st.sampled_from(["1e3", "yes", "null", "", "12", "a: b # c", "*x", "2001-01-01"])
TEXT = st.text(ANY, max_size=20) | OF_OTHER_TYPES
TAGGED = st.builds("!!{} {}".format, st.sampled_from(["int", "float", "bool", "timestamp"]), TEXT)
AS_WRITTEN = st.text(ANY | st.sampled_from("[]{}&*!:-.,\"'"), max_size=20) | TAGGED
AS_WRITTEN |= st.sampled_from(["[" * 300, "{" * 300, "9" * 5000, "!!int 0x" + "f" * 5000, '"\\0"'])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(TEXT, SCALARS, max_size=3)


@bounded
@given(keys=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4))
def test_files_of_recipes(tmp_path, keys):
    path = tmp_path / "input.yaml"
    path.write_text(yaml.safe_dump({"description": "x", "base": "baseline"} | keys), "utf-8")
    with contextlib.suppress(InputError):
        recipe = recipes.load(str(path), ["cpu"])
        path.write_text(recipes.to_yaml(recipe), encoding="utf-8")
        assert recipes.load(str(path)) == recipe


@bounded
@given(
    override=st.builds(
        "{}={}".format, st.sampled_from(KEYS) | TEXT, SCALARS.map(json.dumps) | AS_WRITTEN
    )
)
def test_keys_of_the_command_line(override):
    with contextlib.suppress(InputError):
        recipes.load("baseline", ["cpu"], [override])


@bounded
@given(
    study=st.fixed_dictionaries({}, optional=dict.fromkeys(studies.StudyPlan.model_fields, VALUES))
)
def test_studies(tmp_path, study):
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    with contextlib.suppress(InputError):
        assert studies.read_study_plan(tmp_path / "study.yaml").list_runs()
