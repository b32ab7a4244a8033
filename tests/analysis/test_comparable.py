"""What is compared of the records of two recipes' runs, what is told, and what is passed over."""

import json

import pytest

from analysis.comparable import compare_records
from analysis.study import read_study
from tests.analysis.planted import study


@pytest.fixture
def compare(tmp_path):
    """Compare the records of compiled bf16 and of tensorwise FP8, with changes and packages."""

    def call(*changes, seeds=2, **packages):
        folder = study(tmp_path / "study", "CT", range(seeds), steps=30, changes=changes)
        for name, versions in packages.items():
            text = json.dumps({"packages": versions, "diff": None})
            (folder / f"environment-{name}.json").write_text(text)
        completed = read_study(folder).completed_by_recipe
        return compare_records(completed["tensorwise_fp8_compiled"], completed["baseline_compiled"])

    return call


def of_all(recipe, **change):
    return {"runs": [f"{recipe}/*"]} | change


def test_alike_runs_differ_in_nothing(compare):
    differences = compare()
    assert not differences.forbidden and not differences.remarks and not differences.mixed_keys


@pytest.mark.parametrize(
    "change",
    [
        {"settings": {"profiling": {"enable_profiling": True}}},
        {"settings": {"comm": {"nccl_max_ctas": 4}}},
        {"settings": {"checkpoint": {"async_mode": "async"}}},
        {"variables": {"NCCL_ALGO": "Ring"}},
        {"hardware": {"vboost": 1}},
        {"proof": {"parameters": {"trainable": 9}}},
    ],
)
def test_what_can_cost_time_forbids_a_verdict(compare, change):
    usual = {"variables": {}, "hardware": {"vboost": 0}}
    assert len(compare(usual, of_all("C", **change)).forbidden) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"metrics": {"log_freq": 1}},
        {"metrics": {"enable_tensorboard": False}},
        {"checkpoint": {"interval": 7}},
        {"data": {"cache_dir": "/scratch/data"}},
    ],
)
def test_what_costs_no_time_is_told(compare, settings):
    differences = compare(of_all("C", settings=settings))
    assert not differences.forbidden and len(differences.remarks) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"settings": {"description": "again"}, "command": "again", "pid": 5},
        {"settings": {"profiling": {"save_traces_folder": "/scratch/traces"}}},
        {"variables": {"TRITON_CACHE_DIR": "/tmp/3", "CUDA_VISIBLE_DEVICES": "3"}},
    ],
)
def test_names_of_runs_and_folders_are_passed_over(compare, change):
    usual = {"variables": {}}
    differences = compare(usual, of_all("C", **change))
    assert not differences.forbidden and not differences.remarks


def test_a_file_that_several_runs_name_is_compared_and_a_log_of_one_run_is_not(compare):
    plugin = "/opt/nccl/libnccl-net.so.2"
    usual = {"variables": {}}
    differences = compare(usual, of_all("C", variables={"NCCL_NET_PLUGIN": plugin}))
    assert len(differences.forbidden) == 1 and plugin in differences.forbidden[0]
    logs = [
        {"runs": [f"{recipe}/{seed}"], "variables": {"NCCL_DEBUG_FILE": f"/tmp/{recipe}{seed}.log"}}
        for recipe in "CT"
        for seed in range(2)
    ]
    assert not compare(*logs).forbidden


@pytest.mark.parametrize(
    "change", [{"variables": {"NCCL_ALGO": "Ring"}}, {"hardware": {"vboost": 1}}]
)
def test_what_older_records_do_not_tell_is_not_compared(compare, change):
    assert not compare(of_all("C", **change)).forbidden


def test_packages_that_torch_loads_are_compared_and_others_told(compare):
    old = {"torch": "2.13.0+cu130", "nvidia-cublas": "12.9", "jupyter": "1.0"}
    new = old | {"jupyter": "1.1"}
    other_environment = of_all("C", environment="environment-1.json")
    differences = compare(other_environment, **{"0": new, "1": old})
    assert not differences.forbidden and "jupyter" in differences.remarks[0]
    differences = compare(other_environment, **{"0": old | {"nvidia-cublas": "13.1"}, "1": old})
    assert "nvidia-cublas" in differences.forbidden[0] and not differences.remarks


def test_a_lost_environment_file_stands_for_its_packages(compare):
    assert compare(of_all("C", environment="environment-1.json")).forbidden


@pytest.mark.parametrize(
    ("runs", "allowed"),
    [
        (["C/[012]", "T/[01]"], True),  # each driver in several runs of both recipes
        (["C/[0123]", "T/[01]"], False),  # one run alone had the other driver
        (["T/[01]"], False),
    ],
)
def test_records_in_unequal_shares_compare_where_both_recipes_have_the_value(
    compare, runs, allowed
):
    differences = compare({"runs": runs, "hardware": {"driver": "570.1"}}, seeds=5)
    assert differences.mixed_keys == (["hardware.driver"] if allowed else [])
    assert bool(differences.forbidden) != allowed


def test_code_that_was_edited_between_runs_forbids_a_verdict_with_a_sentence(compare):
    edited = {"git": {"commit": "c", "changes": "6eff7ff7"}}
    usual = {"git": {"commit": "c", "changes": None}}
    [reason] = compare(usual, {"runs": ["C/0"]} | edited).forbidden
    assert "the code was edited" in reason and "6eff7ff7" in reason
