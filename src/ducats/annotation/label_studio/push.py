"""Push questions to a Label Studio project, one task per image, without duplicates."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ducats.annotation import AnnotationStore, QuestionRound, RoundRules
from ducats.annotation.label_studio import label_config, task_images
from ducats.annotation.label_studio.api import LabelStudio, TaskFilter, task_filter
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
        images: see ``task_images.make_image_factory``, also for ``document_root`` and ``max_side``.
        blind: do not send the model's predictions.
    """
    image_factory = task_images.make_image_factory(images, document_root, max_side)
    with sync_lock(store.folder):
        question_round = store.open_round()
        if question_round is None:
            raise UserError(
                f"{store.folder} has no open round with single questions; continue with `ducats run`"
            )
        rules, url = question_round.rules, studio.client.url
        state = SyncState.read(store.folder)
        project_id = retry_until_known(
            lambda: _find_or_create_project(store, studio, state, rules, title, project)
        )
        state = state.for_project(url, project_id, _apply_settings(studio, project_id, rules))
        state.write(store.folder)
        retry_until_known(
            lambda: studio.ensure_tab(project_id, f"Round {rules.round}", _round_filter(rules.round))
        )
        if document_root is not None:
            folder = task_images.common_image_folder(question_round, document_root)
            retry_until_known(lambda: studio.ensure_local_storage(project_id, folder))
        fingerprint = run_fingerprint(store)
        tasks = _RoundTasks(studio, project_id, question_round, fingerprint)
        n_existing = len(tasks.ids)
        statuses = store.statuses(rules.round)
        open_groups = [
            questions
            for questions in tasks.groups.values()
            if any(statuses[question.id].state != "settled" for question in questions)
        ]

        def import_missing() -> None:
            missing = [questions for questions in open_groups if questions[0].key not in tasks.ids]
            tasks.add(make_tasks(question_round, missing, fingerprint, image_factory, blind=blind))

        retry_until_known(import_missing)
        if tasks.interrupted:  # an import with an unknown outcome may have succeeded since
            tasks.ids = tasks.read()
        if tasks.ids and has_predictions(question_round, blind=blind):
            _show_predictions(studio, project_id, model_version(rules.round))
        state.tasks[str(rules.round)] = tasks.ids
        state.write(store.folder)
    return PushResult(
        project_url=f"{url}/projects/{project_id}",
        round=rules.round,
        new_tasks=len(tasks.ids) - n_existing,
        existing_tasks=n_existing,
        answered_images=len(tasks.groups.keys() - tasks.ids.keys()),
    )


class _RoundTasks:
    """A round's tasks on the server."""

    def __init__(
        self, studio: LabelStudio, project_id: int, question_round: QuestionRound, fingerprint: str
    ) -> None:
        self._studio, self._project_id, self._fingerprint = studio, project_id, fingerprint
        self._round = question_round.rules.round
        self.groups = group_by_image(question_round)
        self.ids = self.read()  # task ids by image key
        self.interrupted = False  # whether an import had an unknown outcome

    def read(self) -> dict[str, int]:
        """Return the tasks on the server. Delete duplicates left by an interrupted import."""
        copies_by_key: dict[str, list[tuple[int, bool]]] = {}  # task id, whether it is answered
        for task in self._studio.iter_tasks(self._project_id, _round_filter(self._round)):
            meta = read_task_meta(task)
            key: Any = meta.get("key")
            questions = self.groups.get(key) if isinstance(key, str) else None
            if questions and matches_questions(meta, self._round, questions, self._fingerprint):
                copies_by_key.setdefault(key, []).append((int(task["id"]), bool(task["annotations"])))
        for copies in copies_by_key.values():
            copies.sort(key=lambda copy: not copy[1])  # keep an answered copy, else the oldest
            for copy, answered in copies[1:]:
                if not answered:
                    self._studio.delete_task(copy)
        return {key: copies[0][0] for key, copies in copies_by_key.items()}

    def add(self, tasks: Iterator[dict[str, Any]]) -> None:
        """Import tasks in order. ``ids`` is updated also on failure."""
        for batch in _batches(tasks):
            try:
                ids = self._studio.import_tasks(self._project_id, batch)
            except UnknownOutcomeError:
                self.interrupted = True
                self.ids |= self.read()
                raise
            if len(ids) != len(batch):
                raise UserError(
                    f"Label Studio imported {len(ids)} of {len(batch)} tasks; check its log and push again"
                )
            self.ids.update(zip((task["meta"]["key"] for task in batch), ids, strict=True))


def _round_filter(round_number: int) -> TaskFilter:
    return task_filter("data.round", "equal", round_number)


def _find_or_create_project(
    store: AnnotationStore,
    studio: LabelStudio,
    state: SyncState,
    rules: RoundRules,
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
        if titled := studio.find_projects(title=requested):
            return int(titled[0]["id"])
        title = requested
    elif state.project and state.url == studio.client.url:
        project_info = studio.get_project(state.project)
        if project_info is not None and project_info["created_at"] == state.created_at:
            return state.project
    title = title[:MAX_TITLE_LENGTH].strip()
    description = f"Questions of a ducats run ({run_fingerprint(store)})"
    # Two run folders may have the same name: the description identifies the run.
    for project in studio.find_projects(title=title):
        if project["description"] == description:
            return int(project["id"])
    created = studio.create_project(
        {
            "title": title,
            "description": description,
            "label_config": label_config.make_label_config(rules),
            "maximum_annotations": rules.min_annotators,
        }
    )
    return int(created["id"])


def _apply_settings(studio: LabelStudio, project_id: int, rules: RoundRules) -> str:
    """Apply the settings that this round needs and return the creation time of the project."""
    current = studio.get_project(project_id)
    if current is None:
        raise UserError(f"project {project_id} was deleted from {studio.client.url}; push again")
    required: Mapping[str, Any] = {
        "label_config": label_config.make_label_config(rules),
        "maximum_annotations": rules.min_annotators,
        "show_collab_predictions": True,
    }
    if changed := {field: value for field, value in required.items() if current.get(field) != value}:
        studio.update_project(project_id, changed)
    return str(current["created_at"])


def _show_predictions(studio: LabelStudio, project_id: int, version: str) -> None:
    """Show a round's predictions on the page, if the project has any."""
    try:
        studio.update_project(project_id, {"model_version": version})
    except HTTPStatusError as error:
        if error.status != 400:  # no task has predictions: all were pushed blind
            raise


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
