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
PLACES = st.integers(0, 1)
WORDS = st.sampled_from([*CLASSES, " Dog", "void", "unsure", "skip", "", "horse"])
GARBAGE = st.one_of(
    st.none(),
    st.text(max_size=5),
    st.dictionaries(
        st.sampled_from(["question", "who", "seconds"]), st.integers() | st.text(max_size=3), max_size=3
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
        bound=st.sampled_from([None, 9.0]),
    )
    def start(self, how: tuple[str, int], new: bool, bound: float | None) -> None:
        self.round_rules: dict[str, Any] = {
            "rule": how[0],
            "people": how[1],
            "new_classes": new,
            "seconds": bound,
        }
        write_round(self.folder, 1, KEYS, **self.round_rules)
        self.asked = dict.fromkeys(KEYS, 1)  # question -> its newest round
        self.rounds: dict[int, tuple[str, ...]] = {1: KEYS}
        self.stores = [AnnotationStore(self.folder), AnnotationStore(self.folder)]
        self.record: list[tuple[str, str, str, int, str | None]] = []
        self.seconds: list[float] = []
        self.refs: dict[str, set[tuple[str, str]]] = {}
        self.closed: dict[int, tuple[bytes, dict[str, str]]] = {}

    @rule(
        at=PLACES,
        question=QUESTIONS,
        word=WORDS,
        who=st.sampled_from(["anna", "bob", "eve"]),
        seconds=st.sampled_from([None, 1.0, 4.0]),
        ref=st.sampled_from([None, None, "1", "2"]),
        times=st.integers(1, 2),
    )
    def submit(
        self,
        at: int,
        question: str,
        word: str,
        who: str,
        seconds: float | None,
        ref: str | None,
        times: int,
    ) -> None:
        given = {"question": question, "word": word, "who": who, "seconds": seconds, "ref": ref}
        put, before = self.stores[at].receive([given] * times, channel="test"), len(self.record)
        for _ in range(times):
            said, number, refused = self._expected(question, word)
            if ref is not None:
                known = self.refs.setdefault(ref, set())
                if (question, said) in known:
                    continue
                refused = refused or ("doubled" if known else None)
                known.add((question, said))
            self.record.append((question, who, said, number, refused))
            self.seconds.append(seconds or 0.0)
        assert [one.reject_reason for one in put] == [one[-1] for one in self.record[before:]]

    def _expected(self, question: str, word: str) -> tuple[str, int, str | None]:
        """Return the normalised word, its round, and the reason for refusal."""
        number = self.asked.get(question, 0)
        if not number:
            return word, 0, "foreign"
        word = word.strip().lower()
        if word == "horse" and not self.round_rules["new_classes"]:
            return word, number, "no class"
        return word, number, "late" if number in self.closed else None

    @rule(at=PLACES, garbage=GARBAGE)
    def submit_malformed(self, at: int, garbage: Any) -> None:
        put = self.stores[at].receive([garbage], channel="test")
        assert [one.reject_reason for one in put] == ["malformed"]
        self.record.append(("", "", put[0].word, 0, "malformed"))
        self.seconds.append(0.0)

    @rule()
    def truncate_last_line(self) -> None:
        """Simulate a process that is killed while it writes."""
        with (self.folder / "received.jsonl").open("ab") as file:
            file.write(b'{"question": "a", "word": "do')

    @rule(at=PLACES)
    def restart(self, at: int) -> None:
        self.stores[at] = AnnotationStore(self.folder)

    @rule(at=PLACES)
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
        bound = self.round_rules["seconds"]
        if len(labels) < len(self.rounds[number]) and (bound is None or spent < bound):
            assert found is None
            return
        assert found is not None
        assert found.words == labels
        path = self.folder / f"round-{number:02d}" / "taken.json"
        self.closed[number] = (path.read_bytes(), labels)

    def _label(self, number: int, question: str) -> tuple[str | None, float]:
        """Apply the rules independently by replaying all answers to a question."""
        said: list[tuple[str, str]] = []  # who and word, ordered by each annotator's first answer
        newest, spent = "", 0.0
        for (asked, who, word, place, refused), seconds in zip(self.record, self.seconds, strict=True):
            if asked != question or place != number or refused is not None:
                continue
            spent += seconds
            if word == "skip":
                continue
            if word == "":
                said = [one for one in said if one[0] != who]
            elif who in dict(said):
                said = [(one[0], word if one[0] == who else one[1]) for one in said]
                newest = who
            else:
                said.append((who, word))
                newest = who
        sure = [one for one in said if one[1] != "unsure"]
        if len(sure) < self.round_rules["people"]:
            return None, spent
        words = [word for _, word in sure]
        if self.round_rules["rule"] == "first":
            return words[0], spent
        if self.round_rules["rule"] == "newest":
            if newest not in dict(sure):  # the last annotator withdrew: use the one before
                order = [
                    who
                    for asked, who, word, place, refused in self.record
                    if asked == question and place == number and refused is None and word != "skip"
                ]
                newest = next(who for who in reversed(order) if who in dict(sure))
            return dict(sure)[newest], spent
        best = max(set(words), key=words.count)
        needed = len(words) if self.round_rules["rule"] == "unanimous" else len(words) // 2 + 1
        return (best if words.count(best) >= needed else None), spent

    @precondition(lambda self: max(self.rounds) in self.taken and len(self.rounds) < 3)
    @rule()
    def next_round(self) -> None:
        """Start the next round; unanswered questions are asked again."""
        number = max(self.rounds) + 1
        left = [key for key in self.rounds[number - 1] if key not in self.closed[number - 1][1]]
        keys = tuple(dict.fromkeys([*left, "d" if number == 2 else "e"]))
        write_round(self.folder, number, keys, **self.round_rules)
        self.rounds[number] = keys
        self.asked |= dict.fromkeys(keys, number)

    @invariant()
    def log_is_complete_and_ordered(self) -> None:
        for desk in (*self.stores, AnnotationStore(self.folder)):
            found = [
                (one.question, one.annotator, one.word, one.round, one.reject_reason)
                for one in desk.answers()
            ]
            assert found == self.record

    @invariant()
    def closed_rounds_never_change(self) -> None:
        for number, (before, labels) in self.closed.items():
            assert (self.folder / f"round-{number:02d}" / "taken.json").read_bytes() == before
            assert labels.keys() <= set(self.rounds[number])
        entered = [question for _, labels in self.closed.values() for question in labels]
        assert len(entered) == len(set(entered))  # at most one accepted label for each


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
