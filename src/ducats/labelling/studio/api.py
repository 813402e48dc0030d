"""The calls of Label Studio's REST API that push and pull need."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ducats.labelling.studio.client import Client, Refused

PAGE = 100  # tasks per page
# Fields of a task and of its annotations. `data` is left out: it may hold a whole image.
LIGHT = "id,meta,updated_at,is_labeled,annotations,completed_by,result,was_cancelled,lead_time"
Filter = Mapping[str, Any]


def round_is(number: int) -> Filter:
    """Return a filter for the tasks of a round."""
    return _filter("data.round", "equal", "Number", number)


def numbered_after(number: int) -> Filter:
    """Return a filter for tasks with a larger id."""
    return _filter("id", "greater", "Number", number)


def changed_after(moment: str) -> Filter:
    """Return a filter for tasks with an annotation added, changed, skipped or deleted since a time."""
    return _filter("updated_at", "greater", "Datetime", moment)


def _filter(column: str, operator: str, kind: str, value: int | str) -> Filter:
    """Return a condition in the format of the data manager."""
    return {"filter": f"filter:tasks:{column}", "operator": operator, "type": kind, "value": value}


class Studio:
    """A Label Studio server."""

    def __init__(self, client: Client) -> None:
        self.client = client

    # -- projects -------------------------------------------------------------------------------------

    def project(self, number: int) -> dict[str, Any] | None:
        """Return a project, or None if it does not exist."""
        try:
            found: dict[str, Any] = self.client.get(f"/api/projects/{number}/")
            return found
        except Refused as refused:
            if refused.status == 404:
                return None
            raise

    def projects(self, title: str) -> list[dict[str, Any]]:
        """Return the projects with exactly this title, oldest first."""
        found = [one for one in self._paged("/api/projects/", title=title) if one["title"] == title]
        return sorted(found, key=lambda one: int(one["id"]))

    def described(self, words: str) -> list[dict[str, Any]]:
        """Return the projects whose description contains a text, oldest first."""
        found = [one for one in self._paged("/api/projects/") if words in (one["description"] or "")]
        return sorted(found, key=lambda one: int(one["id"]))

    def make_project(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Create a project."""
        made: dict[str, Any] = self.client.call("POST", "/api/projects/", dict(settings), once=True)
        return made

    def set_project(self, number: int, settings: Mapping[str, Any]) -> None:
        """Change a project's settings."""
        self.client.call("PATCH", f"/api/projects/{number}/", dict(settings))

    def _paged(self, path: str, **query: Any) -> Iterator[dict[str, Any]]:
        page = 1
        while True:
            found = self.client.get(path, **query, page=page, page_size=PAGE)
            yield from found["results"]
            if not found.get("next"):
                return
            page += 1

    # -- tasks ----------------------------------------------------------------------------------------

    def tasks(self, project: int, *filters: Filter) -> Iterator[dict[str, Any]]:
        """Iterate over tasks with their `meta` and annotations, oldest first."""
        asked = {"project": project, "fields": "all", "include": LIGHT, "page": 1, "page_size": PAGE}
        last = 0
        while True:
            # Continue after the last id, not by page number: a task deleted in between would shift the pages.
            items = [*filters, numbered_after(last)]
            query = {"filters": {"conjunction": "and", "items": items}, "ordering": ["tasks:id"]}
            found = self.client.get("/api/tasks/", **asked, query=json.dumps(query))
            yield from found["tasks"]
            if len(found["tasks"]) >= found["total"] or not found["tasks"]:
                return
            last = found["tasks"][-1]["id"]

    def add_tasks(self, project: int, tasks: Sequence[Mapping[str, Any]]) -> list[int]:
        """Import tasks at most once and return their ids in order."""
        path = f"/api/projects/{project}/import?return_task_ids=true"
        told = self.client.call("POST", path, list(tasks), once=True)
        return [int(number) for number in told.get("task_ids", ())]

    def remove_task(self, number: int) -> None:
        """Delete a task with its annotations and predictions."""
        try:
            self.client.call("DELETE", f"/api/tasks/{number}/")
        except Refused as refused:
            if refused.status != 404:
                raise

    def ask_another(self, number: int, people: int) -> None:
        """Reopen a completed task until it has annotations by this many people."""
        try:
            self.client.call("PATCH", f"/api/tasks/{number}/", {"overlap": people, "is_labeled": False})
        except Refused as refused:
            if refused.status != 404:
                raise

    def users(self) -> dict[int, str]:
        """Return e-mail addresses by user id."""
        found = self.client.get("/api/users/")
        return {int(one["id"]): str(one["email"] or one["username"] or f"user {one['id']}") for one in found}

    # -- tabs, storage, webhooks ----------------------------------------------------------------------

    def make_tab(self, project: int, title: str, only: Filter) -> None:
        """Create a tab that shows the tasks of a filter, unless a tab with this title exists."""
        tabs = self.client.get("/api/dm/views/", project=project)
        if all(tab["data"].get("title") != title for tab in tabs):
            shown = {"title": title, "type": "list", "target": "tasks"}
            data = {**shown, "filters": {"conjunction": "and", "items": [only]}}
            self.client.call("POST", "/api/dm/views/", {"project": project, "data": data}, once=True)

    def serve_folder(self, project: int, folder: str) -> None:
        """Give the members of a project access to a folder on the server's machine."""
        known = self.client.get("/api/storages/localfiles/", project=project)
        if all(storage["path"] != folder for storage in known):
            asked = {"project": project, "path": folder, "title": "ducats", "use_blob_urls": True}
            self.client.call("POST", "/api/storages/localfiles/", asked, once=True)

    def make_hook(self, project: int, url: str, headers: Mapping[str, str]) -> int:
        """Create a webhook for new answers, replacing one left behind by a killed process."""
        for hook in self.client.get("/api/webhooks/", project=project):
            if hook["url"] == url:
                self.remove_hook(int(hook["id"]))
        asked = {
            "project": project,
            "url": url,
            "headers": dict(headers),
            "send_payload": False,
            "send_for_all_actions": False,
            "actions": ["ANNOTATION_CREATED", "ANNOTATION_UPDATED", "ANNOTATIONS_DELETED"],
        }
        return int(self.client.call("POST", "/api/webhooks/", asked, once=True)["id"])

    def remove_hook(self, number: int) -> None:
        """Delete a webhook."""
        try:
            self.client.call("DELETE", f"/api/webhooks/{number}/")
        except Refused as refused:
            if refused.status != 404:
                raise
