"""A head that learns from each answer of the labelling page."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from test_head_learner import CLASSES, POOL, SOURCE, TRUTH, learner

from ducats.annotation import AnnotationStore, Question, QuestionRound, RoundRules
from ducats.data.domain import UNLABELLED, VOID, Domain
from ducats.run.live_session import LiveSession, known_words

WAIT_SECONDS = 60.0


def open_store(folder: Path, number: int = 1, classes: tuple[str, ...] = CLASSES) -> AnnotationStore:
    store = AnnotationStore(folder / "questions")
    known = known_words(store)
    keys = [key for key in POOL.keys if key not in known]
    questions = [Question(n, key, key, f"thumbnails/{n:04d}.png") for n, key in enumerate(keys, start=1)]
    QuestionRound.write(store.round_folder(number), RoundRules(number, classes, live=True), questions)
    return store


def open_session(store: AnnotationStore, source: Domain | None = None) -> LiveSession:
    rounds = store.round_numbers()
    classes = store.question_round(rounds[-1]).rules.classes
    return LiveSession(learner(source, classes), store, fit_steps=40, refit_steps=10)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[LiveSession]:
    with open_session(open_store(tmp_path)) as live:
        yield live


def answer(live: LiveSession, *words: tuple[str, str], act: str = "") -> None:
    live.store.receive(
        [
            {"question": key, "word": word, "annotator": "Ada", "external_id": f"{act or key + word}.{n}"}
            for n, (key, word) in enumerate(words)
        ],
        channel="page",
    )
    live.notify()
    live.wait_until_current(WAIT_SECONDS)


def truth(key: str) -> str:
    return CLASSES[int(TRUTH[int(key)])]


def next_key(live: LiveSession) -> str:
    question_round = live.store.open_round()
    assert question_round is not None
    return question_round.questions[live.first_questions()[0]].key


def test_each_answer_is_learnt_before_the_next_question(session: LiveSession) -> None:
    asked = []
    assert session.summary().sure == 0
    for _ in range(25):
        asked.append(next_key(session))
        answer(session, (asked[-1], truth(asked[-1])))
        assert int(session.learner.labels[int(asked[-1])]) == CLASSES.index(truth(asked[-1]))
    assert len(set(asked)) == len(asked)
    question_round = session.store.open_round()
    assert question_round is not None
    guesses = [session.with_hints(question).guess for question in question_round.questions]
    right = sum(
        guess == truth(question.key)
        for guess, question in zip(guesses, question_round.questions, strict=True)
    )
    assert right > 0.9 * len(guesses)
    summary = session.summary()
    assert (summary.labels, summary.images, summary.recent) == (25, len(POOL), 20)
    assert sum(one.labelled for one in summary.classes) == 25
    assert sum(one.predicted for one in summary.classes) == len(POOL) - 25


def test_undo_and_void(session: LiveSession) -> None:
    key = next_key(session)
    answer(session, (key, truth(key)))
    answer(session, (key, ""))
    assert int(session.learner.labels[int(key)]) == UNLABELLED
    assert session.summary().labels == 0
    answer(session, (key, "void"))
    assert int(session.learner.labels[int(key)]) == VOID
    assert session.summary().labels == 1


def test_a_class_can_be_added(tmp_path: Path) -> None:
    store = open_store(tmp_path, classes=CLASSES[:2])
    with open_session(store) as live:
        members = [key for key in POOL.keys if truth(key) == CLASSES[2]][:5]
        others = [key for key in POOL.keys if truth(key) != CLASSES[2]][:10]
        answer(live, *((key, truth(key)) for key in others))
        store.add_class(1, CLASSES[2])
        answer(live, *((key, truth(key)) for key in members))
        assert live.learner.classes == CLASSES
        assert [one.labelled for one in live.summary().classes][2] == 5
        assert live.learner.network.head.out_features == 3
    # Another process reads the class from the rules.
    assert AnnotationStore(store.folder).question_round(1).rules.classes == CLASSES


def test_confirming_many_guesses_does_not_count_as_right_guesses(session: LiveSession) -> None:
    key = next_key(session)
    answer(session, (key, truth(key)))
    answer(session, *((key, truth(key)) for key in POOL.keys[:30]), act="many")
    assert session.summary().recent == 0
    key = next_key(session)
    answer(session, (key, truth(key)))
    assert session.summary().recent == 1


def test_a_restarted_session_knows_all_answers(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with open_session(store) as live:
        for _ in range(6):
            key = next_key(live)
            answer(live, (key, truth(key)))
        labels = live.learner.labels.clone()
    with open_session(AnnotationStore(store.folder)) as again:
        assert torch.equal(again.learner.labels, labels)
        assert again.summary().labels == 6
    closed = store.stop_round(1)
    assert len(closed.words) == 6
    assert closed.reason == "stopped"
    later = open_store(tmp_path, number=2)
    assert len(later.question_round(2).questions) == len(POOL) - 6
    with open_session(later) as again:
        assert torch.equal(again.learner.labels, labels)


def test_with_a_source_there_are_guesses_before_the_first_answer(tmp_path: Path) -> None:
    with open_session(open_store(tmp_path), SOURCE) as live:
        question_round = live.store.open_round()
        assert question_round is not None
        assert live.with_hints(question_round.questions[0]).guess in CLASSES


def test_a_failure_is_shown_and_answers_are_kept(
    session: LiveSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_steps: int) -> dict[str, float]:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(session.learner, "train", fail)
    key = next_key(session)
    answer(session, (key, truth(key)))
    assert "out of memory" in session.summary().error
    assert known_words(session.store) == {key: truth(key)}


def test_advice_once_predictions_are_stable(session: LiveSession) -> None:
    count = 0
    while not session.summary().advice and count < 59:
        count += 1
        key = next_key(session)
        answer(session, (key, truth(key)))
    assert 30 <= count < 59  # three sets of ten answers after the first model
    assert "bring little" in session.summary().advice


def test_the_model_is_as_sure_as_its_guesses_were_right(session: LiveSession) -> None:
    def count_sure_without_calibration() -> int:
        is_open = session.learner.labels == UNLABELLED
        probability = session.learner.predict(POOL).softmax(1).amax(1)
        return int((is_open & (probability >= 0.9)).sum())

    for n in range(30):
        key = next_key(session)
        wrong = CLASSES[(CLASSES.index(truth(key)) + 1) % len(CLASSES)]  # no model can guess these
        answer(session, (key, truth(key) if n < 10 else wrong))
    assert session.summary().recent_right < 10
    assert 0 < session.summary().sure < 0.8 * count_sure_without_calibration()
