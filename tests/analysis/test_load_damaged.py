"""Run directories with damaged or hostile records: what is wrong is named, and the rest is used."""

import json
import os
from pathlib import Path

import pytest

from analysis.load import LoadError, load
from tests.make_runs import change_json, metrics_lines, write_resumed_run, write_run

RESTED_ON = ["manifest.json", "recipe.yaml", "metrics.jsonl", "timing.json", "proof.json"]
FILES = [*RESTED_ON, "summary.json", "log.txt", "tb/events.out.tfevents.1.host.1.0", "attempt1/manifest.json",
         "attempt1/metrics.jsonl", "attempt1/timing.json", "attempt1/proof.json"]  # fmt: skip
DAMAGE = {
    "deleted": Path.unlink,
    "emptied": lambda path: path.write_bytes(b""),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "garbage": lambda path: path.write_bytes(b"\xff\x00{]\n\x80" * 9),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),  # reading it would wait for ever
    "nested": lambda path: path.write_bytes(
        b"training:\n  seq_len: " * path.name.endswith("yaml") + b"[" * 100_000
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named_or_harmless(tmp_path, name, damage):
    write_run(tmp_path / "sound", seed=1)
    damaged = write_resumed_run(tmp_path / "damaged")
    before = load(tmp_path)
    DAMAGE[damage](damaged / name)
    after = load(tmp_path)
    if before.runs.equals(after.runs) and before.windows.equals(after.windows):
        assert after.problems == [] and name not in RESTED_ON
    else:
        assert any(str(damaged) in problem and name in problem for problem in after.problems), (
            after.problems
        )
        assert after.runs.query("seed == 1")["tokens_per_s"].tolist() == pytest.approx([1000])
        assert len(after.windows.query("seed == 1")) == 30


@pytest.mark.parametrize(
    "line",
    [b'{"step": 21, "elapsed_s": 4', b"[1]", b'{"step": "x"}', b'{"step": 21, "loss": 3.0}', b"null", b"[" * 100_000,
     b"1" * 5000, b"\xff", b'{"\\ud800": 1}',
     b'{"step": 21, "elapsed_s": 25, "losses": [1, 1], "tokens_per_s": 1000, "step_s": [0.1], "not_steady": []}',
     b'{"step": 21, "elapsed_s": 25, "losses": [], "tokens_per_s": 1000, "step_s": [0.1], "not_steady": [20]}',
     b'{"step": 21, "elapsed_s": 25, "losses": [], "tokens_per_s": 1e999, "step_s": [0.1], "not_steady": []}'],
)  # fmt: skip
def test_unusable_lines_are_left_out_and_the_others_used(tmp_path, line):
    run = write_run(tmp_path / "run")
    lines = (run / "metrics.jsonl").read_bytes().splitlines()
    (run / "metrics.jsonl").write_bytes(b"\n".join([*lines[:20], line, *lines[21:], b""]))
    frames = load(run)
    sentence = "lines that cannot be read are left out: 1 of 30, the first is line 21"
    assert frames.problems[0] == f"{run}/metrics.jsonl: {sentence}"
    assert frames.windows["step"].tolist() == [*range(1, 21), *range(22, 31)]
    assert frames.runs["tokens_per_s"].tolist() == pytest.approx([1000])


def test_cut_off_last_line_and_missing_end(tmp_path):
    run = write_run(tmp_path / "run", lines=metrics_lines(last=20))
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 21, "los')
    frames = load(run)
    assert frames.problems == [
        f"{run}/metrics.jsonl: the last line (line 21) is cut off and left out",
        f"{run}: short, its log ends at step 20 of 30, so it is not averaged with others",
    ]
    assert frames.runs["status"].tolist() == ["short"]


@pytest.mark.parametrize(
    ("name", "key", "value", "left_out"),
    [("timing.json", "warm_up_s", "a day", False), ("proof.json", "fp8_flops", "a day", False),
     ("proof.json", "parameters", "a day", False), ("manifest.json", "git", "a day", False),
     ("manifest.json", "parameters", "a day", False), ("manifest.json", "recipe", "", True),
     ("manifest.json", "recipe", " ", True), ("manifest.json", "seed", 10**30, True),
     ("manifest.json", "seed", "one", True), ("manifest.json", "status", 3, True), ("manifest.json", "steps", -1, True),
     ("manifest.json", "hardware", "GPU", True)],
)  # fmt: skip
def test_a_record_of_another_type_is_named_and_the_others_used(
    tmp_path, name, key, value, left_out
):
    write_run(tmp_path / "sound")
    run = write_run(tmp_path / "run")
    change_json(run / name, **{key: value})
    frames = load(tmp_path)
    of_the_record = (
        f"/{name}: {key} is of another type or size than it should be, so it is left out"
    )
    assert frames.problems == [
        f"{run}{f': its manifest.json has no usable {key}' if left_out else of_the_record}"
    ]
    assert frames.runs["tokens_per_s"].tolist() == pytest.approx(
        [1000] if left_out else [1000, 1000]
    )


BAD_VALUES = [None, "a\nb", "\ud800", -1, 1e308, 10**400, float("nan"), [[]], {"name": "x\n"}]


@pytest.mark.parametrize("name", ["manifest.json", "timing.json", "proof.json"])
def test_no_value_of_a_record_is_a_traceback_or_forges_a_line(tmp_path, name):
    run = write_run(tmp_path / "run", steps=12, git={"commit": "a", "diff": None}, packages={"torch": "2"}, attempt=1,
                    study_budget_s=1.0, fp8_product={"why": "x"}, start="2026-01-01")  # fmt: skip
    content = json.loads((run / name).read_text())
    sections = {key: value for key, value in content.items() if isinstance(value, dict)}
    for *section, key in [(key,) for key in content] + [
        (name, key) for name in sections for key in sections[name]
    ]:
        for bad in BAD_VALUES:
            changed = json.loads(json.dumps(content))
            (changed[section[0]] if section else changed)[key] = bad
            (run / name).write_text(json.dumps(changed))
            try:
                frames = load(run)
            except LoadError as error:
                texts = [str(error)]
            else:
                texts = [
                    *frames.problems,
                    *(str(value) for value in frames.runs.iloc[0]),
                    *frames.windows["recipe"],
                ]
                json.dumps(frames.runs.dropna(axis="columns").to_dict("records"), allow_nan=False)
            assert all(text.isprintable() for text in texts), (key, bad)


def test_names_are_shown_as_names(tmp_path):
    write_run(tmp_path / "a\nb" / "seed0", "tensor\nYes: FP8", error="\x1b[2J")
    write_run(tmp_path / "c")
    frames = load(tmp_path)
    assert frames.runs["recipe"].tolist()[0] == frames.windows["recipe"][0] == "tensor\\nYes: FP8"
    assert (
        frames.runs["run"].tolist() == ["a\\nb/seed0", "c"]
        and frames.runs["error"][0] == "\\x1b[2J"
    )


def test_many_problems_of_a_kind_are_summarised(tmp_path):
    write_run(tmp_path / "sound")
    for number in range(1130):
        (tmp_path / f"damaged{number}").mkdir()
        (tmp_path / f"damaged{number}" / "manifest.json").write_text("null" if number % 2 else "{")
    frames = load(tmp_path)
    assert len(frames.problems) == 4
    assert frames.problems[-1].startswith("1,127 more runs or files have the same problem")
    assert frames.runs["run"].tolist() == ["sound"]
