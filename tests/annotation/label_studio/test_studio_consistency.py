"""No lost, duplicated or mixed-up answers: new servers, changing tasks, copies of runs."""

import importlib
import itertools
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_studio
import pytest
from fake_studio import LEGACY_TOKEN, FakeStudio, choice
from studio_rounds import image_store, pixel_store

from ducats.annotation import AnnotationStore
from ducats.annotation.label_studio.api import LabelStudio
from ducats.annotation.label_studio.client import ApiToken, JsonClient, ServerUnavailableError
from ducats.annotation.label_studio.pull import pull_answers
from ducats.annotation.label_studio.pull_loop import pull_until_closed
from ducats.annotation.label_studio.push import push_questions
from ducats.annotation.label_studio.sync_state import SyncState
from ducats.utils.errors import UserError

shared, fake, studio = fake_studio.shared, fake_studio.fake, fake_studio.studio
LATER, LATEST = "2099-01-01T00:00:00.000000Z", "2099-01-01T00:01:00.000000Z"


def labels(store: AnnotationStore) -> dict[str, str | None]:
    return {question: status.word for question, status in store.statuses(1).items()}


def after_pages(monkeypatch: pytest.MonkeyPatch, fake: FakeStudio, pages: int, act: Any) -> None:
    """Call ``act`` after this many pages of tasks were served."""
    n_pages, original = [0], fake._list

    def counted(query: dict[str, str]) -> tuple[int, Any]:
        reply = original(query)
        n_pages[0] += 1
        if n_pages[0] == pages:
            act()
        return reply

    monkeypatch.setattr(fake, "_list", counted)


def test_a_new_server_at_the_same_address_withdraws_no_answer(
    fake: FakeStudio, studio: LabelStudio, tmp_path: Path
) -> None:
    store = image_store(tmp_path / "questions", 4)
    push_questions(store, studio, "ducats: new")
    first, second, *_ = fake.tasks
    fake.annotate(first, choice("cat"), user=1)
    fake.annotate(second, choice("dog"), user=2)
    pull_answers(store, studio)
    fake.reset()  # its database is lost: projects, tasks and annotations are numbered from 1 again
    assert push_questions(store, studio, "ducats: new").new_tasks == 2
    assert first in fake.tasks
    assert pull_answers(store, studio).received == []
    for task in fake.tasks:
        fake.annotate(task, choice("dog"), user=1)
    pull_answers(store, studio)
    assert list(labels(store).values()) == ["cat", "dog", "dog", "dog"]


def test_a_project_of_others_with_our_number_is_not_changed(
    fake: FakeStudio, studio: LabelStudio, tmp_path: Path
) -> None:
    store = image_store(tmp_path / "questions", 1)
    push_questions(store, studio, "ducats: mine")
    fake.reset()
    theirs = studio.create_project({"title": "theirs", "description": "", "label_config": "<View/>"})
    assert theirs["id"] == SyncState.read(store.folder).project
    push_questions(store, studio, "ducats: mine")
    assert fake.projects[theirs["id"]]["label_config"] == "<View/>"
    assert len(fake.projects) == 2


def test_pulling_from_a_wrong_project_does_not_redirect_the_next_push(
    fake: FakeStudio, studio: LabelStudio, tmp_path: Path
) -> None:
    store = image_store(tmp_path / "questions", 1)
    push_questions(store, studio, "ducats: mine")
    theirs = studio.create_project({"title": "theirs", "description": "", "label_config": "<View/>"})
    pull_answers(store, studio, theirs["id"])
    push_questions(store, studio, "ducats: mine")
    assert fake.projects[theirs["id"]]["label_config"] == "<View/>"
    with pytest.raises(UserError, match="has no project 999"):
        pull_answers(store, studio, 999)


def test_an_older_annotation_counts_again_when_the_newer_one_is_deleted(
    fake: FakeStudio, studio: LabelStudio, tmp_path: Path
) -> None:
    store = image_store(tmp_path / "questions", 1)
    push_questions(store, studio, "ducats: again")
    [task] = fake.tasks
    fake.annotate(task, choice("cat"))
    pull_answers(store, studio)
    for when in (LATER, LATEST):
        fake.annotate(task, choice("dog"))
        fake.tasks[task]["updated_at"] = when
        pull_answers(store, studio)
        assert list(labels(store).values()) == ["dog"]
        del fake.tasks[task]["annotations"][1]
        for _ in range(2):
            pull_answers(store, studio)
        assert list(labels(store).values()) == ["cat"]
    assert [answer.word for answer in store.answers()] == ["cat", "dog", "cat", "dog", "cat"]


def test_tasks_that_change_during_a_pull_are_read_by_the_next_pull(
    fake: FakeStudio, studio: LabelStudio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = image_store(tmp_path / "questions", 102)
    push_questions(store, studio, "ducats: moving")
    first, last = min(fake.tasks), max(fake.tasks)
    clock = itertools.count(0.0, 600.0)
    module = importlib.import_module("ducats.annotation.label_studio.pull")
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))

    def annotate_between_pages() -> None:  # ten minutes between the first and the second page
        fake.annotate(first, choice("cat"))
        fake.annotate(last, choice("dog"))
        fake.tasks[first]["updated_at"] = LATER
        fake.tasks[last]["updated_at"] = "2099-01-01T00:09:00.000000Z"

    after_pages(monkeypatch, fake, 1, annotate_between_pages)
    assert [answer.word for answer in pull_answers(store, studio).received] == ["dog"]
    assert [answer.word for answer in pull_answers(store, studio).received] == ["cat"]


def test_a_task_deleted_during_a_pull_hides_no_other(
    fake: FakeStudio, studio: LabelStudio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = image_store(tmp_path / "questions", 102)
    push_questions(store, studio, "ducats: fewer")
    numbers = sorted(fake.tasks)
    fake.annotate(numbers[100], choice("cat"))
    after_pages(monkeypatch, fake, 1, lambda: fake.tasks.pop(numbers[0]))
    assert [answer.word for answer in pull_answers(store, studio).received] == ["cat"]


def test_duplicates_on_several_pages_are_deleted_and_the_answered_copy_is_kept(
    fake: FakeStudio, studio: LabelStudio, tmp_path: Path
) -> None:
    store = image_store(tmp_path / "questions", 102)
    push_questions(store, studio, "ducats: copies")
    tasks = [{"data": task["data"], "meta": task["meta"]} for task in fake.tasks.values()]
    copies = studio.import_tasks(next(iter(fake.projects)), tasks)
    fake.annotate(copies[7], choice("dog"))
    again = push_questions(store, studio, "ducats: copies")
    assert (again.new_tasks, again.existing_tasks) == (0, 102)
    keys = [task["meta"]["key"] for task in fake.tasks.values()]
    assert len(keys) == len(set(keys)) == 102
    assert copies[7] in fake.tasks


def test_a_later_answer_from_another_task_is_not_withdrawn(
    fake: FakeStudio, studio: LabelStudio, tmp_path: Path
) -> None:
    store = image_store(tmp_path / "questions", 1)
    push_questions(store, studio, "ducats: two")
    [task] = fake.tasks
    body = {"data": fake.tasks[task]["data"], "meta": fake.tasks[task]["meta"]}
    [copy] = studio.import_tasks(next(iter(fake.projects)), [body])
    for number in (task, copy):
        fake.annotate(number, choice("cat"))
        pull_answers(store, studio)
    fake.tasks[task]["annotations"].clear()
    fake.tasks[task]["updated_at"] = LATER
    pull_answers(store, studio)
    assert list(labels(store).values()) == ["cat"]


def test_unknown_tasks_in_the_project_are_logged_once_and_stop_nothing(
    fake: FakeStudio, studio: LabelStudio, tmp_path: Path
) -> None:
    store = image_store(tmp_path / "questions", 1)
    push_questions(store, studio, "ducats: strangers")
    [task] = fake.tasks
    strange = [{"data": {"round": 1}, "meta": meta} for meta in ("text", ["list"], {"run": 5}, None)]
    numbers = studio.import_tasks(next(iter(fake.projects)), strange)
    fake.annotate(task, choice("long " * 200))
    fake.annotate(numbers[0], choice("longer " * 200))
    assert push_questions(store, studio, "ducats: strangers").existing_tasks == 1
    for _ in range(3):
        pull_answers(store, studio)
    assert [answer.reject_reason for answer in store.answers()] == ["unknown class", "unknown question"]


def test_a_copy_of_the_run_with_other_pixels_gets_its_own_tasks(
    fake: FakeStudio, studio: LabelStudio, tmp_path: Path
) -> None:
    store = pixel_store(tmp_path / "a" / "run" / "questions", [[(0, 0)]])
    other = pixel_store(tmp_path / "b" / "run" / "questions", [[(0, 0)]])
    for offset, own in ((3, store), (5, other)):  # equal in the first round, different in the second
        first, second = own.round_folder(1), own.round_folder(2)
        new_round = pixel_store(tmp_path / str(offset) / "questions", [[(offset, offset)]]).round_folder(1)
        own.close_round(1, answered_by_png=own.question_round(1).by_id)
        second.mkdir()
        (second / "questions.jsonl").write_bytes((new_round / "questions.jsonl").read_bytes())
        rules = (first / "rules.json").read_text().replace('"round": 1', '"round": 2')
        (second / "rules.json").write_text(rules)
        (first / "questions.jsonl").write_text((store.round_folder(1) / "questions.jsonl").read_text())
    assert push_questions(store, studio, "ducats: run", images="https://example.org/").new_tasks == 1
    assert push_questions(other, studio, "ducats: run", images="https://example.org/").new_tasks == 1
    assert len(fake.projects) == 1
    for task in fake.tasks.values():
        fake.annotate(task["id"], task["predictions"][0]["result"])
    pull_answers(other, studio)
    assert other.status("street-0#5,5").state == "settled"


def test_a_long_title_is_truncated_to_the_limit_of_the_server(
    fake: FakeStudio, studio: LabelStudio, tmp_path: Path
) -> None:
    store = image_store(tmp_path / "questions", 1)
    title = "ducats: " + "name " * 20
    push_questions(store, studio, title)
    (store.folder / "label-studio.json").unlink()
    assert push_questions(store, studio, title).existing_tasks == 1
    assert [len(one["title"]) for one in fake.projects.values()] == [len(title[:50].strip())]


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
    fake: FakeStudio,
    studio: LabelStudio,
    tmp_path: Path,
    rule: str,
    min_annotators: int,
    words: list[str],
    is_requested: bool,
) -> None:
    store = image_store(tmp_path / "questions", 1, rule=rule, min_annotators=min_annotators)
    push_questions(store, studio, "ducats: else")
    [task] = fake.tasks.values()
    for user, word in enumerate(words, 1):
        fake.annotate(task["id"], choice(word), user=user)
    for _ in range(3):
        pull_answers(store, studio)
    n_requests = sum(method == "PATCH" and "/tasks/" in path for method, path in fake.requests)
    assert n_requests == int(is_requested)
    assert task["overlap"] == (len(words) + 1 if is_requested else min_annotators)
    assert task["is_labeled"] == (not is_requested and len(words) == min_annotators)


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


def test_a_push_after_a_blind_push_of_the_same_round_changes_nothing(
    fake: FakeStudio, studio: LabelStudio, tmp_path: Path
) -> None:
    store = image_store(tmp_path / "questions", 2)
    push_questions(store, studio, "ducats: blind", blind=True)
    again = push_questions(store, studio, "ducats: blind")
    assert (again.new_tasks, again.existing_tasks) == (0, 2)
    assert [one["model_version"] for one in fake.projects.values()] == [""]
