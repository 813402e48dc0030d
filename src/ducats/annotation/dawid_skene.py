"""Errors of annotators, estimated from their answers to the same questions. Imports NumPy, but not torch.

The model of Dawid and Skene (1979): each question has one true word, and each annotator confuses words with
probabilities of their own. Expectation maximisation estimates both from questions with several answers. The
prior stands for what is expected of an annotator about whom little is known: ``PRIOR_ANSWERS`` answers per
true word, right with the probability ``PRIOR_COMPETENCE``, a Dirichlet prior on each row of the confusions.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ducats.annotation.agreement import ErrorRate

Array = np.typing.NDArray[np.float64]
Words = Mapping[str, str]  # the words of the annotators who answered one question

PRIOR_COMPETENCE = 0.8  # expected share of right answers
PRIOR_ANSWERS = 2.0  # weight of the prior, in answers per annotator and true word
MAX_STEPS, TOLERANCE = 500, 1e-9


@dataclass(frozen=True)
class AnnotatorModel:
    """Frequencies of the true words, and what each annotator answers instead of each."""

    words: tuple[str, ...]
    log_frequency: Array  # (K,)
    log_confusion: Mapping[str, Array]  # (K, K) by annotator: true word, answer
    log_expected: Array  # (K, K), the same for an annotator about whom nothing is known

    def posterior(self, answers: Words) -> dict[str, float]:
        """Return the probability of each word to be the true one, given the answers to one question."""
        log = self.log_frequency.copy()
        for annotator, word in sorted(answers.items()):
            log += self.log_confusion.get(annotator, self.log_expected)[:, self.words.index(word)]
        return dict(zip(self.words, _normalise(log[None])[0].tolist(), strict=True))

    def error_rates(self, questions: Iterable[Words]) -> dict[str, ErrorRate]:
        """Return the expected share of wrong answers of each annotator, in questions with several answers."""
        errors: dict[str, list[float]] = {}
        for answers in questions:
            posterior = self.posterior(answers) if len(answers) > 1 else {}
            for annotator, word in answers.items() if posterior else ():
                errors.setdefault(annotator, []).append(1 - posterior[word])
        return {name: ErrorRate(sum(each) / len(each), len(each)) for name, each in sorted(errors.items())}


def fit_annotators(questions: Iterable[Words], words: Sequence[str]) -> AnnotatorModel:
    """Estimate the model. Questions with fewer than two answers say nothing about errors and are ignored.

    Args:
        words: all possible answers, at least two.
    """
    # Questions with the same answers have the same posterior, so they are counted and computed once.
    counts = Counter(tuple(sorted(answers.items())) for answers in questions if len(answers) > 1)
    patterns = sorted(counts)
    annotators = sorted({annotator for pattern in patterns for annotator, _ in pattern})
    index_of = {word: index for index, word in enumerate(words)}
    n, k = np.array([counts[pattern] for pattern in patterns], float), len(words)
    item = np.array([i for i, pattern in enumerate(patterns) for _ in pattern], int)
    who = np.array([annotators.index(name) for pattern in patterns for name, _ in pattern], int)
    answer = np.array([index_of[word] for pattern in patterns for _, word in pattern], int)

    prior = np.full((k, k), PRIOR_ANSWERS * (1 - PRIOR_COMPETENCE) / (k - 1))
    np.fill_diagonal(prior, PRIOR_ANSWERS * PRIOR_COMPETENCE)
    posterior = np.zeros((len(patterns), k))  # starts with the shares of the answers
    np.add.at(posterior, (item, answer), 1.0)
    posterior /= posterior.sum(axis=1, keepdims=True)
    for _ in range(MAX_STEPS):
        weight = posterior * n[:, None]
        log_frequency = _log_share(weight.sum(axis=0) + 1.0)
        given = np.zeros((len(annotators), k, k))  # annotator, answer, true word
        np.add.at(given, (who, answer), weight[item])
        log_confusion = _log_share(given.swapaxes(1, 2) + prior)
        log = np.tile(log_frequency, (len(patterns), 1))
        np.add.at(log, item, log_confusion[who, :, answer])
        before, posterior = posterior, _normalise(log)
        if np.abs(posterior - before).max(initial=0.0) < TOLERANCE:
            break
    by_name = dict(zip(annotators, log_confusion, strict=True))
    return AnnotatorModel(tuple(words), log_frequency, by_name, _log_share(prior))


def _log_share(counts: Array) -> Array:
    """Return the logarithm of the shares along the last axis."""
    log_share: Array = np.log(counts) - np.log(counts.sum(axis=-1, keepdims=True))
    return log_share


def _normalise(log: Array) -> Array:
    """Return probabilities from logarithms that are known up to a constant per row."""
    shares = np.exp(log - log.max(axis=1, keepdims=True))
    normalised: Array = shares / shares.sum(axis=1, keepdims=True)
    return normalised
