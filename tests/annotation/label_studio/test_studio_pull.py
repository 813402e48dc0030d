"""Annotations in Label Studio and the answers pulled from them."""

from pathlib import Path
from typing import Any

import fake_studio
import pytest
from fake_studio import FakeStudio, choice
from studio_rounds import image_store

from ducats.annotation import AnnotationStore
from ducats.annotation.label_studio.api import LabelStudio
from ducats.annotation.label_studio.pull import pull_answers
from ducats.annotation.label_studio.push import push_questions
from ducats.utils.errors import UserError


@pytest.fixture
def store(studio: LabelStudio, tmp_path: Path) -> AnnotationStore:
    """Two pushed questions."""
    store = image_store(tmp_path / "questions", 2, min_annotators=2, rule="unanimous")
    push_questions(store, studio, "ducats: people")
    return store


def logged_answers(store: AnnotationStore) -> list[tuple[str, str, str]]:
    return [(answer.question[-5], answer.annotator[:2], answer.word) for answer in store.answers()]


def update_annotation(fake: FakeStudio, task: int, index: int, when: str, **values: Any) -> None:
    fake.tasks[task]["annotations"][index].update({"updated_at": when, **values})
    fake.tasks[task]["updated_at"] = when


shared, fake, studio = fake_studio.shared, fake_studio.fake, fake_studio.studio
LATER, LATEST = "2099-01-01T00:00:00.000000Z", "2099-01-01T00:00:01.000000Z"


def test_two_annotators_change_and_withdraw_answers(
    fake: FakeStudio, store: AnnotationStore, studio: LabelStudio
) -> None:
    one, two = fake.tasks
    fake.annotate(one, choice("cat"), user=1, seconds=3.0)
    fake.annotate(one, choice("dog"), user=2, seconds=4.0)
    fake.annotate(two, [], user=1, seconds=1.0, was_cancelled=True)
    pull_answers(store, studio)
    assert logged_answers(store) == [("0", "p1", "cat"), ("0", "p2", "dog"), ("1", "p1", "skip")]
    assert store.status("cam/1-0.png").state == "disputed"
    update_annotation(fake, one, 1, LATER, result=choice("cat"), lead_time=6.5)  # the server adds to the time
    pull_answers(store, studio)
    pull_answers(store, studio)
    assert logged_answers(store)[3:] == [("0", "p2", "cat")]
    assert store.status("cam/1-0.png").word == "cat"
    assert store.status("cam/1-0.png").seconds == pytest.approx(3.0 + 6.5)
    del fake.tasks[one]["annotations"][0]
    fake.tasks[one]["updated_at"] = LATEST
    pull_answers(store, studio)
    pull_answers(store, studio)
    assert logged_answers(store)[4:] == [("0", "p1", "")]
    assert store.status("cam/1-0.png").state == "open"
    update_annotation(fake, one, 0, LATEST, was_cancelled=True)  # skipped later: the answer is withdrawn
    pull_answers(store, studio)
    assert [vote.annotator for vote in store.status("cam/1-0.png").votes] == []
    external_ids = [answer.external_id for answer in store.answers()]
    assert len(set(external_ids)) == len(external_ids)


def test_the_newest_annotation_counts_and_the_older_one_after_it_is_deleted(
    fake: FakeStudio, store: AnnotationStore, studio: LabelStudio
) -> None:
    one = next(iter(fake.tasks))
    fake.annotate(one, choice("cat"))
    fake.annotate(one, choice("dog"))
    pull_answers(store, studio)
    assert logged_answers(store) == [("0", "p1", "dog")]
    del fake.tasks[one]["annotations"][1]
    fake.tasks[one]["updated_at"] = LATER
    pull_answers(store, studio)
    assert logged_answers(store)[1:] == [("0", "p1", "cat")]


def test_rejected_answers_are_logged_once(
    fake: FakeStudio, store: AnnotationStore, studio: LabelStudio
) -> None:
    one, _ = fake.tasks
    project, meta = next(iter(fake.projects)), fake.tasks[one]["meta"]
    fake.annotate(one, choice("unicorn"))
    [unknown] = studio.import_tasks(project, [{"data": {"image": "x"}}])
    fake.annotate(unknown, choice("cat"))
    [of_another_run] = studio.import_tasks(project, [{"data": {}, "meta": {**meta, "run": "another"}}])
    fake.annotate(of_another_run, choice("cat"))
    [not_queried] = studio.import_tasks(project, [{"data": {}, "meta": {**meta, "key": "not queried"}}])
    fake.annotate(not_queried, {"not": "a list"})
    pulled = pull_answers(store, studio)
    assert pulled.rejected == {"unknown class": 1, "unknown question": 2}  # tasks of another run are ignored
    (store.folder / "label-studio.json").write_text('{"url": ')  # corrupt: all is read again, stored once
    assert pull_answers(store, studio).received == []
    assert len(store.answers()) == 3


def test_a_later_answer_on_the_labelling_page_is_not_withdrawn(
    fake: FakeStudio, store: AnnotationStore, studio: LabelStudio
) -> None:
    one = next(iter(fake.tasks))
    fake.annotate(one, choice("cat"))
    pull_answers(store, studio)
    store.receive([{"question": "cam/1-0.png", "word": "dog", "annotator": "p1@example.org"}], channel="page")
    fake.tasks[one]["annotations"].clear()
    fake.tasks[one]["updated_at"] = LATER
    assert pull_answers(store, studio).received == []
    assert [vote.word for vote in store.status("cam/1-0.png").votes] == ["dog"]


def test_late_answers_are_logged_as_late(
    fake: FakeStudio, store: AnnotationStore, studio: LabelStudio
) -> None:
    one, two = fake.tasks
    for task in (one, two):
        for user in (1, 2):
            fake.annotate(task, choice("cat"), user=user)
    pull_answers(store, studio)
    assert store.close_round(1) is not None
    fake.annotate(one, choice("dog"), user=3)
    assert pull_answers(store, studio).rejected == {"late": 1}


def test_a_new_round_uses_the_same_project_and_skips_settled_questions(
    fake: FakeStudio, store: AnnotationStore, studio: LabelStudio
) -> None:
    for task in list(fake.tasks):
        for user in (1, 2):
            fake.annotate(task, choice("cat"), user=user)
    pull_answers(store, studio)
    store.close_round(1)
    with pytest.raises(UserError, match="no open round"):
        push_questions(store, studio, "ducats: people")
    store = image_store(store.folder, 3, round_number=2)
    store.receive([{"question": "cam/2-1.png", "word": "cat", "annotator": "anna"}], channel="page")
    found = push_questions(store, studio, "ducats: people")
    assert (found.round, found.new_tasks, found.answered_images) == (2, 2, 1)
    assert len(fake.projects) == 1
    assert [task["data"]["key"] for task in fake.tasks.values()][2:] == ["cam/2-0.png", "cam/2-2.png"]
    assert [tab["data"]["title"] for tab in fake.tabs] == ["Round 1", "Round 2"]
    assert next(iter(fake.projects.values()))["model_version"] == "ducats-round-2"


def test_runs_in_folders_with_the_same_name_get_separate_projects(
    fake: FakeStudio, store: AnnotationStore, studio: LabelStudio, tmp_path: Path
) -> None:
    other = image_store(tmp_path / "other" / "questions", 3)
    assert push_questions(other, studio, "ducats: people").new_tasks == 3
    assert len(fake.projects) == 2
    (store.folder / "label-studio.json").unlink()
    assert push_questions(store, studio, "ducats: people").existing_tasks == 2
    assert len(fake.projects) == 2
    with pytest.raises(UserError, match="has no project 999"):
        push_questions(store, studio, "x", project="999")
    (store.folder / "label-studio.json").unlink()
    assert pull_answers(store, studio).received == []  # the project is found by its description


def test_pull_without_a_project(studio: LabelStudio, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no project of this run"):
        pull_answers(image_store(tmp_path / "questions", 1), studio)
