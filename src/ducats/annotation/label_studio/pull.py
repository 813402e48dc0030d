"""Pull new and changed answers from Label Studio into the annotation store."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from ducats.annotation import AnnotationStore, Answer, Question
from ducats.annotation.answer import MAX_TEXT_LENGTH, SKIP_WORD, UNDO_WORD
from ducats.annotation.label_studio.annotation_parser import ParsedAnnotation, parse_annotation
from ducats.annotation.label_studio.api import LabelStudio, task_filter
from ducats.annotation.label_studio.sync_state import SyncState, sync_lock
from ducats.annotation.label_studio.tasks import (
    group_by_image,
    matches_questions,
    read_task_meta,
    run_fingerprint,
)
from ducats.utils.errors import UserError

CHANNEL = "label-studio"
REREAD_OVERLAP = timedelta(seconds=60)  # on a busy server, a task becomes visible well after its timestamp
EARLIEST_TIME = "2000-01-01T00:00:00Z"
UNREADABLE_WORD = "unreadable"


@dataclass
class PullResult:
    """Result of a pull."""

    project_id: int
    received: list[Answer] = field(default_factory=list)
    stray_points: int = 0  # points moved off their pixels

    @property
    def rejected(self) -> Counter[str]:
        """Number of rejected answers by reason."""
        return Counter(answer.reject_reason for answer in self.received if answer.reject_reason is not None)


def pull_answers(store: AnnotationStore, studio: LabelStudio, project: int | None = None) -> PullResult:
    """Store the answers that are new or changed in a project, by default that of the last push."""
    with sync_lock(store.folder):
        state = SyncState.read(store.folder)
        project_id = project or (state.project if state.url == studio.client.url else 0)
        project_id = project_id or _find_project(store, studio)
        project_info = studio.get_project(project_id)
        if project_info is None:
            raise UserError(
                f"{studio.client.url} has no project {project_id}; run `ducats push` first, or give --project"
            )
        created_at = str(project_info["created_at"])
        state = state.for_project(studio.client.url, project_id, created_at)
        # Include the creation time: a new server at the same address numbers projects and tasks from 1 again.
        id_prefix = f"{CHANNEL}:{project_id}-{''.join(filter(str.isdecimal, created_at))}"
        result = PullResult(project_id)
        round_numbers = store.round_numbers()
        fingerprint, users = run_fingerprint(store), studio.user_emails()
        since = newest = _parse_time(state.read_until or EARLIEST_TIME)
        group_questions = cache(lambda number: group_by_image(store.question_round(number)))
        received_by_task = _received_by_task(store, id_prefix)
        started = time.monotonic()
        changed_since = task_filter("updated_at", "greater", _format_time(since - REREAD_OVERLAP))
        for task in studio.iter_tasks(project_id, changed_since):
            newest = max(newest, _parse_time(task["updated_at"]))
            meta = read_task_meta(task)
            if meta.get("run") not in (None, fingerprint):
                continue  # a task of another run
            number: Any = meta.get("round")
            questions: list[Question] = []
            if isinstance(number, int) and number in round_numbers and isinstance(meta.get("key"), str):
                questions = group_questions(number).get(meta["key"], [])
            if questions and not matches_questions(meta, number, questions, fingerprint):
                questions = []  # an unknown task
            if questions:
                state.tasks.setdefault(str(number), {})[meta["key"]] = int(task["id"])
            received = received_by_task.get(int(task["id"]), [])
            raw_answers, n_stray = extract_new_answers(store, id_prefix, task, questions, received, users)
            result.stray_points += n_stray
            if raw_answers:
                result.received += store.receive(raw_answers, channel=CHANNEL)
            if questions and task.get("is_labeled") and _needs_another_annotator(store, questions, number):
                # The server counts the task as completed, but the answer is unsure or disputed.
                studio.request_annotations(
                    int(task["id"]), 1 + sum(not a["was_cancelled"] for a in task["annotations"])
                )
        # Tasks already read may have changed since: everything is stored only up to the start of the loop.
        read_duration = timedelta(seconds=time.monotonic() - started)
        state.read_until = _format_time(max(since, newest - read_duration))
        if state.tasks:  # else it is another project: a wrong --project must not redirect the next push
            state.write(store.folder)
    return result


def _find_project(store: AnnotationStore, studio: LabelStudio) -> int:
    """Find the project of this run by its description."""
    if store.round_numbers():
        for project in studio.find_projects(description=run_fingerprint(store)):
            return int(project["id"])
    raise UserError(
        f"{studio.client.url} has no project of this run; run `ducats push` first, or give --project"
    )


def _parse_time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _format_time(moment: datetime) -> str:
    """Format a time for a filter. The server requires microseconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _needs_another_annotator(
    store: AnnotationStore, questions: Sequence[Question], round_number: int
) -> bool:
    """Return whether an answer by one more annotator could settle a question of the task."""
    if store.round_numbers()[-1] != round_number or store.closed_round(round_number) is not None:
        return False
    question_round = store.question_round(round_number)
    for question in questions:
        can_outvote = question_round.rules_for(question.id).rule in ("majority", "weighted")
        undecided = {"open", "disputed"} if can_outvote else {"open"}
        if store.status(question.id).state in undecided:
            return True
    return False


def _received_by_task(store: AnnotationStore, id_prefix: str) -> dict[int, list[Answer]]:
    """Return the answers received from a project, by task id."""
    by_task: dict[int, list[Answer]] = {}
    for answer in store.answers():
        if answer.external_id is not None and answer.external_id.startswith(f"{id_prefix}:"):
            by_task.setdefault(int(answer.external_id.split(":")[2]), []).append(answer)
    return by_task


def extract_new_answers(
    store: AnnotationStore,
    id_prefix: str,
    task: Mapping[str, Any],
    questions: Sequence[Question],
    received: Sequence[Answer],
    users: Mapping[int, str],
) -> tuple[list[dict[str, Any]], int]:
    """Return the new answers in a task and the number of stray points.

    Only the newest annotation of each annotator counts. An answer that differs from the one received before
    is new. An answer that is missing now, or whose annotation was deleted, is withdrawn.
    """
    task_prefix = f"{id_prefix}:{task['id']}"
    latest = {(answer.annotator, answer.question): answer for answer in received}
    raw_answers: list[dict[str, Any]] = []
    n_stray = 0
    annotators_present: set[str] = set()
    for annotation in _newest_annotations(task["annotations"]):
        annotator = users.get(annotation["completed_by"], f"user {annotation['completed_by']}")
        annotators_present.add(annotator)
        version = f"{task_prefix}:{annotation['id']}:{annotation['updated_at']}"
        parsed = _parse(store, annotation, questions, task)
        n_stray += parsed.stray_points
        changed: list[dict[str, Any]] = []
        answered_before = [question for name, question in latest if name == annotator]
        for question in dict.fromkeys([*parsed.words, *answered_before]):
            word = parsed.words.get(question, UNDO_WORD)[:MAX_TEXT_LENGTH]
            previous = latest.get((annotator, question))
            if word == (previous.word if previous is not None else UNDO_WORD):
                continue
            if previous is not None and str(previous.external_id).startswith(version):
                continue  # already received, in another spelling
            if word == SKIP_WORD and previous is not None and previous.word != UNDO_WORD:
                word = UNDO_WORD  # a skip alone would keep the earlier answer
            if word == UNDO_WORD and previous is not None and not _is_latest(store, previous):
                continue
            # An older annotation counts again when the annotator's newer one is deleted.
            n_repeats = sum(
                answer.question == question and str(answer.external_id).startswith(version)
                for answer in received
            )
            external_id = f"{version}+{n_repeats}:{question}" if n_repeats else f"{version}:{question}"
            changed.append(
                {"question": question, "word": word, "annotator": annotator, "external_id": external_id}
            )
        seconds = _uncounted_seconds(annotation, received, f"{task_prefix}:{annotation['id']}:")
        for raw in changed:
            raw["seconds"] = None if seconds is None else round(seconds / len(changed), 3)
        raw_answers += changed
    for (annotator, question), answer in latest.items():
        if (
            annotator not in annotators_present
            and answer.word not in (UNDO_WORD, SKIP_WORD)
            and _is_latest(store, answer)
        ):
            external_id = f"{task_prefix}:{str(answer.external_id).split(':')[3]}:removed:{question}"
            raw_answers.append(
                {"question": question, "word": UNDO_WORD, "annotator": annotator, "external_id": external_id}
            )
    return raw_answers, n_stray


def _newest_annotations(annotations: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the newest annotation of each annotator, oldest first."""
    by_annotator: dict[Any, Mapping[str, Any]] = {}
    for annotation in sorted(
        annotations, key=lambda annotation: (_parse_time(annotation["updated_at"]), int(annotation["id"]))
    ):
        by_annotator.pop(annotation["completed_by"], None)
        by_annotator[annotation["completed_by"]] = annotation
    yield from by_annotator.values()


def _parse(
    store: AnnotationStore,
    annotation: Mapping[str, Any],
    questions: Sequence[Question],
    task: Mapping[str, Any],
) -> ParsedAnnotation:
    """Parse an annotation. Unknown tasks and invalid regions yield entries that are logged as rejected."""
    if not questions:
        return ParsedAnnotation({f"task {task['id']}": str(_first_label(annotation["result"]))}, 0, 0)
    if annotation["was_cancelled"]:
        return ParsedAnnotation({question.id: SKIP_WORD for question in questions}, 0, 0)
    rules = store.question_round(int(task["meta"]["round"])).rules
    parsed = parse_annotation(annotation["result"], questions, rules)
    if parsed.invalid_regions:
        parsed.words[f"{questions[0].key} (task {task['id']})"] = UNREADABLE_WORD
    return parsed


def _first_label(result: Any) -> Any:
    """Return the first label in an annotation of an unknown task."""
    try:
        return next(value[0] for value in result[0]["value"].values() if isinstance(value, list))
    except (TypeError, KeyError, IndexError, AttributeError, StopIteration):
        return UNREADABLE_WORD


def _uncounted_seconds(
    annotation: Mapping[str, Any], received: Iterable[Answer], id_prefix: str
) -> float | None:
    """Return the annotation time not counted yet. The server adds to it when an annotation is changed."""
    total = annotation.get("lead_time")
    if isinstance(total, bool) or not isinstance(total, int | float):
        return None
    counted = sum(
        answer.seconds or 0.0
        for answer in received
        if answer.external_id is not None and answer.external_id.startswith(id_prefix)
    )
    return max(0.0, total - counted)


def _is_latest(store: AnnotationStore, answer: Answer) -> bool:
    """Return whether this is the annotator's latest answer to the question, over all channels and tasks."""
    own_answers = [other for other in store.answers(answer.question) if other.annotator == answer.annotator]
    return not own_answers or own_answers[-1].external_id == answer.external_id
