"""Summary of the answers by round and by annotator, and the disputed questions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ducats.answers.answer import Answer
from ducats.answers.desk import Desk
from ducats.answers.question import Question
from ducats.answers.rules import Standing, Vote


@dataclass(frozen=True)
class RoundTally:
    """Status of a round."""

    round: int
    asked: int
    settled: int
    open: int
    disputed: int
    void: int  # settled as void
    new: Mapping[str, int]  # settled with a name outside the classes, with counts
    several: int  # questions with more than one annotator
    alike: int  # among these, questions on which all annotators agree
    refused: Mapping[str, int]  # number of answers that do not count, by reason
    taken: str  # why the round was closed; empty if it is open
    elsewhere: int = 0  # questions answered by label PNGs only; neither open nor disputed


@dataclass(frozen=True)
class PersonTally:
    """Statistics of one annotator."""

    who: str
    answers: int  # without withdrawn, repeated and rejected answers
    void: int
    unsure: int
    seconds: float  # total, including withdrawn and skipped answers
    median_seconds: float | None  # per answer; None if unknown
    compared: int  # answers to settled questions with other annotators
    agreed: int  # among these, answers equal to the label


@dataclass(frozen=True)
class Dispute:
    """A question on which annotators disagree."""

    round: int
    question: Question
    votes: tuple[Vote, ...]
    accepted: str | None  # the label; None if there is none yet
    elsewhere: bool = False  # whether a label PNG answers it


def rounds(desk: Desk) -> list[RoundTally]:
    """Summarise each round, oldest first."""
    refused: dict[int, Counter[str]] = {}
    for answer in desk.answers():
        if answer.refused is not None:
            refused.setdefault(answer.round, Counter())[answer.refused] += 1
    found = []
    for number in desk.rounds():
        standings, taken = desk.standings(number), desk.taken(number)
        classes = set(desk.sheet(number).terms.classes)
        elsewhere = taken.elsewhere if taken is not None else ()
        states = Counter(one.state for question, one in standings.items() if question not in elsewhere)
        words = [one.word for one in standings.values() if one.word is not None]
        others = [word for word in words if word not in classes]
        several = [one for one in standings.values() if len(one.votes) > 1]
        found.append(
            RoundTally(
                number,
                len(standings),
                states["settled"],
                states["open"],
                states["disputed"],
                void=others.count("void"),
                new=Counter(word for word in others if word != "void"),
                several=len(several),
                alike=sum(not one.contradicting for one in several),
                refused=dict(sorted(refused.get(number, Counter()).items())),
                taken=taken.because if taken is not None else "",
                elsewhere=len(elsewhere),
            )
        )
    return found


def unplaced(desk: Desk) -> dict[str, int]:
    """Count the answers that belong to no round, by reject reason."""
    return dict(sorted(Counter(str(a.refused) for a in desk.answers() if a.round == 0).items()))


def persons(desk: Desk) -> list[PersonTally]:
    """Summarise each annotator, sorted by name."""
    heard: dict[str, list[Answer]] = {}
    for answer in desk.answers():
        if answer.refused is None:
            heard.setdefault(answer.who, []).append(answer)
    standings = [one for number in desk.rounds() for one in desk.standings(number).values()]
    return [_person(who, given, standings) for who, given in sorted(heard.items())]


def _person(who: str, given: Sequence[Answer], standings: Sequence[Standing]) -> PersonTally:
    known = [(answer.seconds, answer.kind) for answer in given if answer.seconds is not None]
    each = [seconds for seconds, kind in known if kind not in ("skip", "undo")]
    mine = [(vote, one) for one in standings for vote in one.votes if vote.who == who]
    compared = [(vote, one) for vote, one in mine if one.word is not None and len(one.votes) > 1]
    return PersonTally(
        who,
        len(mine),
        sum(vote.word == "void" for vote, _ in mine),
        sum(who in one.unsure for one in standings),
        sum(seconds for seconds, _ in known),
        median(each) if each else None,
        len(compared),
        sum(vote.word == one.word for vote, one in compared),
    )


def disputes(desk: Desk) -> list[Dispute]:
    """Return the questions on which annotators disagree, in order."""
    found = []
    for number in desk.rounds():
        standings, taken = desk.standings(number), desk.taken(number)
        elsewhere = taken.elsewhere if taken is not None else ()
        for question in desk.sheet(number).questions:
            one = standings[question.id]
            if one.contradicting:
                found.append(Dispute(number, question, one.votes, one.word, question.id in elsewhere))
    return found
