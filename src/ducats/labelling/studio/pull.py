"""Answers from Label Studio: what changed there since, brought to the desk once."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from ducats.answers import Answer, Desk, Question
from ducats.answers.answer import SKIP_WORD, UNDO_WORD
from ducats.errors import UserError
from ducats.labelling.studio.api import Studio, changed_after
from ducats.labelling.studio.reading import Said, read
from ducats.labelling.studio.state import State, held
from ducats.labelling.studio.tasks import by_image, mark

VIA = "label-studio"
OVERLAP = timedelta(seconds=10)  # a task is stamped a moment before others can see it
UNREADABLE = "unreadable"


@dataclass
class Pulled:
    """What a pull came to."""

    received: list[Answer] = field(default_factory=list)
    stray: int = 0  # points that were moved off their pixels

    @property
    def refused(self) -> Counter[str]:
        """Answers that do not count, by reason."""
        return Counter(answer.refused for answer in self.received if answer.refused is not None)


def pull(desk: Desk, studio: Studio, project: int | None = None) -> Pulled:
    """Bring what is new on the server to the desk; nothing is taken twice.

    Args:
        desk: with the questions.
        studio: the server.
        project: where the tasks are, if it is not known from a push.
    """
    with held(desk.folder):
        state = State.read(desk.folder)
        number = project or (state.project if state.url == studio.client.url else 0)
        number = number or _look(desk, studio)
        state = state.at(studio.client.url, number)
        pulled = Pulled()
        rounds = desk.rounds()
        name, users = mark(desk), studio.users()
        newest = state.since
        groups: dict[int, dict[str, list[Question]]] = {}
        earlier = _earlier(desk, number)
        for task in studio.tasks(number, *([changed_after(_before(state.since))] if state.since else [])):
            newest = max(newest, str(task["updated_at"]))
            marks = task.get("meta") or {}
            if marks.get("run") not in (None, name):
                continue  # another run's
            questions = _questions(desk, rounds, groups, marks)
            if questions:
                state.tasks.setdefault(str(marks["round"]), {})[marks["key"]] = int(task["id"])
            heard = earlier.get(int(task["id"]), [])
            given, stray = answers_of(desk, number, task, questions, heard, users)
            pulled.stray += stray
            if given:
                pulled.received += desk.receive(given, via=VIA)
        state.since = newest  # last: all that it stands for is on disk
        state.write(desk.folder)
    return pulled


def _look(desk: Desk, studio: Studio) -> int:
    """The project that a push made, from its description."""
    if desk.rounds():
        for one in studio.described(mark(desk)):
            return int(one["id"])
    raise UserError(
        f"{studio.client.url} has no project of this run: `ducats push` it first, or name --project"
    )


def _before(moment: str) -> str:
    return (datetime.fromisoformat(moment) - OVERLAP).isoformat().replace("+00:00", "Z")


def _questions(
    desk: Desk, rounds: Sequence[int], groups: dict[int, dict[str, list[Question]]], marks: Mapping[str, Any]
) -> list[Question]:
    """What a task asks; nothing if it is none of ours."""
    number, key = marks.get("round"), marks.get("key")
    if "run" not in marks or not isinstance(number, int) or number not in rounds:
        return []
    if number not in groups:
        groups[number] = by_image(desk.sheet(number))
    return groups[number].get(str(key), [])


def _earlier(desk: Desk, project: int) -> dict[int, list[Answer]]:
    """What was received from each task of a project."""
    found: dict[int, list[Answer]] = {}
    head = f"{VIA}:{project}:"
    for answer in desk.answers():
        if answer.ref is not None and answer.ref.startswith(head):
            found.setdefault(int(answer.ref.split(":")[2]), []).append(answer)
    return found


def answers_of(
    desk: Desk,
    project: int,
    task: Mapping[str, Any],
    questions: Sequence[Question],
    heard: Sequence[Answer],
    users: Mapping[int, str],
) -> tuple[list[dict[str, Any]], int]:
    """What is new in a task, to be handed in, and how many points lie astray.

    A person's newest annotation counts. What it says otherwise than before is new; what it no longer says, or
    what hung on an annotation that was removed, is withdrawn.
    """
    head = f"{VIA}:{project}:{task['id']}"
    last = {(answer.who, answer.question): answer for answer in heard}
    given: list[dict[str, Any]] = []
    stray = 0
    present: set[str] = set()
    for annotation in _newest(task["annotations"]):
        who = _who(annotation, users)
        present.add(who)
        ref = f"{head}:{annotation['id']}:{annotation['updated_at']}"
        said = _said(desk, annotation, questions, task)
        stray += said.stray
        fresh: list[dict[str, Any]] = []
        for question in [*dict.fromkeys([*said.words, *(q for w, q in last if w == who)])]:
            word = said.words.get(question, UNDO_WORD)
            before = last.get((who, question))
            if word == (before.word if before is not None else UNDO_WORD):
                continue
            if word == SKIP_WORD and before is not None and before.word != UNDO_WORD:
                word = UNDO_WORD  # a skip alone would leave what was said before
            fresh.append({"question": question, "word": word, "who": who, "ref": f"{ref}:{question}"})
        spent = _seconds(annotation, heard, f"{head}:{annotation['id']}:")
        for one in fresh:
            one["seconds"] = None if spent is None else round(spent / len(fresh), 3)
        given += fresh
    for (who, question), answer in last.items():
        if who not in present and answer.word not in (UNDO_WORD, SKIP_WORD) and _stands(desk, answer):
            ref = f"{head}:{str(answer.ref).split(':')[3]}:removed:{question}"
            given.append({"question": question, "word": UNDO_WORD, "who": who, "ref": ref})
    return given, stray


def _newest(annotations: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Each person's newest annotation, oldest of them first."""
    by_person: dict[Any, Mapping[str, Any]] = {}
    for annotation in sorted(annotations, key=lambda one: (str(one["updated_at"]), int(one["id"]))):
        by_person.pop(annotation["completed_by"], None)
        by_person[annotation["completed_by"]] = annotation
    yield from by_person.values()


def _who(annotation: Mapping[str, Any], users: Mapping[int, str]) -> str:
    person = annotation["completed_by"]
    if isinstance(person, Mapping):
        return str(person.get("email") or f"user {person.get('id')}")
    return users.get(person, f"user {person}")


def _said(
    desk: Desk, annotation: Mapping[str, Any], questions: Sequence[Question], task: Mapping[str, Any]
) -> Said:
    """The words of an annotation; of a task that is not ours, and of what makes no sense, for the record."""
    if not questions:
        return Said({f"task {task['id']}": str(_raw(annotation["result"]))}, 0, 0)
    if annotation["was_cancelled"]:
        return Said({question.id: SKIP_WORD for question in questions}, 0, 0)
    terms = desk.sheet(int(task["meta"]["round"])).terms
    said = read(annotation["result"], questions, terms)
    if said.spoilt:
        said.words[f"{questions[0].key} (task {task['id']})"] = UNREADABLE
    return said


def _raw(result: Any) -> Any:
    """The first label in an annotation, whatever it is."""
    try:
        return next(value[0] for value in result[0]["value"].values() if isinstance(value, list))
    except (TypeError, KeyError, IndexError, AttributeError, StopIteration):
        return UNREADABLE


def _seconds(annotation: Mapping[str, Any], heard: Iterable[Answer], head: str) -> float | None:
    """The person's time that was not counted yet: the server counts on when an annotation is changed."""
    total = annotation.get("lead_time")
    if isinstance(total, bool) or not isinstance(total, int | float):
        return None
    counted = sum(one.seconds or 0.0 for one in heard if one.ref is not None and one.ref.startswith(head))
    return max(0.0, total - counted)


def _stands(desk: Desk, answer: Answer) -> bool:
    """Whether nothing came from this person since, by another way."""
    own = [one for one in desk.answers(answer.question) if one.who == answer.who]
    return not own or own[-1].via == VIA
