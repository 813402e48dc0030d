"""Errors of annotators: a slow reference, simulated annotators, and prior knowledge."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from ducats.annotation.dawid_skene import PRIOR_ANSWERS, PRIOR_COMPETENCE, fit_annotators

WORDS = ("cat", "dog", "void")
Questions = Sequence[Mapping[str, str]]


def simulate(
    confusion: Mapping[str, Sequence[Sequence[float]]], shares: Sequence[float], n: int, seed: int = 0
) -> tuple[list[dict[str, str]], list[str]]:
    """Return questions that all annotators answered, and the true words."""
    random = np.random.default_rng(seed)
    truth = random.choice(len(shares), size=n, p=shares)
    questions = [
        {name: WORDS[random.choice(len(WORDS), p=rows[true])] for name, rows in confusion.items()}
        for true in truth
    ]
    return questions, [WORDS[true] for true in truth]


def reference_posteriors(questions: Questions, words: Sequence[str]) -> list[dict[str, float]]:
    """Return the posterior of each question by the textbook's loops, with products of probabilities."""
    off = PRIOR_ANSWERS * (1 - PRIOR_COMPETENCE) / (len(words) - 1)
    names = {name for answers in questions for name in answers}
    posteriors = [
        {word: sum(one == word for one in answers.values()) / len(answers) for word in words}
        for answers in questions
    ]
    for _ in range(2000):
        frequency = {word: (1 + sum(p[word] for p in posteriors)) for word in words}
        total = sum(frequency.values())
        rate: dict[tuple[str, str, str], float] = {}  # annotator, true word, answer
        for name in names:
            for true in words:
                for given in words:
                    prior = PRIOR_ANSWERS * PRIOR_COMPETENCE if true == given else off
                    seen = (
                        p[true] for p, q in zip(posteriors, questions, strict=True) if q.get(name) == given
                    )
                    rate[name, true, given] = prior + sum(seen)
                row = sum(rate[name, true, given] for given in words)
                for given in words:
                    rate[name, true, given] /= row
        for posterior, answers in zip(posteriors, questions, strict=True):
            for word in words:
                likelihood = math.prod(rate[name, word, given] for name, given in answers.items())
                posterior[word] = frequency[word] / total * likelihood
            scale = sum(posterior.values())
            for word in words:
                posterior[word] /= scale
    return posteriors


def test_the_posteriors_are_those_of_a_slow_reference() -> None:
    confusion = {
        "ada": [[0.9, 0.08, 0.02], [0.1, 0.85, 0.05], [0.1, 0.1, 0.8]],
        "ben": [[0.6, 0.3, 0.1], [0.3, 0.6, 0.1], [0.2, 0.2, 0.6]],
        "eve": [[0.8, 0.1, 0.1], [0.05, 0.9, 0.05], [0.3, 0.3, 0.4]],
    }
    questions, _ = simulate(confusion, (0.5, 0.3, 0.2), 40)
    for number, answers in enumerate(questions):  # not everybody answers everything
        if number % 3:
            del answers[("ada", "ben", "eve")[number % 3]]
    model = fit_annotators(questions, WORDS)
    for answers, expected in zip(questions, reference_posteriors(questions, WORDS), strict=True):
        found = model.posterior(answers)
        assert [found[word] for word in WORDS] == pytest.approx([expected[word] for word in WORDS], abs=1e-6)
    again = fit_annotators(reversed([dict(reversed(one.items())) for one in questions]), WORDS)
    assert again.log_frequency.tolist() == model.log_frequency.tolist()  # the order does not matter


def test_known_confusions_are_recovered_and_a_good_annotator_outvotes_two_bad_ones() -> None:
    good = [[0.97, 0.02, 0.01], [0.02, 0.97, 0.01], [0.01, 0.02, 0.97]]
    bad = [[0.7, 0.2, 0.1], [0.15, 0.75, 0.1], [0.1, 0.2, 0.7]]
    questions, truth = simulate({"ada": good, "ben": bad, "eve": bad}, (0.4, 0.4, 0.2), 3000, seed=1)
    model = fit_annotators(questions, WORDS)
    assert np.exp(model.log_confusion["ada"]) == pytest.approx(np.array(good), abs=0.05)
    assert np.exp(model.log_confusion["ben"]) == pytest.approx(np.array(bad), abs=0.05)
    errors = model.error_rates(questions)
    for name in ("ada", "ben", "eve"):
        wrong = np.mean([answers[name] != true for answers, true in zip(questions, truth, strict=True)])
        assert errors[name].share == pytest.approx(wrong, abs=0.03)
        assert errors[name].answers == 3000
    posterior = model.posterior({"ada": "cat", "ben": "dog", "eve": "dog"})
    assert max(posterior, key=posterior.__getitem__) == "cat"


def test_without_data_an_annotator_is_right_as_often_as_expected() -> None:
    model = fit_annotators([{"ada": "cat"}, {"ben": "dog"}], WORDS)  # no question has two answers
    assert model.log_confusion == {}
    assert model.posterior({"ada": "cat"}) == pytest.approx({"cat": 0.8, "dog": 0.1, "void": 0.1})
    agreed = model.posterior({"ada": "cat", "ben": "cat"})["cat"]
    assert agreed == pytest.approx(0.64 / (0.64 + 2 * 0.01))
    halves = model.posterior({"ada": "cat", "ben": "dog"})
    assert halves["cat"] == pytest.approx(halves["dog"])
    assert model.error_rates([{"ada": "cat"}]) == {}


def test_many_annotators_do_not_underflow() -> None:
    crowd = {f"a{n}": "cat" if n % 2 else "dog" for n in range(2001)}
    posterior = fit_annotators([], WORDS).posterior(crowd)
    assert posterior["dog"] == pytest.approx(8 / 9)  # one more answer: 0.8 to 0.1
