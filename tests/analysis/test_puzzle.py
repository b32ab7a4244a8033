"""The one-GPU puzzle: who owns which weight, what may be asked for, and what the runs are taken to
say."""

import pytest

from analysis import puzzle
from analysis.load import load, steps
from experiments.config import recipes
from experiments.training.plan import plan
from models.errors import InputError
from tests.make_runs import metrics_lines, write_run
from tests.runs import TINY

LINEARS = {
    f"layers.{layer}.{name}.weight"
    for layer in range(4)
    for name in ("attention.wq", "attention.wk", "attention.wv", "attention.wo",
                 "feed_forward.w1", "feed_forward.w2", "feed_forward.w3")
}  # fmt: skip


def recipe(name, *keys):
    return recipes.load(name, ["cpu"], [*TINY, "training.steps=1", *keys])


def proof_of_a_step(trainer) -> tuple[dict, set[str]]:
    """A trainer's proof, and the names of what its optimizer owns."""
    owned = {
        id(p) for group in trainer.optimizers.optimizers[0].param_groups for p in group["params"]
    }
    names = {name for name, p in trainer.model_parts[0].named_parameters() if id(p) in owned}
    return trainer.proof.record(), names


# ---- the runs ----


def test_optimizer_built_first_does_not_own_what_is_converted(train):
    record, owned = proof_of_a_step(train(recipe("puzzle_fp8_optimizer_first").config)[0])
    parameters = record.parameters.model_dump()
    assert not owned & LINEARS and "tok_embeddings.weight" in owned
    assert set(parameters["orphans"]) == set(parameters["still_in_first_step"]) == LINEARS
    assert (
        parameters["trainable"],
        parameters["in_optimizer"],
        parameters["moved_in_first_step"],
    ) == (39, 11, 2)
    assert len(record.converted_modules) == len(LINEARS)


def test_optimizer_built_last_owns_and_moves_all(train):
    record, owned = proof_of_a_step(train(recipe("puzzle_fp8_optimizer_last").config)[0])
    parameters = record.parameters.model_dump()
    assert (
        owned > LINEARS
        and len(owned) == parameters["in_optimizer"] == parameters["trainable"] == 39
    )
    assert parameters["orphans"] == parameters["still_in_first_step"] == []
    assert (
        parameters["moved_in_first_step"] == 30
    )  # bf16 norm weights of 1 cannot take so small a step


def test_frozen_weights_are_the_orphans(train):
    record, owned = proof_of_a_step(train(recipe("puzzle_bf16_frozen").config)[0])
    assert set(record.parameters.frozen) == LINEARS
    assert not owned & LINEARS and len(owned) == record.parameters.trainable == 11


# ---- what is still refused ----


def test_new_parameters_without_fsdp_are_refused_in_other_recipes():
    with pytest.raises(InputError, match="needs FSDP over two or more processes"):
        plan(recipe("tensorwise_fp8_allgather"), world_size=1)


def test_a_pattern_that_freezes_nothing_is_an_error_ahead():
    with pytest.raises(
        InputError,
        match=r"model.freeze: `layers.\*.wq` matches no parameter; .*attention.wq.weight",
    ):
        plan(recipe("puzzle_bf16_frozen", "model.freeze=['layers.*.wq']"))


# ---- what is concluded ----

HIGHER = {"puzzle_fp8_optimizer_first": 1.0, "puzzle_bf16_frozen": 1.0}
ORPHANS = {"puzzle_fp8_optimizer_first": ["a", "b"]}
ALL = [
    "baseline",
    "puzzle_fp8",
    "puzzle_fp8_optimizer_last",
    "puzzle_fp8_optimizer_first",
    "puzzle_bf16_frozen",
]


def concluded(folder, higher=HIGHER, orphans=ORPHANS, recipes=ALL):
    """The conclusion from one run a recipe: its loss is that much higher, its optimizer lacks those
    of 10 tensors."""
    for name in recipes:
        lines = [
            line | {"losses": [loss + higher.get(name, 0) for loss in line["losses"]]}
            for line in metrics_lines()
        ]
        lost, frozen = orphans.get(name, []), ["a", "b"] if name == puzzle.FROZEN else []
        owned = 10 - len(lost) - len(frozen)
        parameters = {"trainable": 10 - len(frozen), "in_optimizer": owned, "elements_in_optimizer": 10 * owned,
                      "orphans": lost, "frozen": frozen, "moved_in_first_step": owned,
                      "still_in_first_step": lost}  # fmt: skip
        write_run(folder / name / "seed0", name, lines=lines, parameters=100,
                  proves={"parameters": parameters})  # fmt: skip
    frames = load(folder)
    return puzzle.conclusion(frames.runs, steps(frames.windows))


def test_explained_where_each_follows_what_its_optimizer_owns(tmp_path):
    first, second, *facts = concluded(tmp_path)
    assert first.startswith("At batch 1 on one device FP8 learns as bf16 does")
    assert "then 2 of them, 20% of all parameters, are never stepped" in second
    assert any(
        fact.startswith("puzzle_fp8_optimizer_first follows puzzle_bf16_frozen: ") for fact in facts
    )
    assert any(fact.startswith("puzzle_fp8 follows baseline: ") for fact in facts)


@pytest.mark.parametrize(
    "changed",
    [
        {"higher": {"puzzle_bf16_frozen": 1.0}},  # the wrong order costs nothing
        {"higher": HIGHER | {"puzzle_fp8": 1.0}},  # FP8 itself does not learn
        {"higher": HIGHER | {"puzzle_fp8_optimizer_first": 0.5}},  # follows neither
        {"orphans": {"puzzle_fp8_optimizer_first": ["a"]}},  # not the weights that were frozen
        {"recipes": [name for name in ALL if name != "puzzle_fp8_optimizer_first"]},
    ],
)
def test_not_explained_otherwise(tmp_path, changed):
    assert concluded(tmp_path, **changed)[0].startswith("These runs do not explain the report")


def test_no_answer_without_the_frozen_run(tmp_path):
    (said,) = concluded(tmp_path, recipes=ALL[:-1])
    assert said == "No answer: it needs a completed run of puzzle_bf16_frozen."
