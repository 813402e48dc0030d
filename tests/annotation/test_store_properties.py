"""Answers in any order through two stores: none is lost and none counts twice."""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ducats.annotation import AnnotationStore, Answer, RoundRules, question_status
from question_rounds import CLASSES, write_round

KEYS = ("a", "b", "c")
QUESTIONS = st.sampled_from([*KEYS, "d", "elsewhere"])
STORES = st.integers(0, 1)
WORDS = st.sampled_from([*CLASSES, " Dog", "void", "unsure", "skip", "", "horse"])
KINDS = {**dict.fromkeys(CLASSES, "class"), "horse": "new"}  # other words are kinds themselves
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
        self.record: list[Answer] = []  # received_at is empty
        self.external_ids: dict[str, set[tuple[str, str]]] = {}
        self.closed: dict[int, tuple[bytes, dict[str, str]]] = {}
        self.added: set[int] = set()  # rounds with the new class

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
            answer = self._expected(**given)
            if external_id is not None:
                known = self.external_ids.setdefault(external_id, set())
                if (question, answer.word) in known:
                    continue
                if known:
                    answer = replace(answer, reject_reason=answer.reject_reason or "duplicate")
                known.add((question, answer.word))
            self.record.append(answer)
        assert [replace(one, received_at="") for one in logged] == self.record[before:]

    def _expected(self, question: str, word: str, annotator: str, **more: Any) -> Answer:
        number, kind, reason = self.newest_round.get(question, 0), "invalid", None
        if number:
            word = word.strip().lower()
            kind = "class" if word == "horse" and number in self.added else KINDS.get(word, word or "undo")
            if kind == "new" and not self.round_rules["allow_new_classes"]:
                reason = "unknown class"
            elif number in self.closed:
                reason = "late"
            elif kind == "new":
                kind = "class"
                self.added.add(number)
        else:
            reason = "unknown question"
        more["reject_reason"] = reason
        return Answer(question, word, kind, annotator, "", "test", number, **more)  # type: ignore[arg-type]

    @rule(at=STORES, garbage=GARBAGE)
    def submit_malformed(self, at: int, garbage: Any) -> None:
        [logged] = self.stores[at].receive([garbage], channel="test")
        expected = Answer("", str(garbage), "invalid", "", "", "test", reject_reason="malformed")
        assert replace(logged, received_at="") == expected
        self.record.append(expected)

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
        rules = RoundRules(number, CLASSES, **self.round_rules)
        in_round = [one for one in self.record if one.round == number]
        statuses = {
            question: question_status([one for one in in_round if one.question == question], rules)
            for question in self.rounds[number]
        }
        labels = {question: one.word for question, one in statuses.items() if one.word is not None}
        spent = sum(one.seconds for one in statuses.values())
        if len(labels) < len(statuses) and (rules.max_seconds is None or spent < rules.max_seconds):
            assert found is None
            return
        assert found is not None
        assert found.words == labels
        path = self.folder / f"round-{number:02d}" / "closed.json"
        self.closed[number] = (path.read_bytes(), labels)

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
            assert [replace(one, received_at="") for one in store.answers()] == self.record

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
