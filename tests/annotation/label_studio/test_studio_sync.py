"""Pushed questions and pulled answers: none is lost, duplicated or mixed up."""

import importlib
import itertools
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_studio
import pytest
from fake_studio import LEGACY_TOKEN, FakeStudio, Session, choice, connect
from studio_rounds import image_store, pixel_store

from ducats.annotation import QuestionRound
from ducats.annotation.label_studio.api import LabelStudio
from ducats.annotation.label_studio.client import ApiToken, JsonClient, ServerUnavailableError
from ducats.annotation.label_studio.pull_loop import pull_until_closed
from ducats.utils.errors import UserError

shared, fake, start = fake_studio.shared, fake_studio.fake, fake_studio.start
Start = Callable[..., Session]
LATER, LATEST = "2099-01-01T00:00:00.000000Z", "2099-01-01T00:01:00.000000Z"


def new_answers(session: Session) -> list[str]:
    """Pull twice and return the new answers as ``question annotator word``."""
    before = len(session.store.answers())
    session.pull()
    session.pull()
    found = session.store.answers()[before:]
    return [f"{answer.question[-5]} {answer.annotator[:2]} {answer.word}" for answer in found]


def update_annotation(fake: FakeStudio, task: int, index: int, when: str, **values: Any) -> None:
    fake.tasks[task]["annotations"][index].update({"updated_at": when, **values})
    fake.tasks[task]["updated_at"] = when


def after_first_page(monkeypatch: pytest.MonkeyPatch, fake: FakeStudio, act: Callable[[], object]) -> None:
    """Call ``act`` after the first page of tasks was served."""
    original, acts = fake.list_tasks, iter([act])

    def act_once(query: dict[str, str]) -> tuple[int, Any]:
        reply = original(query)
        next(acts, lambda: None)()
        return reply

    monkeypatch.setattr(fake, "list_tasks", act_once)


# ---- annotations and the answers pulled from them


def test_two_annotators_change_and_withdraw_answers(fake: FakeStudio, start: Start) -> None:
    session = start(2, min_annotators=2, rule="unanimous")
    one, two = fake.tasks
    fake.annotate(one, choice("cat"), user=1, seconds=3.0)
    fake.annotate(one, choice("dog"), user=2, seconds=4.0)
    fake.annotate(two, [], user=1, seconds=1.0, was_cancelled=True)
    assert new_answers(session) == ["0 p1 cat", "0 p2 dog", "1 p1 skip"]
    assert session.store.status("cam/1-0.png").state == "disputed"
    update_annotation(fake, one, 1, LATER, result=choice("cat"), lead_time=6.5)  # the server adds to the time
    assert new_answers(session) == ["0 p2 cat"]
    status = session.store.status("cam/1-0.png")
    assert (status.word, status.seconds) == ("cat", 3.0 + 6.5)
    session.withdraw(one, LATEST, 0)
    assert new_answers(session) == ["0 p1 "]
    assert session.store.status("cam/1-0.png").state == "open"
    update_annotation(fake, one, 0, LATEST, was_cancelled=True)  # skipped later: the answer is withdrawn
    assert new_answers(session) == ["0 p2 "]
    assert session.store.status("cam/1-0.png").votes == ()
    external_ids = [answer.external_id for answer in session.store.answers()]
    assert len(set(external_ids)) == len(external_ids)


def test_an_older_annotation_counts_when_the_newest_is_deleted(fake: FakeStudio, start: Start) -> None:
    session = start()
    [task] = fake.tasks
    fake.annotate(task, choice("cat"))
    fake.annotate(task, choice("dog"))
    assert new_answers(session) == ["0 p1 dog"]
    session.withdraw(task, LATER, 1)
    assert new_answers(session) == ["0 p1 cat"]
    for when in (LATER, LATEST):
        fake.annotate(task, choice("dog"))
        fake.tasks[task]["updated_at"] = when
        assert (new_answers(session), session.labels()) == (["0 p1 dog"], ["dog"])
        session.withdraw(task, when, 1)
        assert (new_answers(session), session.labels()) == (["0 p1 cat"], ["cat"])


def test_unknown_tasks_and_rejected_answers_are_logged_once(fake: FakeStudio, start: Start) -> None:
    session = start(2)
    first, second = fake.tasks
    meta = fake.tasks[first]["meta"]
    fake.annotate(first, choice("unicorn"))
    fake.annotate(second, choice("long " * 200))
    metas = [{**meta, "key": "not queried"}, "text", ["list"], {"run": 5}, None, {**meta, "run": "another"}]
    imported = session.import_tasks({"data": {}}, *({"data": {"round": 1}, "meta": one} for one in metas))
    results = (choice("cat"), {"not": "a list"}, choice("longer " * 200), choice("cat"))
    for task, result in zip([*imported[:3], imported[-1]], results, strict=True):
        fake.annotate(task, result)
    assert session.push().existing_tasks == 2
    # The task of another run is ignored.
    assert session.pull().rejected == {"unknown class": 2, "unknown question": 3}
    assert session.pull_words() == []
    # A corrupt state: all is read again, stored once.
    (session.store.folder / "label-studio.json").write_text('{"url": ')
    assert session.pull_words() == []
    assert len(session.store.answers()) == 5


@pytest.mark.parametrize("source", ["page", "another task"])
def test_a_later_answer_from_elsewhere_is_not_withdrawn(fake: FakeStudio, start: Start, source: str) -> None:
    session = start()
    [task] = fake.tasks
    fake.annotate(task, choice("cat"))
    session.pull()
    if source == "page":
        answer = {"question": "cam/1-0.png", "word": "dog", "annotator": "p1@example.org"}
        session.store.receive([answer], channel="page")
    else:
        fake.annotate(session.import_copies(task)[0], choice("dog"))
        session.pull()
    session.withdraw(task, LATER)
    assert (session.pull_words(), session.labels()) == ([], ["dog"])


@pytest.mark.parametrize(
    ("rule", "min_annotators", "words", "is_requested"),
    [
        ("first", 1, ["unsure"], True),
        ("first", 1, ["cat"], False),
        ("majority", 2, ["cat", "dog"], True),
        ("unanimous", 2, ["cat", "dog"], False),  # a third annotator could not settle it
        ("unanimous", 2, ["cat"], False),  # the server itself requests a second annotator
    ],
)
def test_another_annotator_is_requested_if_that_can_settle_the_question(
    fake: FakeStudio, start: Start, rule: str, min_annotators: int, words: list[str], is_requested: bool
) -> None:
    session = start(rule=rule, min_annotators=min_annotators)
    [task] = fake.tasks.values()
    for user, word in enumerate(words, 1):
        fake.annotate(task["id"], choice(word), user=user)
    for _ in range(3):
        session.pull()
    n_requests = sum(method == "PATCH" and "/tasks/" in path for method, path in fake.requests)
    assert n_requests == int(is_requested)
    assert task["overlap"] == (len(words) + 1 if is_requested else min_annotators)
    assert task["is_labeled"] == (not is_requested and len(words) == min_annotators)


# ---- tasks that change during a pull, and copies of tasks


def test_a_task_changed_during_a_pull_is_read_by_the_next(
    fake: FakeStudio, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = start(102)
    first, last = min(fake.tasks), max(fake.tasks)
    clock = itertools.count(0.0, 600.0)
    module = importlib.import_module("ducats.annotation.label_studio.pull")
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))

    def annotate_between_pages() -> None:  # ten minutes between the first and the second page
        fake.annotate(first, choice("cat"))
        fake.annotate(last, choice("dog"))
        fake.tasks[first]["updated_at"] = LATER
        fake.tasks[last]["updated_at"] = "2099-01-01T00:09:00.000000Z"

    after_first_page(monkeypatch, fake, annotate_between_pages)
    assert [session.pull_words(), session.pull_words()] == [["dog"], ["cat"]]


def test_copies_are_deleted_and_a_task_deleted_during_a_pull_hides_no_other(
    fake: FakeStudio, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = start(102)
    copies = session.import_copies(*fake.tasks)
    fake.annotate(copies[7], choice("dog"))
    again = session.push()
    assert (again.new_tasks, again.existing_tasks) == (0, 102)
    keys = [task["meta"]["key"] for task in fake.tasks.values()]
    assert len(keys) == len(set(keys)) == 102
    assert copies[7] in fake.tasks  # the answered copy is kept
    numbers = sorted(fake.tasks)
    fake.annotate(numbers[100], choice("cat"))
    after_first_page(monkeypatch, fake, lambda: fake.tasks.pop(numbers[0]))
    assert session.pull_words() == ["cat", "dog"]


# ---- rounds, projects and servers


def test_a_new_round_uses_the_same_project(fake: FakeStudio, start: Start) -> None:
    session = start(2, min_annotators=2, rule="unanimous")
    for task, user in itertools.product(list(fake.tasks), (1, 2)):
        fake.annotate(task, choice("cat"), user=user)
    session.pull()
    assert session.store.close_round(1) is not None
    fake.annotate(min(fake.tasks), choice("dog"), user=3)
    assert session.pull().rejected == {"late": 1}
    with pytest.raises(UserError, match="no open round"):
        session.push()
    session.store = image_store(session.store.folder, 3, round_number=2)
    answer = {"question": "cam/2-1.png", "word": "cat", "annotator": "anna"}
    session.store.receive([answer], channel="page")  # settled: gets no task
    found = session.push()
    assert (found.round, found.new_tasks, found.answered_images) == (2, 2, 1)
    [project] = fake.projects.values()
    assert project["model_version"] == "ducats-round-2"
    assert [task["data"]["key"] for task in fake.tasks.values()][2:] == ["cam/2-0.png", "cam/2-2.png"]
    assert [tab["data"]["title"] for tab in fake.tabs] == ["Round 1", "Round 2"]


def test_runs_with_the_same_name_get_separate_projects(
    fake: FakeStudio, start: Start, tmp_path: Path
) -> None:
    session = start(2)
    other = Session(fake, session.studio, image_store(tmp_path / "other" / "questions", 3))
    with pytest.raises(UserError, match="has no project of this run"):
        other.pull()
    assert other.push().new_tasks == 3
    session.forget()
    assert session.push().existing_tasks == 2
    assert len(fake.projects) == 2
    with pytest.raises(UserError, match="has no project 999"):
        session.push("x", project="999")
    session.forget()
    assert session.pull_words() == []  # the project is found by its description


def test_a_new_server_at_the_same_address_withdraws_no_answer(fake: FakeStudio, start: Start) -> None:
    session = start(4)
    first, second, *_ = fake.tasks
    fake.annotate(first, choice("cat"), user=1)
    fake.annotate(second, choice("dog"), user=2)
    session.pull()
    fake.reset()  # its database is lost: projects, tasks and annotations are numbered from 1 again
    assert session.push().new_tasks == 2
    assert first in fake.tasks
    assert session.pull_words() == []
    for task in fake.tasks:
        fake.annotate(task, choice("dog"), user=1)
    session.pull()
    assert session.labels() == ["cat", "dog", "dog", "dog"]


@pytest.mark.parametrize("is_new_server", [True, False])
def test_a_project_of_others_is_not_changed(fake: FakeStudio, start: Start, is_new_server: bool) -> None:
    session = start()
    if is_new_server:
        fake.reset()
    theirs = session.studio.create_project({"title": "theirs", "description": "", "label_config": "<View/>"})
    if is_new_server:
        assert theirs["id"] == session.state.project
    else:  # pulling from a wrong project does not redirect the next push
        session.pull(theirs["id"])
    session.push()
    assert fake.projects[theirs["id"]]["label_config"] == "<View/>"
    assert len(fake.projects) == 2
    with pytest.raises(UserError, match="has no project 999"):
        session.pull(999)


def test_a_copy_of_the_run_with_other_pixels_gets_its_own_tasks(fake: FakeStudio, tmp_path: Path) -> None:
    sessions = []
    for offset in (3, 5):  # equal in the first round, different in the second
        store = pixel_store(tmp_path / f"run-{offset}" / "questions", [[(0, 0)]])
        sessions.append(Session(fake, connect(fake), store))
        original = sessions[0].store.round_folder(1) / "questions.jsonl"  # with the same paths
        (store.round_folder(1) / "questions.jsonl").write_bytes(original.read_bytes())
        store.close_round(1, answered_by_png=store.question_round(1).by_id)
        other = pixel_store(tmp_path / str(offset) / "questions", [[(offset, offset)]]).question_round(1)
        QuestionRound.write(store.round_folder(2), replace(other.rules, round=2), other.questions)
    for session in sessions:
        assert session.push(images="https://example.org/").new_tasks == 1
    assert len(fake.projects) == 1
    for task in fake.tasks.values():
        fake.annotate(task["id"], task["predictions"][0]["result"])
    sessions[1].pull()
    assert sessions[1].store.status("street-0#5,5").state == "settled"


def test_a_long_title_and_a_second_push_after_a_blind_one(fake: FakeStudio, tmp_path: Path) -> None:
    session = Session(fake, connect(fake), image_store(tmp_path / "questions", 2))
    title = "ducats: " + "name " * 20
    session.push(title, blind=True)
    session.forget()
    again = session.push(title)
    assert (again.new_tasks, again.existing_tasks) == (0, 2)
    [project] = fake.projects.values()
    assert (project["title"], project["model_version"]) == (title[:50].strip(), "")


def test_watching_ends_when_the_round_is_closed_while_the_server_is_down(tmp_path: Path) -> None:
    store = image_store(tmp_path / "questions", 1)
    messages: list[str] = []

    def answer_and_close(_: float) -> None:
        store.receive([{"question": "cam/1-0.png", "word": "cat", "annotator": "anna"}], channel="page")
        store.close_round(1)

    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, but not listening
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        client = JsonClient(
            url, ApiToken(LEGACY_TOKEN), retry_timeout=2.0, notify=messages.append, sleep=answer_and_close
        )
        options: dict[str, Any] = {"on_pull": lambda _: None, "notified": threading.Event()}
        pull_until_closed(store, LabelStudio(client), 1, poll=0.01, **options)
        assert len(messages) == 1
        with pytest.raises(ServerUnavailableError, match="does not respond"):  # no open round to wait for
            pull_until_closed(store, LabelStudio(client), 1, poll=0.01, **options)
