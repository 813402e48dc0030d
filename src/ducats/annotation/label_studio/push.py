"""Push questions to a Label Studio project, one task per image, without duplicates."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ducats.annotation import AnnotationStore, Question, QuestionRound
from ducats.annotation.label_studio import label_config, task_images
from ducats.annotation.label_studio.api import LabelStudio, round_filter
from ducats.annotation.label_studio.client import HTTPStatusError, UnknownOutcomeError, retry_until_known
from ducats.annotation.label_studio.sync_state import SyncState, sync_lock
from ducats.annotation.label_studio.tasks import (
    group_by_image,
    has_predictions,
    make_tasks,
    matches_questions,
    model_version,
    read_task_meta,
    run_fingerprint,
)
from ducats.utils.errors import UserError

MAX_IMPORT_TASKS, MAX_IMPORT_BYTES = 100, 8_000_000  # limits per import
MAX_TITLE_LENGTH = 50  # limit of the server


@dataclass(frozen=True)
class PushResult:
    """Result of a push."""

    project_url: str
    round: int
    new_tasks: int
    existing_tasks: int
    answered_images: int  # already answered, without a task


def push_questions(
    store: AnnotationStore,
    studio: LabelStudio,
    title: str,
    *,
    project: str | None = None,
    images: str = task_images.INLINE,
    document_root: Path | None = None,
    blind: bool = False,
    max_side: int = 1024,
) -> PushResult:
    """Push the open questions to a project.

    Args:
        title: title of the project if one has to be created.
        project: number or title of the project to use instead.
        images: inline, local-files, or a URL prefix to which the image key is appended.
        document_root: the server's document root, for local-files only.
        blind: do not send the model's predictions.
        max_side: maximum side of inline images in pixels.
    """
    image_factory = task_images.make_image_factory(images, document_root, max_side)
    with sync_lock(store.folder):
        question_round = _open_round(store)
        state = SyncState.read(store.folder)
        project_id = retry_until_known(
            lambda: _find_or_create_project(store, studio, state, question_round, title, project)
        )
        state = state.for_project(
            studio.client.url, project_id, _apply_settings(studio, project_id, question_round)
        )
        state.write(store.folder)
        retry_until_known(
            lambda: studio.ensure_tab(
                project_id, f"Round {question_round.rules.round}", round_filter(question_round.rules.round)
            )
        )
        if document_root is not None:
            folder = task_images.common_image_folder(question_round, document_root)
            retry_until_known(lambda: studio.ensure_local_storage(project_id, folder))
        fingerprint, groups = run_fingerprint(store), group_by_image(question_round)
        existing = _existing_tasks(studio, project_id, question_round.rules.round, fingerprint, groups)
        n_existing = len(existing)
        statuses = store.statuses(question_round.rules.round)
        open_groups = {
            key: questions
            for key, questions in groups.items()
            if any(statuses[question.id].state != "settled" for question in questions)
        }

        def build_tasks(question_groups: Sequence[Sequence[Question]]) -> Iterator[dict[str, Any]]:
            return make_tasks(question_round, question_groups, fingerprint, image_factory, blind=blind)

        interrupted: list[UnknownOutcomeError] = []
        retry_until_known(
            lambda: _import_missing(
                studio,
                project_id,
                question_round.rules.round,
                fingerprint,
                open_groups,
                existing,
                build_tasks,
                interrupted,
            )
        )
        if interrupted:  # an import with an unknown outcome may have succeeded since
            existing = _existing_tasks(studio, project_id, question_round.rules.round, fingerprint, groups)
        if existing and has_predictions(question_round, blind=blind):
            _show_predictions(studio, project_id, model_version(question_round.rules.round))
        state.tasks[str(question_round.rules.round)] = dict(existing)
        state.write(store.folder)
    return PushResult(
        project_url=f"{studio.client.url}/projects/{project_id}",
        round=question_round.rules.round,
        new_tasks=len(existing) - n_existing,
        existing_tasks=n_existing,
        answered_images=len(groups.keys() - existing.keys()),
    )


def _open_round(store: AnnotationStore) -> QuestionRound:
    """Return the open round."""
    question_round = store.open_round()
    if question_round is None:
        raise UserError(f"{store.folder} has no open round with single questions; continue with `ducats run`")
    return question_round


def _find_or_create_project(
    store: AnnotationStore,
    studio: LabelStudio,
    state: SyncState,
    question_round: QuestionRound,
    title: str,
    requested: str | None,
) -> int:
    """Return the number of the project to use. Create the project if it does not exist."""
    if requested is not None:
        if requested.isdecimal():
            project_info = studio.get_project(int(requested))
            if project_info is None:
                raise UserError(
                    f"{studio.client.url} has no project {requested}; give another --project, or omit it"
                )
            return int(project_info["id"])
        if titled := studio.find_projects(requested):
            return int(titled[0]["id"])
        title = requested
    elif state.project and state.url == studio.client.url:
        project_info = studio.get_project(state.project)
        if project_info is not None and project_info["created_at"] == state.created_at:
            return state.project
    title = title[:MAX_TITLE_LENGTH].strip()
    description = f"Questions of a ducats run ({run_fingerprint(store)})"
    # Two run folders may have the same name: the description identifies the run.
    for project in studio.find_projects(title):
        if project["description"] == description:
            return int(project["id"])
    created = studio.create_project(
        {
            "title": title,
            "description": description,
            "label_config": label_config.make_label_config(question_round.rules),
            "maximum_annotations": question_round.rules.min_annotators,
        }
    )
    return int(created["id"])


def _apply_settings(studio: LabelStudio, project_id: int, question_round: QuestionRound) -> str:
    """Apply the settings that this round needs and return the creation time of the project."""
    current = studio.get_project(project_id)
    if current is None:
        raise UserError(f"project {project_id} was deleted from {studio.client.url}; push again")
    required: Mapping[str, Any] = {
        "label_config": label_config.make_label_config(question_round.rules),
        "maximum_annotations": question_round.rules.min_annotators,
        "show_collab_predictions": True,
    }
    changed = {field: value for field, value in required.items() if current.get(field) != value}
    if changed:
        studio.update_project(project_id, changed)
    return str(current["created_at"])


def _show_predictions(studio: LabelStudio, project_id: int, version: str) -> None:
    """Show a round's predictions on the page, if the project has any."""
    try:
        studio.update_project(project_id, {"model_version": version})
    except HTTPStatusError as error:
        if error.status != 400:  # no task has predictions: all were pushed blind
            raise


def _existing_tasks(
    studio: LabelStudio,
    project_id: int,
    round_number: int,
    fingerprint: str,
    groups: Mapping[str, Sequence[Question]],
) -> dict[str, int]:
    """Return a round's tasks by image. Delete duplicates left by an interrupted import."""
    copies_by_key: dict[str, list[tuple[int, bool]]] = {}  # task id, whether it is answered
    for task in studio.iter_tasks(project_id, round_filter(round_number)):
        meta = read_task_meta(task)
        key = meta.get("key")
        if (
            isinstance(key, str)
            and key in groups
            and matches_questions(meta, round_number, groups[key], fingerprint)
        ):
            copies_by_key.setdefault(key, []).append((int(task["id"]), bool(task["annotations"])))
    for copies in copies_by_key.values():
        copies.sort(key=lambda copy: not copy[1])  # keep an answered copy, else the oldest
        for copy, answered in copies[1:]:
            if not answered:
                studio.delete_task(copy)
    return {key: copies[0][0] for key, copies in copies_by_key.items()}


def _import_missing(
    studio: LabelStudio,
    project_id: int,
    round_number: int,
    fingerprint: str,
    open_groups: Mapping[str, Sequence[Question]],
    existing: dict[str, int],
    build_tasks: Callable[[Sequence[Sequence[Question]]], Iterator[dict[str, Any]]],
    interrupted: list[UnknownOutcomeError],
) -> None:
    """Import missing tasks in order. ``existing`` is updated in place, also on failure."""
    missing = [questions for key, questions in open_groups.items() if key not in existing]
    for batch in _batches(build_tasks(missing)):
        try:
            ids = studio.import_tasks(project_id, batch)
        except UnknownOutcomeError as error:
            interrupted.append(error)
            existing.update(_existing_tasks(studio, project_id, round_number, fingerprint, open_groups))
            raise
        if len(ids) != len(batch):
            raise UserError(
                f"Label Studio imported {len(ids)} of {len(batch)} tasks; check its log and push again"
            )
        existing.update(zip((task["meta"]["key"] for task in batch), ids, strict=True))


def _batches(tasks_to_import: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    batch_bytes = 0
    for task in tasks_to_import:
        task_bytes = len(json.dumps(task))
        if batch and (len(batch) >= MAX_IMPORT_TASKS or batch_bytes + task_bytes > MAX_IMPORT_BYTES):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(task)
        batch_bytes += task_bytes
    if batch:
        yield batch
