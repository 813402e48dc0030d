"""What must not get lost, doubled or mixed up: servers made anew, tasks that move, copies of runs."""

import importlib
import itertools
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_studio import LEGACY, Fake, served
from studio_desks import image_desk, pixel_desk

from ducats.answers import Desk
from ducats.errors import UserError
from ducats.labelling.studio import Client, State, Studio, Token, pull, push
from ducats.labelling.studio.client import Away
from ducats.labelling.studio.watch import watch

LATER, LATEST = "2099-01-01T00:00:00.000000Z", "2099-01-01T00:01:00.000000Z"


@pytest.fixture
def fake() -> Iterator[Fake]:
    with served() as fake:
        yield fake


@pytest.fixture
def studio(fake: Fake) -> Studio:
    return Studio(Client(fake.url, Token(LEGACY), timeout=5.0))


def choice(text: str) -> list[dict[str, Any]]:
    return [{"from_name": "class", "to_name": "image", "type": "choices", "value": {"choices": [text]}}]


def labels(desk: Desk) -> dict[str, str | None]:
    return {question: one.word for question, one in desk.standings(1).items()}


def between(fake: Fake, pages: int, act: Any) -> None:
    """Have something happen on the server after so many pages of tasks were given out."""
    given, listed = [0], fake._list

    def counted(query: dict[str, str]) -> tuple[int, Any]:
        told = listed(query)
        given[0] += 1
        if given[0] == pages:
            act()
        return told

    fake._list = counted  # type: ignore[method-assign]


def test_a_new_server_at_the_old_address_takes_no_answer_back(
    fake: Fake, studio: Studio, tmp_path: Path
) -> None:
    desk = image_desk(tmp_path / "questions", 4)
    push(desk, studio, "ducats: new")
    first, second, *_ = fake.tasks
    fake.annotate(first, choice("cat"), who=1)
    fake.annotate(second, choice("dog"), who=2)
    pull(desk, studio)
    fake.forget()  # its database is gone: projects, tasks, annotations count from 1 again
    assert push(desk, studio, "ducats: new").new == 2
    assert first in fake.tasks
    assert pull(desk, studio).received == []
    for task in fake.tasks:
        fake.annotate(task, choice("dog"), who=1)
    pull(desk, studio)
    assert list(labels(desk).values()) == ["cat", "dog", "dog", "dog"]


def test_another_ones_project_that_got_our_number_is_left_alone(
    fake: Fake, studio: Studio, tmp_path: Path
) -> None:
    desk = image_desk(tmp_path / "questions", 1)
    push(desk, studio, "ducats: mine")
    fake.forget()
    theirs = studio.make_project({"title": "theirs", "description": "", "label_config": "<View/>"})
    assert theirs["id"] == State.read(desk.folder).project
    push(desk, studio, "ducats: mine")
    assert fake.projects[theirs["id"]]["label_config"] == "<View/>"
    assert len(fake.projects) == 2


def test_a_wrong_number_given_once_leads_no_push_astray(fake: Fake, studio: Studio, tmp_path: Path) -> None:
    desk = image_desk(tmp_path / "questions", 1)
    push(desk, studio, "ducats: mine")
    theirs = studio.make_project({"title": "theirs", "description": "", "label_config": "<View/>"})
    pull(desk, studio, theirs["id"])
    push(desk, studio, "ducats: mine")
    assert fake.projects[theirs["id"]]["label_config"] == "<View/>"
    with pytest.raises(UserError, match=r"has no project 999: `ducats push` makes one"):
        pull(desk, studio, 999)


def test_an_older_annotation_counts_again_when_the_newer_one_goes(
    fake: Fake, studio: Studio, tmp_path: Path
) -> None:
    desk = image_desk(tmp_path / "questions", 1)
    push(desk, studio, "ducats: again")
    [task] = fake.tasks
    fake.annotate(task, choice("cat"))
    pull(desk, studio)
    for when in (LATER, LATEST):
        fake.annotate(task, choice("dog"))
        fake.tasks[task]["updated_at"] = when
        pull(desk, studio)
        assert list(labels(desk).values()) == ["dog"]
        del fake.tasks[task]["annotations"][1]
        for _ in range(2):
            pull(desk, studio)
        assert list(labels(desk).values()) == ["cat"]
    assert [answer.word for answer in desk.answers()] == ["cat", "dog", "cat", "dog", "cat"]


def test_what_changes_behind_us_while_we_read_is_read_the_next_time(
    fake: Fake, studio: Studio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = image_desk(tmp_path / "questions", 130)
    push(desk, studio, "ducats: moving")
    first, last = min(fake.tasks), max(fake.tasks)
    clock = itertools.count(0.0, 600.0)
    module = importlib.import_module("ducats.labelling.studio.pull")
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))

    def meanwhile() -> None:  # ten minutes lie between the first page and the second
        fake.annotate(first, choice("cat"))
        fake.annotate(last, choice("dog"))
        fake.tasks[first]["updated_at"] = LATER
        fake.tasks[last]["updated_at"] = "2099-01-01T00:09:00.000000Z"

    between(fake, 1, meanwhile)
    assert [answer.word for answer in pull(desk, studio).received] == ["dog"]
    assert [answer.word for answer in pull(desk, studio).received] == ["cat"]


def test_a_task_that_is_removed_while_we_read_hides_no_other(
    fake: Fake, studio: Studio, tmp_path: Path
) -> None:
    desk = image_desk(tmp_path / "questions", 130)
    push(desk, studio, "ducats: fewer")
    numbers = sorted(fake.tasks)
    fake.annotate(numbers[100], choice("cat"))
    between(fake, 1, lambda: fake.tasks.pop(numbers[0]))
    assert [answer.word for answer in pull(desk, studio).received] == ["cat"]


def test_copies_of_more_than_a_page_of_tasks_are_removed_and_the_answered_one_stays(
    fake: Fake, studio: Studio, tmp_path: Path
) -> None:
    desk = image_desk(tmp_path / "questions", 150)
    push(desk, studio, "ducats: copies")
    tasks = [{"data": task["data"], "meta": task["meta"]} for task in fake.tasks.values()]
    copies = studio.add_tasks(next(iter(fake.projects)), tasks)
    fake.annotate(copies[7], choice("dog"))
    again = push(desk, studio, "ducats: copies")
    assert (again.new, again.known) == (0, 150)
    keys = [task["meta"]["key"] for task in fake.tasks.values()]
    assert len(keys) == len(set(keys)) == 150
    assert copies[7] in fake.tasks


def test_an_answer_from_another_task_since_is_not_withdrawn(
    fake: Fake, studio: Studio, tmp_path: Path
) -> None:
    desk = image_desk(tmp_path / "questions", 1)
    push(desk, studio, "ducats: two")
    [task] = fake.tasks
    body = {"data": fake.tasks[task]["data"], "meta": fake.tasks[task]["meta"]}
    [copy] = studio.add_tasks(next(iter(fake.projects)), [body])
    for number in (task, copy):
        fake.annotate(number, choice("cat"))
        pull(desk, studio)
    fake.tasks[task]["annotations"].clear()
    fake.tasks[task]["updated_at"] = LATER
    pull(desk, studio)
    assert list(labels(desk).values()) == ["cat"]


def test_what_a_stranger_put_into_the_project_stops_nothing_and_is_on_record_once(
    fake: Fake, studio: Studio, tmp_path: Path
) -> None:
    desk = image_desk(tmp_path / "questions", 1)
    push(desk, studio, "ducats: strangers")
    [task] = fake.tasks
    strange = [{"data": {"round": 1}, "meta": meta} for meta in ("text", ["list"], {"run": 5}, None)]
    numbers = studio.add_tasks(next(iter(fake.projects)), strange)
    fake.annotate(task, choice("long " * 200))
    fake.annotate(numbers[0], choice("longer " * 200))
    assert push(desk, studio, "ducats: strangers").known == 1
    for _ in range(3):
        pull(desk, studio)
    assert [answer.refused for answer in desk.answers()] == ["no class", "foreign"]


def test_a_copy_of_the_run_that_asks_for_other_pixels_gets_tasks_of_its_own(
    fake: Fake, studio: Studio, tmp_path: Path
) -> None:
    desk = pixel_desk(tmp_path / "a" / "run" / "questions", [[(0, 0)]])
    other = pixel_desk(tmp_path / "b" / "run" / "questions", [[(0, 0)]])
    for place, own in ((3, desk), (5, other)):  # alike in the first round, then no more
        first, second = own.home(1), own.home(2)
        asked = pixel_desk(tmp_path / str(place) / "questions", [[(place, place)]]).home(1)
        own.take(1, elsewhere=own.sheet(1).by_id)
        second.mkdir()
        (second / "questions.jsonl").write_bytes((asked / "questions.jsonl").read_bytes())
        terms = (first / "terms.json").read_text().replace('"round": 1', '"round": 2')
        (second / "terms.json").write_text(terms)
        (first / "questions.jsonl").write_text((desk.home(1) / "questions.jsonl").read_text())
    assert push(desk, studio, "ducats: run", pictures="https://example.org/").new == 1
    assert push(other, studio, "ducats: run", pictures="https://example.org/").new == 1
    assert len(fake.projects) == 1
    for task in fake.tasks.values():
        fake.annotate(task["id"], task["predictions"][0]["result"])
    pull(other, studio)
    assert other.standing("street-0#5,5").state == "settled"


def test_a_long_folder_name_is_cut_to_what_the_server_takes(
    fake: Fake, studio: Studio, tmp_path: Path
) -> None:
    desk = image_desk(tmp_path / "questions", 1)
    title = "ducats: " + "name " * 20
    push(desk, studio, title)
    (desk.folder / "label-studio.json").unlink()
    assert push(desk, studio, title).known == 1
    assert [len(one["title"]) for one in fake.projects.values()] == [len(title[:50].strip())]


@pytest.mark.parametrize(
    ("rule", "people", "words", "again"),
    [
        ("first", 1, ["unsure"], True),
        ("first", 1, ["cat"], False),
        ("majority", 2, ["cat", "dog"], True),
        ("agree", 2, ["cat", "dog"], False),  # a third one could not settle that
        ("agree", 2, ["cat"], False),  # the server asks for a second one itself
    ],
)
def test_somebody_else_is_asked_where_that_can_settle_it(
    fake: Fake, studio: Studio, tmp_path: Path, rule: str, people: int, words: list[str], again: bool
) -> None:
    desk = image_desk(tmp_path / "questions", 1, rule=rule, people=people)
    push(desk, studio, "ducats: else")
    [task] = fake.tasks.values()
    for who, word in enumerate(words, 1):
        fake.annotate(task["id"], choice(word), who=who)
    for _ in range(3):
        pull(desk, studio)
    asked = sum(method == "PATCH" and "/tasks/" in path for method, path in fake.requests)
    assert asked == int(again)
    assert task["overlap"] == (len(words) + 1 if again else people)
    assert task["is_labeled"] == (not again and len(words) == people)


def test_watching_ends_when_the_round_is_taken_though_the_server_is_away(tmp_path: Path) -> None:
    desk = image_desk(tmp_path / "questions", 1)
    said: list[str] = []

    def meanwhile(_: float) -> None:
        desk.receive([{"question": "cam/1-0.png", "word": "cat", "who": "anna", "ref": "one"}], via="page")
        desk.take(1)

    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        client = Client(url, Token(LEGACY), patience=2.0, say=said.append, sleep=meanwhile)
        watch(desk, Studio(client), 1, every=0.01, say=lambda _: None, called=threading.Event())
        assert len(said) == 1
        with pytest.raises(Away, match="does not answer"):  # now there is nothing to wait for
            watch(desk, Studio(client), 1, every=0.01, say=lambda _: None, called=threading.Event())


def test_guesses_after_a_blind_push_of_the_same_round_change_nothing(
    fake: Fake, studio: Studio, tmp_path: Path
) -> None:
    desk = image_desk(tmp_path / "questions", 2)
    push(desk, studio, "ducats: blind", blind=True)
    again = push(desk, studio, "ducats: blind")
    assert (again.new, again.known) == (0, 2)
    assert [one["model_version"] for one in fake.projects.values()] == [""]
