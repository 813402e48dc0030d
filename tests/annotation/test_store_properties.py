"""Answers in any order through two stores: none is lost and none counts twice."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from question_rounds import CLASSES, write_round

from ducats.annotation import AnnotationStore

KEYS = ("a", "b", "c")
QUESTIONS = st.sampled_from([*KEYS, "d", "elsewhere"])
STORES = st.integers(0, 1)
WORDS = st.sampled_from([*CLASSES, " Dog", "void", "unsure", "skip", "", "horse"])
GARBAGE = st.one_of(
    st.none(),
    st.text(max_size=5),
    st.dictionaries(
        st.sampled_from(["question", "annotator", "seconds"]), st.integers() | st.text(max_size=3), max_size=3
    ),
)


class StoreMachine(RuleBasedStateMachine):
    """Two processes with one annotation store, and a plain list of the expected answers."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp()) / "questions"

    def teardown(self) -> None:
        shutil.rmtree(self.folder.parent)

    @initialize(
        how=st.sampled_from([("first", 1), ("newest", 2), ("majority", 3), ("unanimous", 2)]),
        new=st.booleans(),
        max_seconds=st.sampled_from([None, 9.0]),
    )
    def start(self, how: tuple[str, int], new: bool, max_seconds: float | None) -> None:
        self.round_rules: dict[str, Any] = {"rule": how[0], "min_annotators": how[1]}
        self.round_rules |= {"allow_new_classes": new, "max_seconds": max_seconds}
        write_round(self.folder, 1, KEYS, **self.round_rules)
        self.newest_round = dict.fromkeys(KEYS, 1)  # question -> its newest round
        self.rounds: dict[int, tuple[str, ...]] = {1: KEYS}
        self.stores = [AnnotationStore(self.folder), AnnotationStore(self.folder)]
        self.record: list[tuple[str, str, str, int, str | None]] = []
        self.seconds: list[float] = []
        self.external_ids: dict[str, set[tuple[str, str]]] = {}
        self.closed: dict[int, tuple[bytes, dict[str, str]]] = {}

    @rule(
        at=STORES,
        question=QUESTIONS,
        word=WORDS,
        annotator=st.sampled_from(["anna", "bob", "eve"]),
        seconds=st.sampled_from([None, 1.0, 4.0]),
        external_id=st.sampled_from([None, None, "1", "2"]),
        times=st.integers(1, 2),
    )
    def submit(
        self,
        at: int,
        question: str,
        word: str,
        annotator: str,
        seconds: float | None,
        external_id: str | None,
        times: int,
    ) -> None:
        given: dict[str, Any] = {"question": question, "word": word, "annotator": annotator}
        given |= {"seconds": seconds, "external_id": external_id}
        logged, before = self.stores[at].receive([given] * times, channel="test"), len(self.record)
        for _ in range(times):
            normalised, number, reject_reason = self._expected(question, word)
            if external_id is not None:
                known = self.external_ids.setdefault(external_id, set())
                if (question, normalised) in known:
                    continue
                reject_reason = reject_reason or ("duplicate" if known else None)
                known.add((question, normalised))
            self.record.append((question, annotator, normalised, number, reject_reason))
            self.seconds.append(seconds or 0.0)
        assert [one.reject_reason for one in logged] == [one[-1] for one in self.record[before:]]

    def _expected(self, question: str, word: str) -> tuple[str, int, str | None]:
        """Return the normalised word, its round, and the reject reason."""
        number = self.newest_round.get(question, 0)
        if not number:
            return word, 0, "unknown question"
        word = word.strip().lower()
        if word == "horse" and not self.round_rules["allow_new_classes"]:
            return word, number, "unknown class"
        return word, number, "late" if number in self.closed else None

    @rule(at=STORES, garbage=GARBAGE)
    def submit_malformed(self, at: int, garbage: Any) -> None:
        logged = self.stores[at].receive([garbage], channel="test")
        assert [one.reject_reason for one in logged] == ["malformed"]
        self.record.append(("", "", logged[0].word, 0, "malformed"))
        self.seconds.append(0.0)

    @rule()
    def truncate_last_line(self) -> None:
        """Simulate a process that is killed while it writes."""
        with (self.folder / "answers.jsonl").open("ab") as file:
            file.write(b'{"question": "a", "word": "do')

    @rule(at=STORES)
    def restart(self, at: int) -> None:
        self.stores[at] = AnnotationStore(self.folder)

    @rule(at=STORES)
    def close_round(self, at: int) -> None:
        number = max(self.rounds)
        found = self.stores[at].close_round(number)
        if number in self.closed:
            assert found is not None
            assert found.words == self.closed[number][1]
            return
        labels: dict[str, str] = {}
        spent = 0.0
        for question in self.rounds[number]:
            label, seconds = self._label(number, question)
            spent += seconds
            labels |= {} if label is None else {question: label}
        max_seconds = self.round_rules["max_seconds"]
        if len(labels) < len(self.rounds[number]) and (max_seconds is None or spent < max_seconds):
            assert found is None
            return
        assert found is not None
        assert found.words == labels
        path = self.folder / f"round-{number:02d}" / "closed.json"
        self.closed[number] = (path.read_bytes(), labels)

    def _label(self, number: int, question: str) -> tuple[str | None, float]:
        """Apply the rules independently by replaying all answers to a question."""
        votes: list[tuple[str, str]] = []  # annotator and word, ordered by each annotator's first answer
        newest, spent = "", 0.0
        for (answered, annotator, word, in_round, reject_reason), seconds in zip(
            self.record, self.seconds, strict=True
        ):
            if answered != question or in_round != number or reject_reason is not None:
                continue
            spent += seconds
            if word == "skip":
                continue
            if word == "":
                votes = [one for one in votes if one[0] != annotator]
            elif annotator in dict(votes):
                votes = [(one[0], word if one[0] == annotator else one[1]) for one in votes]
                newest = annotator
            else:
                votes.append((annotator, word))
                newest = annotator
        sure = [one for one in votes if one[1] != "unsure"]
        if len(sure) < self.round_rules["min_annotators"]:
            return None, spent
        words = [word for _, word in sure]
        if self.round_rules["rule"] == "first":
            return words[0], spent
        if self.round_rules["rule"] == "newest":
            if newest not in dict(sure):  # the last annotator withdrew: use the one before
                order = [
                    annotator
                    for one, annotator, word, in_round, reject_reason in self.record
                    if one == question and in_round == number and reject_reason is None and word != "skip"
                ]
                newest = next(annotator for annotator in reversed(order) if annotator in dict(sure))
            return dict(sure)[newest], spent
        best = max(set(words), key=words.count)
        needed = len(words) if self.round_rules["rule"] == "unanimous" else len(words) // 2 + 1
        return (best if words.count(best) >= needed else None), spent

    @precondition(lambda self: max(self.rounds) in self.closed and len(self.rounds) < 3)
    @rule()
    def next_round(self) -> None:
        """Start the next round; unanswered questions are asked again."""
        number = max(self.rounds) + 1
        left = [key for key in self.rounds[number - 1] if key not in self.closed[number - 1][1]]
        keys = tuple(dict.fromkeys([*left, "d" if number == 2 else "e"]))
        write_round(self.folder, number, keys, **self.round_rules)
        self.rounds[number] = keys
        self.newest_round |= dict.fromkeys(keys, number)

    @invariant()
    def log_is_complete_and_ordered(self) -> None:
        for store in (*self.stores, AnnotationStore(self.folder)):
            found = [
                (one.question, one.annotator, one.word, one.round, one.reject_reason)
                for one in store.answers()
            ]
            assert found == self.record

    @invariant()
    def closed_rounds_never_change(self) -> None:
        for number, (before, labels) in self.closed.items():
            assert (self.folder / f"round-{number:02d}" / "closed.json").read_bytes() == before
            assert labels.keys() <= set(self.rounds[number])
        entered = [question for _, labels in self.closed.values() for question in labels]
        assert len(entered) == len(set(entered))  # at most one accepted label for each


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
