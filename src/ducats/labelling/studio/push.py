"""Push questions to a Label Studio project, one task per image, without duplicates."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ducats.annotation import AnnotationStore, Question, QuestionRound
from ducats.errors import UserError
from ducats.labelling.studio import layout, shown
from ducats.labelling.studio.api import Studio, round_is
from ducats.labelling.studio.client import Refused, Unclear, until_clear
from ducats.labelling.studio.state import State, held
from ducats.labelling.studio.tasks import by_image, mark, marks_on, of_these, prelabelled, tasks, version

BATCH_TASKS, BATCH_BYTES = 100, 8_000_000  # limits per import
LONGEST_TITLE = 50  # limit of the server


@dataclass(frozen=True)
class Pushed:
    """Result of a push."""

    address: str  # URL of the project
    round: int
    new: int  # tasks created
    known: int  # tasks that existed
    answered: int  # images already answered, without a task


def push(
    desk: AnnotationStore,
    studio: Studio,
    title: str,
    *,
    project: str | None = None,
    pictures: str = shown.INLINE,
    document_root: Path | None = None,
    blind: bool = False,
    most_side: int = 1024,
) -> Pushed:
    """Push the open questions to a project.

    Args:
        title: title of the project if one has to be created.
        project: number or title of the project to use instead.
        pictures: inline, local-files, or a URL prefix to which the image key is appended.
        document_root: the server's document root, for local-files only.
        blind: do not send the model's predictions.
        most_side: maximum side of inline images in pixels.
    """
    show = shown.chosen(pictures, document_root, most_side)
    with held(desk.folder):
        sheet = _asked(desk)
        state = State.read(desk.folder)
        number = until_clear(lambda: _project(desk, studio, state, sheet, title, project))
        state = state.at(studio.client.url, number, _settle(studio, number, sheet))
        state.write(desk.folder)
        until_clear(
            lambda: studio.make_tab(number, f"Round {sheet.rules.round}", round_is(sheet.rules.round))
        )
        if document_root is not None:
            folder = shown.served_folder(sheet, document_root)
            until_clear(lambda: studio.serve_folder(number, folder))
        name, groups = mark(desk), by_image(sheet)
        known = _there(studio, number, sheet.rules.round, name, groups)
        before = len(known)
        standings = desk.statuses(sheet.rules.round)
        waiting = {
            key: questions
            for key, questions in groups.items()
            if any(standings[question.id].state != "settled" for question in questions)
        }

        def make(part: Sequence[Sequence[Question]]) -> Iterator[dict[str, Any]]:
            return tasks(sheet, part, name, show, blind=blind)

        broken: list[Unclear] = []
        until_clear(lambda: _add(studio, number, sheet.rules.round, name, waiting, known, make, broken))
        if broken:  # an import with an unknown outcome may have succeeded since
            known = _there(studio, number, sheet.rules.round, name, groups)
        if known and prelabelled(sheet, blind=blind):
            _show_guesses(studio, number, version(sheet.rules.round))
        state.tasks[str(sheet.rules.round)] = dict(known)
        state.write(desk.folder)
    return Pushed(
        address=f"{studio.client.url}/projects/{number}",
        round=sheet.rules.round,
        new=len(known) - before,
        known=before,
        answered=len(groups.keys() - known.keys()),
    )


def _asked(desk: AnnotationStore) -> QuestionRound:
    """Return the open round."""
    sheet = desk.open_round()
    if sheet is None:
        raise UserError(f"{desk.folder} has no open round with single questions; continue with `ducats run`")
    return sheet


def _project(
    desk: AnnotationStore, studio: Studio, state: State, sheet: QuestionRound, title: str, wanted: str | None
) -> int:
    """Return the number of the project to use. Create the project if it does not exist."""
    if wanted is not None:
        if wanted.isdecimal():
            found = studio.project(int(wanted))
            if found is None:
                raise UserError(
                    f"{studio.client.url} has no project {wanted}; give another --project, or omit it"
                )
            return int(found["id"])
        if titled := studio.projects(wanted):
            return int(titled[0]["id"])
        title = wanted
    elif state.project and state.url == studio.client.url:
        found = studio.project(state.project)
        if found is not None and found["created_at"] == state.made:
            return state.project
    title = title[:LONGEST_TITLE].strip()
    description = f"Questions of a ducats run ({mark(desk)})"
    # Two run folders may have the same name: the description identifies the run.
    for one in studio.projects(title):
        if one["description"] == description:
            return int(one["id"])
    made = studio.make_project(
        {
            "title": title,
            "description": description,
            "label_config": layout.config(sheet.rules),
            "maximum_annotations": sheet.rules.min_annotators,
        }
    )
    return int(made["id"])


def _settle(studio: Studio, number: int, sheet: QuestionRound) -> str:
    """Apply the settings that this round needs and return the creation time of the project."""
    now = studio.project(number)
    if now is None:
        raise UserError(f"project {number} was deleted from {studio.client.url}; push again")
    wanted: Mapping[str, Any] = {
        "label_config": layout.config(sheet.rules),
        "maximum_annotations": sheet.rules.min_annotators,
        "show_collab_predictions": True,
    }
    other = {field: value for field, value in wanted.items() if now.get(field) != value}
    if other:
        studio.set_project(number, other)
    return str(now["created_at"])


def _show_guesses(studio: Studio, number: int, model: str) -> None:
    """Show a round's predictions on the page, if the project has any."""
    try:
        studio.set_project(number, {"model_version": model})
    except Refused as refused:
        if refused.status != 400:  # no task has predictions: all were pushed blind
            raise


def _there(
    studio: Studio, project: int, number: int, name: str, groups: Mapping[str, Sequence[Question]]
) -> dict[str, int]:
    """Return a round's tasks by image. Delete duplicates left by an interrupted import."""
    found: dict[str, list[tuple[int, bool]]] = {}  # task id, whether it is answered
    for task in studio.tasks(project, round_is(number)):
        own = marks_on(task)
        key = own.get("key")
        if isinstance(key, str) and key in groups and of_these(own, number, groups[key], name):
            found.setdefault(key, []).append((int(task["id"]), bool(task["annotations"])))
    for copies in found.values():
        copies.sort(key=lambda copy: not copy[1])  # keep an answered copy, else the oldest
        for copy, answered in copies[1:]:
            if not answered:
                studio.remove_task(copy)
    return {key: copies[0][0] for key, copies in found.items()}


def _add(
    studio: Studio,
    project: int,
    number: int,
    name: str,
    waiting: Mapping[str, Sequence[Question]],
    known: dict[str, int],
    make: Callable[[Sequence[Sequence[Question]]], Iterator[dict[str, Any]]],
    broken: list[Unclear],
) -> None:
    """Import missing tasks in order. ``known`` is updated in place, also on failure."""
    missing = [questions for key, questions in waiting.items() if key not in known]
    for batch in _batches(make(missing)):
        try:
            ids = studio.add_tasks(project, batch)
        except Unclear as unclear:
            broken.append(unclear)
            known.update(_there(studio, project, number, name, waiting))
            raise
        if len(ids) != len(batch):
            raise UserError(
                f"Label Studio imported {len(ids)} of {len(batch)} tasks; check its log and push again"
            )
        known.update(zip((task["meta"]["key"] for task in batch), ids, strict=True))


def _batches(made: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    size = 0
    for task in made:
        more = len(json.dumps(task))
        if batch and (len(batch) >= BATCH_TASKS or size + more > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(task)
        size += more
    if batch:
        yield batch
