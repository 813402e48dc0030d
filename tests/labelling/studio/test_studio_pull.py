"""Annotations in Label Studio and the answers pulled from them."""

from pathlib import Path
from typing import Any

import pytest
from fake_studio import LEGACY, Fake, served
from studio_desks import image_desk

from ducats.annotation import AnnotationStore
from ducats.errors import UserError
from ducats.labelling.studio import Client, Studio, Token, pull, push


@pytest.fixture
def pushed(tmp_path: Path) -> Any:
    with served() as fake:
        desk = image_desk(tmp_path / "questions", 2, people=2, rule="unanimous")
        studio = Studio(Client(fake.url, Token(LEGACY), timeout=5.0))
        push(desk, studio, "ducats: people")
        yield fake, desk, studio


def choice(text: str) -> list[dict[str, Any]]:
    return [{"from_name": "class", "to_name": "image", "type": "choices", "value": {"choices": [text]}}]


def said(desk: AnnotationStore) -> list[tuple[str, str, str]]:
    return [(answer.question[-5], answer.annotator[:2], answer.word) for answer in desk.answers()]


def change(fake: Fake, task: int, place: int, when: str, **values: Any) -> None:
    fake.tasks[task]["annotations"][place].update({"updated_at": when, **values})
    fake.tasks[task]["updated_at"] = when


LATER, LATEST = "2099-01-01T00:00:00.000000Z", "2099-01-01T00:00:01.000000Z"


def test_two_annotators_change_and_withdraw_answers(pushed: tuple[Fake, AnnotationStore, Studio]) -> None:
    fake, desk, studio = pushed
    one, two = fake.tasks
    fake.annotate(one, choice("cat"), who=1, seconds=3.0)
    fake.annotate(one, choice("dog"), who=2, seconds=4.0)
    fake.annotate(two, [], who=1, seconds=1.0, was_cancelled=True)
    pull(desk, studio)
    assert said(desk) == [("0", "p1", "cat"), ("0", "p2", "dog"), ("1", "p1", "skip")]
    assert desk.status("cam/1-0.png").state == "disputed"
    change(fake, one, 1, LATER, result=choice("cat"), lead_time=6.5)  # the server adds to the time
    pull(desk, studio)
    pull(desk, studio)
    assert said(desk)[3:] == [("0", "p2", "cat")]
    assert desk.status("cam/1-0.png").word == "cat"
    assert desk.status("cam/1-0.png").seconds == pytest.approx(3.0 + 6.5)
    del fake.tasks[one]["annotations"][0]
    fake.tasks[one]["updated_at"] = LATEST
    pull(desk, studio)
    pull(desk, studio)
    assert said(desk)[4:] == [("0", "p1", "")]
    assert desk.status("cam/1-0.png").state == "open"
    change(fake, one, 0, LATEST, was_cancelled=True)  # skipped later: the answer is withdrawn
    pull(desk, studio)
    assert [vote.annotator for vote in desk.status("cam/1-0.png").votes] == []
    refs = [answer.external_id for answer in desk.answers()]
    assert len(set(refs)) == len(refs)


def test_the_newest_annotation_counts_and_the_older_one_after_it_is_deleted(
    pushed: tuple[Fake, AnnotationStore, Studio],
) -> None:
    fake, desk, studio = pushed
    one = next(iter(fake.tasks))
    fake.annotate(one, choice("cat"))
    fake.annotate(one, choice("dog"))
    pull(desk, studio)
    assert said(desk) == [("0", "p1", "dog")]
    del fake.tasks[one]["annotations"][1]
    fake.tasks[one]["updated_at"] = LATER
    pull(desk, studio)
    assert said(desk)[1:] == [("0", "p1", "cat")]


def test_rejected_answers_are_logged_once(pushed: tuple[Fake, AnnotationStore, Studio]) -> None:
    fake, desk, studio = pushed
    one, _ = fake.tasks
    project, marks = next(iter(fake.projects)), fake.tasks[one]["meta"]
    fake.annotate(one, choice("unicorn"))
    [foreign] = studio.add_tasks(project, [{"data": {"image": "x"}}])
    fake.annotate(foreign, choice("cat"))
    [stranger] = studio.add_tasks(project, [{"data": {}, "meta": {**marks, "run": "another"}}])
    fake.annotate(stranger, choice("cat"))
    [unasked] = studio.add_tasks(project, [{"data": {}, "meta": {**marks, "key": "not asked"}}])
    fake.annotate(unasked, {"not": "a list"})
    pulled = pull(desk, studio)
    assert pulled.refused == {"no class": 1, "foreign": 2}  # tasks of another run are ignored
    (desk.folder / "label-studio.json").write_text('{"url": ')  # corrupt: all is read again, stored once
    assert pull(desk, studio).received == []
    assert len(desk.answers()) == 3


def test_a_later_answer_on_the_labelling_page_is_not_withdrawn(
    pushed: tuple[Fake, AnnotationStore, Studio],
) -> None:
    fake, desk, studio = pushed
    one = next(iter(fake.tasks))
    fake.annotate(one, choice("cat"))
    pull(desk, studio)
    desk.receive([{"question": "cam/1-0.png", "word": "dog", "who": "p1@example.org"}], channel="page")
    fake.tasks[one]["annotations"].clear()
    fake.tasks[one]["updated_at"] = LATER
    assert pull(desk, studio).received == []
    assert [vote.word for vote in desk.status("cam/1-0.png").votes] == ["dog"]


def test_late_answers_are_logged_as_late(pushed: tuple[Fake, AnnotationStore, Studio]) -> None:
    fake, desk, studio = pushed
    one, two = fake.tasks
    for task in (one, two):
        for who in (1, 2):
            fake.annotate(task, choice("cat"), who=who)
    pull(desk, studio)
    assert desk.close_round(1) is not None
    fake.annotate(one, choice("dog"), who=3)
    assert pull(desk, studio).refused == {"late": 1}


def test_a_new_round_uses_the_same_project_and_skips_settled_questions(
    pushed: tuple[Fake, AnnotationStore, Studio],
) -> None:
    fake, desk, studio = pushed
    for task in list(fake.tasks):
        for who in (1, 2):
            fake.annotate(task, choice("cat"), who=who)
    pull(desk, studio)
    desk.close_round(1)
    with pytest.raises(UserError, match="no open round"):
        push(desk, studio, "ducats: people")
    desk = image_desk(desk.folder, 3, number=2)
    desk.receive([{"question": "cam/2-1.png", "word": "cat", "who": "anna"}], channel="page")
    found = push(desk, studio, "ducats: people")
    assert (found.round, found.new, found.answered) == (2, 2, 1)
    assert len(fake.projects) == 1
    assert [task["data"]["key"] for task in fake.tasks.values()][2:] == ["cam/2-0.png", "cam/2-2.png"]
    assert [tab["data"]["title"] for tab in fake.tabs] == ["Round 1", "Round 2"]
    assert next(iter(fake.projects.values()))["model_version"] == "ducats-round-2"


def test_runs_in_folders_with_the_same_name_get_separate_projects(
    pushed: tuple[Fake, AnnotationStore, Studio], tmp_path: Path
) -> None:
    fake, desk, studio = pushed
    other = image_desk(tmp_path / "other" / "questions", 3)
    assert push(other, studio, "ducats: people").new == 3
    assert len(fake.projects) == 2
    (desk.folder / "label-studio.json").unlink()
    assert push(desk, studio, "ducats: people").known == 2
    assert len(fake.projects) == 2
    with pytest.raises(UserError, match="has no project 999"):
        push(desk, studio, "x", project="999")
    (desk.folder / "label-studio.json").unlink()
    assert pull(desk, studio).received == []  # the project is found by its description


def test_pull_without_a_project(tmp_path: Path) -> None:
    desk = image_desk(tmp_path / "questions", 1)
    with (
        served() as fake,
        pytest.raises(UserError, match="has no project of this run"),
    ):
        pull(desk, Studio(Client(fake.url, Token(LEGACY))))
