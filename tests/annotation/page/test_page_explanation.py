"""Plain-language explanations of a pick, checked against the numbers they are made from."""

from dataclasses import replace

import pytest
from torch import Tensor

from ducats.acquisition.queries import QUERIES, QuerySpec
from ducats.acquisition.samples import QueryContext
from ducats.annotation import Question, RoundRules
from ducats.annotation.page.explanation import explain_pick

HELPS = "Your answer for this image will help the model."


def question(u_dis: float | None, u_data: float | None, probability: float | None = 0.4) -> Question:
    hints = {"probability": probability, "u_dis_quantile": u_dis, "u_data_quantile": u_data}
    return replace(Question(1, "a", "a", "a.png", guess="cat"), **hints)  # type: ignore[arg-type]


def make_rules(
    query: str = "duc", unit: str = "image", classes: tuple[str, ...] = ("cat", "dog", "cow")
) -> RoundRules:
    """Rules as a run writes them, for a built-in query or a user's own."""
    spec = QUERIES.get(query, QuerySpec(my_query))
    reason = spec.reason or spec.summary
    return RoundRules(
        1, classes, query=query, unit=unit, query_summary=reason, explained_by=spec.explained_by
    )


def my_query(context: QueryContext) -> Tensor:
    """Rank by my own score."""
    raise NotImplementedError(context)


@pytest.mark.parametrize(
    ("picked", "sentence"),
    [
        (
            question(0.9, 0.9),
            "The model has seen few images like this one, and it hesitates between cat and other classes.",
        ),
        (
            question(0.89, 0.89),
            "The model is less familiar with this image than with most others, "
            "and it is not sure of its guess (cat).",
        ),
        (question(0.5, 0.49), "The model is less familiar with this image than with most others."),
        (question(0.49, 0.5), "The model is not sure of its guess (cat)."),
        (question(0.49, 0.95), "The model hesitates between cat and other classes."),
        (question(0.95, 0.49), "The model has seen few images like this one."),
        (question(0.95, 0.95, 0.8), "The model has seen few images like this one."),
        (question(0.1, 0.1), HELPS),
        (question(None, None, None), HELPS),
    ],
)
def test_the_sentence_follows_the_percentiles(picked: Question, sentence: str) -> None:
    assert explain_pick(picked, make_rules(), blind=False) == sentence
    assert explain_pick(picked, make_rules(), blind=True) == HELPS


@pytest.mark.parametrize(
    ("rules", "sentence"),
    [
        (make_rules("random"), "This image was picked at random."),
        (make_rules("coreset", "region"), "This area differs from those that already have a label."),
        (make_rules("u_dis", "pixel"), "The model has seen few spots like this one."),
        (make_rules("u_data", classes=("cat", "dog")), "The model hesitates between cat and dog."),
        (make_rules("mine:query"), "Rank by my own score."),
    ],
)
def test_the_sentence_follows_the_query(rules: RoundRules, sentence: str) -> None:
    assert explain_pick(question(0.95, 0.95), rules, blind=False) == sentence
