"""The rule `weighted` and `overlap` in a store: what is settled, when, and for good."""

import json
import random
from pathlib import Path

from ducats.annotation import AnnotationStore
from ducats.annotation.oracles.pending import describe_open_images
from ducats.annotation.page.round_progress import RoundProgress
from question_rounds import CLASSES, submit_answer, write_round

KEYS = tuple(f"q{n:02d}" for n in range(20))


def teach(store: AnnotationStore, *, n: int = 18) -> None:
    """Ada and ben answer the same questions; eve answers half of them differently."""
    for number, key in enumerate(KEYS[:n]):
        word = ("cat", "dog", "cow")[number % 3]
        for annotator in ("ada", "ben"):
            submit_answer(store, key, word, annotator)
        submit_answer(store, key, "dog" if number % 2 else word, "eve")


def test_a_reliable_annotator_settles_alone_and_an_unreliable_one_does_not(tmp_path: Path) -> None:
    store = write_round(tmp_path / "questions", 1, KEYS, rule="weighted")
    submit_answer(store, "q18", "cat", "ada")
    submit_answer(store, "q19", "dog", "eve")
    assert (store.status("q18").state, store.status("q19").state) == ("open", "open")
    teach(store)  # answers to other questions
    assert (store.status("q18").state, store.status("q18").word) == ("settled", "cat")
    assert store.status("q19").state == "open"
    submit_answer(store, "q19", "cow", "ada")
    assert store.status("q19").word == "cow"


def test_labels_of_a_closed_round_do_not_depend_on_later_answers(tmp_path: Path) -> None:
    store = write_round(tmp_path / "questions", 1, ("x",), rule="weighted", max_annotators=2)
    submit_answer(store, "x", "dog", "eve")
    submit_answer(store, "x", "cat", "ada")
    assert store.close_round(1) is not None
    before = store.statuses(1)
    assert before["x"].word == "dog"
    write_round(tmp_path / "questions", 2, KEYS, rule="weighted")
    teach(store)
    submit_answer(store, "q18", "cat", "ada")
    assert store.status("q18").state == "settled"  # with what is known from both rounds
    assert store.statuses(1) == before == AnnotationStore(store.folder).statuses(1)
    assert AnnotationStore(store.folder).statuses(2) == store.statuses(2)


def test_the_page_follows_questions_that_answers_to_others_settle(tmp_path: Path) -> None:
    store = write_round(tmp_path / "questions", 1, KEYS, rule="weighted")
    progress = RoundProgress(store, store.question_round(1))
    submit_answer(store, "q18", "cat", "ada")
    progress.refresh()
    assert progress.counts("ada")["settled"] == 0
    teach(store)
    progress.refresh()
    assert progress.counts("ada")["settled"] == 19  # all but q19
    assert [one.id for one in progress.next_questions("ben", 5)] == ["q19"]


def test_overlap_chooses_a_share_that_needs_two_people(tmp_path: Path) -> None:
    store = write_round(tmp_path / "questions", 1, KEYS, overlap=0.2)
    shared = store.question_round(1).shared_questions
    assert len(shared) == 4
    assert AnnotationStore(store.folder).question_round(1).shared_questions == shared
    for key in KEYS:
        submit_answer(store, key, "cat", "ada")
    waiting = {key for key, one in store.statuses(1).items() if one.state == "open"}
    assert waiting == shared
    assert store.close_round(1) is None
    message = describe_open_images(store, 1)
    assert "waits for 4 of 20 labels" in message
    assert "4 with an answer need another annotator. To answer" in message
    progress = RoundProgress(store, store.question_round(1))
    progress.refresh()
    assert {one.id for one in progress.next_questions("ben", 9)} == shared
    assert progress.next_questions("ada", 9) == []
    first, second, *others = sorted(shared)
    for key in (first, *others):
        submit_answer(store, key, "cat", "ben")
    submit_answer(store, second, "dog", "ben")
    assert store.status(first).word == "cat"
    assert store.status(second).state == "disputed"  # although the rule is `first`
    assert f"1 is disputed (rule majority), e.g. '{second}': ada: cat, ben: dog" in describe_open_images(
        store, 1
    )
    submit_answer(store, second, "dog", "eve")
    assert store.status(second).word == "dog"
    assert store.close_round(1) is not None


def test_rules_of_older_rounds_are_read_and_defaults_are_not_written(tmp_path: Path) -> None:
    store = write_round(tmp_path / "questions", 1, ("a",))
    path = store.round_folder(1) / "rules.json"
    assert json.loads(path.read_text()).keys().isdisjoint({"overlap", "min_probability", "max_annotators"})
    assert AnnotationStore(store.folder).question_round(1).rules.max_annotators == 3
    store = write_round(tmp_path / "other", 1, ("a",), overlap=0.5, min_probability=0.8)
    rules = AnnotationStore(store.folder).question_round(1).rules
    assert (rules.overlap, rules.min_probability) == (0.5, 0.8)


def test_overlap_does_not_weaken_other_rules_and_small_rounds_have_at_least_one(tmp_path: Path) -> None:
    store = write_round(tmp_path / "questions", 1, KEYS[:3], rule="unanimous", min_annotators=3, overlap=0.1)
    (shared,) = store.question_round(1).shared_questions
    rules = store.question_round(1).rules_for(shared)
    assert (rules.rule, rules.min_annotators) == ("unanimous", 3)
    assert write_round(tmp_path / "none", 1, KEYS).question_round(1).shared_questions == frozenset()
    everything = write_round(tmp_path / "all", 1, KEYS, overlap=1.0).question_round(1)
    assert everything.shared_questions == set(KEYS)


def test_weighted_answers_are_right_more_often_than_a_majority(tmp_path: Path) -> None:
    errors = {"ada": 0.03, "ben": 0.3, "eve": 0.3}
    found = {}
    for rule in ("majority", "weighted"):
        draw, keys = random.Random(0), tuple(f"q{n:02d}" for n in range(60))
        store = write_round(tmp_path / rule, 1, keys, rule=rule, min_annotators=2)
        n_answers, truth = 0, {key: draw.choice(CLASSES) for key in keys}
        answers = {  # the same for both rules
            key: [
                (name, truth[key] if draw.random() > errors[name] else draw.choice(CLASSES))
                for name in draw.sample(sorted(errors), 3)
            ]
            for key in keys
        }
        for key in keys * 2:  # what later answers opened again is asked again
            while store.status(key).state != "settled" and answers[key]:
                name, word = answers[key].pop()
                submit_answer(store, key, word, name)
                n_answers += 1
        right = sum(one.word == truth[key] for key, one in store.statuses(1).items())
        found[rule] = (right, n_answers)
    assert found["weighted"][0] > found["majority"][0]
    assert found["weighted"][1] <= found["majority"][1] + 5


def test_a_class_that_another_process_adds_can_be_the_true_one(tmp_path: Path) -> None:
    store = write_round(tmp_path / "questions", 1, KEYS, rule="weighted")
    submit_answer(store, KEYS[0], "cat", "ada")
    before = store.status(KEYS[0])
    assert "emu" not in store.annotator_model(1).words
    AnnotationStore(store.folder).add_class(1, "emu")
    store.question_round(1)
    assert "emu" in store.annotator_model(1).words
    assert store.status(KEYS[0]) == before
