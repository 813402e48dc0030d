"""The calls of Label Studio's REST API that push and pull need."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Literal

from ducats.annotation.label_studio.client import JsonClient

PAGE_SIZE = 100  # tasks or projects per page
# Fields of a task and of its annotations. `data` is left out: it may hold a whole image.
TASK_FIELDS = "id,meta,updated_at,is_labeled,annotations,completed_by,result,was_cancelled,lead_time"
TaskFilter = Mapping[str, Any]


def task_filter(column: str, operator: Literal["equal", "greater"], value: int | str) -> TaskFilter:
    """Return a filter in the format of the data manager: by a number, or by a time."""
    kind = "Number" if isinstance(value, int) else "Datetime"
    return {"filter": f"filter:tasks:{column}", "operator": operator, "type": kind, "value": value}


class LabelStudio:
    """A Label Studio server."""

    def __init__(self, client: JsonClient) -> None:
        self.client = client

    # -- projects -------------------------------------------------------------------------------------

    def get_project(self, project_id: int) -> dict[str, Any] | None:
        """Return a project, or None if it does not exist."""
        found: dict[str, Any] | None = self.client.request(
            "GET", f"/api/projects/{project_id}/", missing_ok=True
        )
        return found

    def find_projects(self, *, title: str | None = None, description: str = "") -> list[dict[str, Any]]:
        """Return the projects with exactly this title, or with this text in the description, oldest first."""
        found = [
            project
            for project in self._iter_pages("/api/projects/", **({} if title is None else {"title": title}))
            if title in (None, project["title"]) and description in (project["description"] or "")
        ]
        return sorted(found, key=lambda project: int(project["id"]))

    def create_project(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Create a project."""
        created: dict[str, Any] = self.client.request(
            "POST", "/api/projects/", dict(settings), at_most_once=True
        )
        return created

    def update_project(self, project_id: int, settings: Mapping[str, Any]) -> None:
        """Change a project's settings."""
        self.client.request("PATCH", f"/api/projects/{project_id}/", dict(settings))

    def _iter_pages(self, path: str, **query: Any) -> Iterator[dict[str, Any]]:
        for page in count(1):
            found = self.client.get(path, **query, page=page, page_size=PAGE_SIZE)
            yield from found["results"]
            if not found.get("next"):
                return

    # -- tasks ----------------------------------------------------------------------------------------

    def iter_tasks(self, project_id: int, *filters: TaskFilter) -> Iterator[dict[str, Any]]:
        """Iterate over tasks with their `meta` and annotations, oldest first."""
        params = {
            "project": project_id,
            "fields": "all",
            "include": TASK_FIELDS,
            "page": 1,
            "page_size": PAGE_SIZE,
        }
        last_id = 0
        while True:
            # Continue after the last id, not by page number: a task deleted in between would shift the pages.
            items = [*filters, task_filter("id", "greater", last_id)]
            query = {"filters": {"conjunction": "and", "items": items}, "ordering": ["tasks:id"]}
            found = self.client.get("/api/tasks/", **params, query=json.dumps(query))
            yield from found["tasks"]
            if len(found["tasks"]) >= found["total"] or not found["tasks"]:
                return
            last_id = found["tasks"][-1]["id"]

    def import_tasks(self, project_id: int, tasks: Sequence[Mapping[str, Any]]) -> list[int]:
        """Import tasks at most once and return their ids in order."""
        path = f"/api/projects/{project_id}/import?return_task_ids=true"
        reply = self.client.request("POST", path, list(tasks), at_most_once=True)
        return [int(task_id) for task_id in reply.get("task_ids", ())]

    def delete_task(self, task_id: int) -> None:
        """Delete a task with its annotations and predictions."""
        self.client.request("DELETE", f"/api/tasks/{task_id}/", missing_ok=True)

    def request_annotations(self, task_id: int, n_annotators: int) -> None:
        """Reopen a completed task until it has annotations by this many people."""
        body = {"overlap": n_annotators, "is_labeled": False}
        self.client.request("PATCH", f"/api/tasks/{task_id}/", body, missing_ok=True)

    def user_emails(self) -> dict[int, str]:
        """Return e-mail addresses by user id."""
        found = self.client.get("/api/users/")
        return {
            int(user["id"]): str(user["email"] or user["username"] or f"user {user['id']}") for user in found
        }

    # -- tabs, storage, webhooks ----------------------------------------------------------------------

    def ensure_tab(self, project_id: int, title: str, task_filter: TaskFilter) -> None:
        """Create a tab that shows the tasks of a filter, unless a tab with this title exists."""
        tabs = self.client.get("/api/dm/views/", project=project_id)
        if all(tab["data"].get("title") != title for tab in tabs):
            tab_settings = {"title": title, "type": "list", "target": "tasks"}
            data = {**tab_settings, "filters": {"conjunction": "and", "items": [task_filter]}}
            self.client.request(
                "POST", "/api/dm/views/", {"project": project_id, "data": data}, at_most_once=True
            )

    def ensure_local_storage(self, project_id: int, folder: str) -> None:
        """Give the members of a project access to a folder on the server's machine."""
        storages = self.client.get("/api/storages/localfiles/", project=project_id)
        if all(storage["path"] != folder for storage in storages):
            body = {"project": project_id, "path": folder, "title": "ducats", "use_blob_urls": True}
            self.client.request("POST", "/api/storages/localfiles/", body, at_most_once=True)

    def create_webhook(self, project_id: int, url: str, headers: Mapping[str, str]) -> int:
        """Create a webhook for new answers, replacing one left behind by a killed process."""
        for hook in self.client.get("/api/webhooks/", project=project_id):
            if hook["url"] == url:
                self.delete_webhook(int(hook["id"]))
        body = {
            "project": project_id,
            "url": url,
            "headers": dict(headers),
            "send_payload": False,
            "send_for_all_actions": False,
            "actions": ["ANNOTATION_CREATED", "ANNOTATION_UPDATED", "ANNOTATIONS_DELETED"],
        }
        return int(self.client.request("POST", "/api/webhooks/", body, at_most_once=True)["id"])

    def delete_webhook(self, webhook_id: int) -> None:
        """Delete a webhook."""
        self.client.request("DELETE", f"/api/webhooks/{webhook_id}/", missing_ok=True)
