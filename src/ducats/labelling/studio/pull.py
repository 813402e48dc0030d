"""Pull new and changed answers from Label Studio into the annotation store."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from ducats.annotation import AnnotationStore, Answer, Question
from ducats.annotation.answer import MAX_TEXT_LENGTH, SKIP_WORD, UNDO_WORD
from ducats.errors import UserError
from ducats.labelling.studio.api import Studio, changed_after
from ducats.labelling.studio.reading import Said, read
from ducats.labelling.studio.state import State, held
from ducats.labelling.studio.tasks import by_image, mark, marks_on, of_these

VIA = "label-studio"
OVERLAP = timedelta(seconds=60)  # on a busy server, a task becomes visible well after its timestamp
LONG_AGO = "2000-01-01T00:00:00Z"
UNREADABLE = "unreadable"


@dataclass
class Pulled:
    """Result of a pull."""

    project: int
    received: list[Answer] = field(default_factory=list)
    stray: int = 0  # points moved off their pixels

    @property
    def refused(self) -> Counter[str]:
        """Number of rejected answers by reason."""
        return Counter(answer.reject_reason for answer in self.received if answer.reject_reason is not None)


def pull(desk: AnnotationStore, studio: Studio, project: int | None = None) -> Pulled:
    """Store the answers that are new or changed on the server. Answers pulled before are skipped.

    Args:
        project: project number; None for the project of the last push.
    """
    with held(desk.folder):
        state = State.read(desk.folder)
        number = project or (state.project if state.url == studio.client.url else 0)
        number = number or _look(desk, studio)
        found = studio.project(number)
        if found is None:
            raise UserError(
                f"{studio.client.url} has no project {number}; run `ducats push` first, or give --project"
            )
        made = str(found["created_at"])
        state = state.at(studio.client.url, number, made)
        # Include the creation time: a new server at the same address numbers projects and tasks from 1 again.
        place = f"{VIA}:{number}-{''.join(filter(str.isdecimal, made))}"
        pulled = Pulled(number)
        rounds = desk.round_numbers()
        name, users = mark(desk), studio.users()
        since = newest = _moment(state.since or LONG_AGO)
        groups: dict[int, dict[str, list[Question]]] = {}
        earlier = _earlier(desk, place)
        began = time.monotonic()
        for task in studio.tasks(number, changed_after(_text(since - OVERLAP))):
            newest = max(newest, _moment(task["updated_at"]))
            own = marks_on(task)
            if own.get("run") not in (None, name):
                continue  # a task of another run
            questions = _questions(desk, rounds, groups, name, own)
            if questions:
                state.tasks.setdefault(str(own["round"]), {})[own["key"]] = int(task["id"])
            heard = earlier.get(int(task["id"]), [])
            given, stray = answers_of(desk, place, task, questions, heard, users)
            pulled.stray += stray
            if given:
                pulled.received += desk.receive(given, channel=VIA)
            if questions and task.get("is_labeled") and _needs_another(desk, questions, own["round"]):
                # The server counts the task as completed, but the answer is unsure or disputed.
                studio.ask_another(
                    int(task["id"]), 1 + sum(not a["was_cancelled"] for a in task["annotations"])
                )
        # Tasks already read may have changed since: everything is stored only up to the start of the loop.
        reading = timedelta(seconds=time.monotonic() - began)
        state.since = _text(max(since, newest - reading))
        if state.tasks:  # else it is another project: a wrong --project must not redirect the next push
            state.write(desk.folder)
    return pulled


def _look(desk: AnnotationStore, studio: Studio) -> int:
    """Find the project of this run by its description."""
    if desk.round_numbers():
        for one in studio.described(mark(desk)):
            return int(one["id"])
    raise UserError(
        f"{studio.client.url} has no project of this run; run `ducats push` first, or give --project"
    )


def _moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _text(moment: datetime) -> str:
    """Format a time for a filter. The server requires microseconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _questions(
    desk: AnnotationStore,
    rounds: Sequence[int],
    groups: dict[int, dict[str, list[Question]]],
    name: str,
    own: Mapping[str, Any],
) -> list[Question]:
    """Return the questions of a task, identified by its `meta`; none for an unknown task."""
    number, key = own.get("round"), own.get("key")
    if not isinstance(number, int) or number not in rounds or not isinstance(key, str):
        return []
    if number not in groups:
        groups[number] = by_image(desk.question_round(number))
    questions = groups[number].get(key, [])
    return questions if questions and of_these(own, number, questions, name) else []


def _needs_another(desk: AnnotationStore, questions: Sequence[Question], number: int) -> bool:
    """Return whether an answer by one more annotator could settle a question of the task."""
    if desk.round_numbers()[-1] != number or desk.closed_round(number) is not None:
        return False
    could = {"open", "disputed"} if desk.question_round(number).rules.rule == "majority" else {"open"}
    return any(desk.status(question.id).state in could for question in questions)


def _earlier(desk: AnnotationStore, place: str) -> dict[int, list[Answer]]:
    """Return the answers received from a project, by task id."""
    found: dict[int, list[Answer]] = {}
    for answer in desk.answers():
        if answer.external_id is not None and answer.external_id.startswith(f"{place}:"):
            found.setdefault(int(answer.external_id.split(":")[2]), []).append(answer)
    return found


def answers_of(
    desk: AnnotationStore,
    place: str,
    task: Mapping[str, Any],
    questions: Sequence[Question],
    heard: Sequence[Answer],
    users: Mapping[int, str],
) -> tuple[list[dict[str, Any]], int]:
    """Return the new answers in a task and the number of stray points.

    Only the newest annotation of each annotator counts. An answer that differs from the one received before
    is new. An answer that is missing now, or whose annotation was deleted, is withdrawn.
    """
    head = f"{place}:{task['id']}"
    last = {(answer.annotator, answer.question): answer for answer in heard}
    given: list[dict[str, Any]] = []
    stray = 0
    present: set[str] = set()
    for annotation in _newest(task["annotations"]):
        who = _who(annotation, users)
        present.add(who)
        version = f"{head}:{annotation['id']}:{annotation['updated_at']}"
        said = _said(desk, annotation, questions, task)
        stray += said.stray
        fresh: list[dict[str, Any]] = []
        for question in [*dict.fromkeys([*said.words, *(q for w, q in last if w == who)])]:
            word = said.words.get(question, UNDO_WORD)[:MAX_TEXT_LENGTH]
            before = last.get((who, question))
            if word == (before.word if before is not None else UNDO_WORD):
                continue
            if before is not None and str(before.external_id).startswith(version):
                continue  # already received, in another spelling
            if word == SKIP_WORD and before is not None and before.word != UNDO_WORD:
                word = UNDO_WORD  # a skip alone would keep the earlier answer
            if word == UNDO_WORD and before is not None and not _stands(desk, before):
                continue
            # An older annotation counts again when the annotator's newer one is deleted.
            again = sum(
                one.question == question and str(one.external_id).startswith(version) for one in heard
            )
            ref = f"{version}+{again}:{question}" if again else f"{version}:{question}"
            fresh.append({"question": question, "word": word, "who": who, "ref": ref})
        spent = _seconds(annotation, heard, f"{head}:{annotation['id']}:")
        for one in fresh:
            one["seconds"] = None if spent is None else round(spent / len(fresh), 3)
        given += fresh
    for (who, question), answer in last.items():
        if who not in present and answer.word not in (UNDO_WORD, SKIP_WORD) and _stands(desk, answer):
            ref = f"{head}:{str(answer.external_id).split(':')[3]}:removed:{question}"
            given.append({"question": question, "word": UNDO_WORD, "who": who, "ref": ref})
    return given, stray


def _newest(annotations: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the newest annotation of each annotator, oldest first."""
    by_person: dict[Any, Mapping[str, Any]] = {}
    for annotation in sorted(annotations, key=lambda one: (_moment(one["updated_at"]), int(one["id"]))):
        by_person.pop(annotation["completed_by"], None)
        by_person[annotation["completed_by"]] = annotation
    yield from by_person.values()


def _who(annotation: Mapping[str, Any], users: Mapping[int, str]) -> str:
    person = annotation["completed_by"]
    return users.get(person, f"user {person}")


def _said(
    desk: AnnotationStore,
    annotation: Mapping[str, Any],
    questions: Sequence[Question],
    task: Mapping[str, Any],
) -> Said:
    """Parse an annotation. Unknown tasks and invalid regions yield entries that are logged as rejected."""
    if not questions:
        return Said({f"task {task['id']}": str(_raw(annotation["result"]))}, 0, 0)
    if annotation["was_cancelled"]:
        return Said({question.id: SKIP_WORD for question in questions}, 0, 0)
    terms = desk.question_round(int(task["meta"]["round"])).rules
    said = read(annotation["result"], questions, terms)
    if said.spoilt:
        said.words[f"{questions[0].key} (task {task['id']})"] = UNREADABLE
    return said


def _raw(result: Any) -> Any:
    """Return the first label in an annotation of an unknown task."""
    try:
        return next(value[0] for value in result[0]["value"].values() if isinstance(value, list))
    except (TypeError, KeyError, IndexError, AttributeError, StopIteration):
        return UNREADABLE


def _seconds(annotation: Mapping[str, Any], heard: Iterable[Answer], head: str) -> float | None:
    """Return the annotation time not counted yet. The server adds to it when an annotation is changed."""
    total = annotation.get("lead_time")
    if isinstance(total, bool) or not isinstance(total, int | float):
        return None
    counted = sum(
        one.seconds or 0.0
        for one in heard
        if one.external_id is not None and one.external_id.startswith(head)
    )
    return max(0.0, total - counted)


def _stands(desk: AnnotationStore, answer: Answer) -> bool:
    """Return whether this is the annotator's latest answer to the question, over all channels and tasks."""
    own = [one for one in desk.answers(answer.question) if one.annotator == answer.annotator]
    return not own or own[-1].external_id == answer.external_id
