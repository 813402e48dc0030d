"""Agreement of annotators beyond chance."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from typing import NamedTuple

Z_95 = 1.959964  # quantile of the normal distribution for an interval of 95 %


@dataclass(frozen=True)
class Agreement:
    """Agreement on the questions that several annotators answered independently.

    With two annotators, kappa is Cohen's; with more it is Conger's, which averages observed and chance
    agreement over the pairs, each weighted by its number of common questions. It is None if only one word was
    used. The interval is Wilson's for the observed agreement, with the chance agreement taken as known; its n
    is the number of questions, not of pairs.
    """

    annotators: int
    questions: int
    observed: float  # share of equal answers
    kappa: float | None
    interval: tuple[float, float] | None

    def __str__(self) -> str:
        questions = f"{self.questions} {'question' if self.questions == 1 else 'questions'}"
        text = f"agreement on {questions} answered independently: {100 * self.observed:.0f} %"
        if self.kappa is None or self.interval is None:
            return f"{text}; kappa is undefined, since all answers are the same"
        name = "Cohen's kappa" if self.annotators == 2 else f"Conger's kappa of {self.annotators} annotators"
        low, high = self.interval
        return f"{text}, {name} {self.kappa:.2f} (95 % interval {low:.2f} to {high:.2f})"


class ErrorRate(NamedTuple):
    """Estimated share of wrong answers of one annotator."""

    share: float
    answers: int  # to questions with several annotators

    def __str__(self) -> str:
        """Return the share with Wilson's 95 % interval.

        >>> str(ErrorRate(0.1, 20))
        '10 % (3 to 30 %)'
        """
        low, high = wilson_interval(self.share, self.answers)
        return f"{100 * self.share:.0f} % ({100 * low:.0f} to {100 * high:.0f} %)"


def measure_agreement(questions: Sequence[Mapping[str, str]]) -> Agreement | None:
    """Measure the agreement on questions, each with the word of each annotator; None if nobody shares one."""
    pairs: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for answers in questions:
        for first, second in combinations(sorted(answers), 2):
            pairs.setdefault((first, second), []).append((answers[first], answers[second]))
    n_pairs = sum(map(len, pairs.values()))
    if not n_pairs:
        return None
    n_questions = sum(len(answers) > 1 for answers in questions)
    observed = sum(a == b for words in pairs.values() for a, b in words) / n_pairs
    chance = sum(len(words) * _chance_agreement(words) for words in pairs.values()) / n_pairs
    n_annotators = len({name for pair in pairs for name in pair})
    if chance > 1 - 1e-12:
        return Agreement(n_annotators, n_questions, observed, None, None)
    kappa, low, high = (
        (share - chance) / (1 - chance) for share in (observed, *wilson_interval(observed, n_questions))
    )
    return Agreement(n_annotators, n_questions, observed, kappa, (low, high))


def _chance_agreement(words: Sequence[tuple[str, str]]) -> float:
    first, second = (Counter(column) for column in zip(*words, strict=True))
    return sum(count * second[word] for word, count in first.items()) / len(words) ** 2


def wilson_interval(share: float, n: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share of n.

    >>> [round(bound, 3) for bound in wilson_interval(1.0, 20)]
    [0.839, 1.0]
    """
    z2 = Z_95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z_95 / (1 + z2 / n) * sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)
