"""Fake Label Studio REST server with injectable faults."""

import base64
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from studio_rounds import image_store

from ducats.annotation import AnnotationStore
from ducats.annotation.label_studio.api import LabelStudio
from ducats.annotation.label_studio.client import ApiToken, JsonClient
from ducats.annotation.label_studio.pull import PullResult, pull_answers
from ducats.annotation.label_studio.push import PushResult, push_questions
from ducats.annotation.label_studio.sync_state import SyncState

FAULTS = (
    *("hang up", "500 before", "429", "503"),  # the request was not processed
    *("500 after", "torn after", "slow after", "hang up after", "no JSON after"),  # the request was processed
)
LEGACY_TOKEN = "0123456789abcdef"
PERSONAL_TOKEN = ".".join(
    base64.urlsafe_b64encode(part).decode()
    for part in (b'{"alg":"HS256"}', b'{"token_type":"refresh"}', b"s")
)


class FakeStudio:
    """State of the fake server. Each request consumes one of ``faults``; imports have their own list."""

    def __init__(self) -> None:
        self.url = ""
        self.lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Reset to a new server at the same address."""
        self.faults: deque[str | None] = deque()
        self.import_faults: deque[str | None] = deque()
        self.projects: dict[int, dict[str, Any]] = {}
        self.tasks: dict[int, dict[str, Any]] = {}
        self.hooks: dict[int, dict[str, Any]] = {}
        self.tabs: list[dict[str, Any]] = []
        self.requests: list[tuple[str, str]] = []
        self.authorizations: list[str] = []  # Authorization headers received
        self.access: set[str] = set()  # valid access tokens
        self.refreshed = 0
        self.last_id = 0

    def create(self, table: dict[int, dict[str, Any]], row: dict[str, Any]) -> dict[str, Any]:
        self.last_id += 1
        table[self.last_id] = {"id": self.last_id, **row}
        return table[self.last_id]

    def annotate(self, task: int, result: Any, *, user: int = 1, seconds: float = 2.0, **extra: Any) -> None:
        self.last_id += 1
        own = {"id": self.last_id, "result": result, "completed_by": user, "lead_time": seconds}
        row = self.tasks[task]
        row["annotations"].append({**own, "was_cancelled": False, "updated_at": now(), **extra})
        done = sum(not one["was_cancelled"] for one in row["annotations"])
        row.update({"is_labeled": done >= row["overlap"], "updated_at": now()})

    def handle(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        """Return status and reply of an authorised call."""
        match (method, *path.strip("/").split("/")[1:]):
            case ("GET", "users"):
                return 200, [{"id": n, "email": f"p{n}@example.org", "username": ""} for n in (1, 2, 3)]
            case ("POST", "projects"):
                return 201, self.create(self.projects, {"model_version": "", "created_at": now(), **body})
            case ("GET", "projects"):
                found = [one for one in self.projects.values() if query.get("title", "") in one["title"]]
                return 200, {"results": found, "next": None}
            case ("GET" | "PATCH", "projects", number) if int(number) in self.projects:
                return self._update_project(int(number), body or {})
            case ("POST", "projects", number, "import"):
                overlap = self.projects[int(number)].get("maximum_annotations", 1)
                new = {"project": int(number), "overlap": overlap, "is_labeled": False, "updated_at": now()}
                rows = [self.create(self.tasks, {**task, **new, "annotations": []}) for task in body]
                return 201, {"task_ids": [row["id"] for row in rows]}
            case ("GET", "tasks"):
                return self.list_tasks(query)
            case ("PATCH", "tasks", number):
                self.tasks[int(number)].update({**body, "updated_at": now()})
                return 200, self.tasks[int(number)]
            case ("DELETE", "tasks" | "webhooks" as kind, number):
                table = self.tasks if kind == "tasks" else self.hooks
                return (204, None) if table.pop(int(number), None) else (404, {"detail": "no such object"})
            case (_, "dm", "views"):
                self.tabs += [body] if method == "POST" else []
                return 200, [tab for tab in self.tabs if str(tab["project"]) == query.get("project")]
            case ("POST", "webhooks"):
                return 201, self.create(self.hooks, body)
            case ("GET", "webhooks"):
                return 200, list(self.hooks.values())
        return 404, {"detail": f"no such call: {method} {path}"}

    def _update_project(self, number: int, changes: dict[str, Any]) -> tuple[int, Any]:
        predictions = [one for task in self.tasks.values() for one in task.get("predictions", ())]
        versions = {"", *(one["model_version"] for one in predictions)}
        if changes.get("model_version", "") not in versions:
            return 400, {"detail": "Model version doesn't exist"}
        self.projects[number].update(changes)
        return 200, self.projects[number]

    def list_tasks(self, query: dict[str, str]) -> tuple[int, Any]:
        found = [task for task in self.tasks.values() if str(task["project"]) == query["project"]]
        for one in json.loads(query["query"])["filters"]["items"]:
            column, value = one["filter"].removeprefix("filter:tasks:"), one["value"]
            if column == "data.round":
                found = [task for task in found if task["data"].get("round") == value]
            else:
                if column == "updated_at":
                    datetime.strptime(value, "%Y-%m-%dT%H:%M:%S.%fZ")  # as the real server
                found = [task for task in found if task[column] > value]
        page, size = int(query["page"]), int(query["page_size"])
        fields = query["include"].split(",")
        shown = [select_fields(task, fields) for task in found[(page - 1) * size : page * size]]
        return 200, {"tasks": shown, "total": len(found)}


def select_fields(task: dict[str, Any], fields: list[str]) -> dict[str, Any]:
    """Keep only these fields of a task and of its annotations."""
    annotations = [{key: one[key] for key in one if key in fields} for one in task["annotations"]]
    return {**{key: task[key] for key in task if key in fields}, "annotations": annotations}


def now() -> str:
    """Return the current time in the server's format."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


@contextmanager
def serve_fake(slow: float = 0.4) -> Iterator[FakeStudio]:
    """Serve a fake on a free local port; ``slow`` is the delay of slow responses in seconds."""
    fake = FakeStudio()

    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            parts = urlsplit(self.path)
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            with fake.lock:
                faults = fake.import_faults if parts.path.endswith("/import") else fake.faults
                fault = faults.popleft() if faults else None
                fake.requests.append((str(self.command), parts.path))
                fake.authorizations.append(self.headers.get("Authorization", ""))
                if fault == "hang up":
                    return
                if fault in ("429", "503", "500 before"):
                    self._reply(int(fault[:3]), b"")
                    return
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                status, reply = self._authorised(parts.path, query, json.loads(raw) if raw else None)
            text = b"" if reply is None else json.dumps(reply).encode()
            if fault == "slow after":
                time.sleep(slow)
            if fault == "hang up after":
                return
            if fault == "no JSON after":
                text = b"<html>" + text
            self._reply(500 if fault == "500 after" else status, text, torn=fault == "torn after")

        def _authorised(self, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
            if path == "/api/token/refresh/":
                if body != {"refresh": PERSONAL_TOKEN}:
                    return 401, {"detail": "Token is invalid"}
                fake.refreshed += 1
                fake.access.add(f"access-{fake.refreshed}")
                return 200, {"access": f"access-{fake.refreshed}"}
            allowed = {f"Token {LEGACY_TOKEN}", *(f"Bearer {token}" for token in fake.access)}
            if self.headers.get("Authorization") not in allowed:
                return 401, {"detail": "Given token not valid"}
            return fake.handle(str(self.command), path, query, body)

        def _reply(self, status: int, text: bytes, *, torn: bool = False) -> None:
            with suppress(OSError):  # the client has disconnected
                self.send_response(status)
                self.send_header("Content-Length", str(len(text) + 10 * torn))
                self.send_header("Retry-After", "7" if status == 429 else "soon")
                self.end_headers()
                self.wfile.write(text[: len(text) // 2] if torn else text)

        do_GET = do_POST = do_PATCH = do_DELETE = _handle  # noqa: N815 - names of http.server

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        fake.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def shared() -> Iterator[FakeStudio]:
    with serve_fake(slow=0.2) as fake:
        yield fake


@pytest.fixture
def fake(shared: FakeStudio) -> FakeStudio:
    """A fake without projects."""
    shared.reset()
    return shared


@dataclass
class Session:
    """A run's questions and a server."""

    fake: FakeStudio
    studio: LabelStudio
    store: AnnotationStore

    def push(self, title: str = "ducats: run", **options: Any) -> PushResult:
        return push_questions(self.store, self.studio, title, **options)

    def pull(self, project: int | None = None) -> PullResult:
        return pull_answers(self.store, self.studio, project)

    def pull_words(self) -> list[str]:
        return [answer.word for answer in self.pull().received]

    @property
    def state(self) -> SyncState:
        return SyncState.read(self.store.folder)

    def forget(self) -> None:
        """Delete the saved state."""
        (self.store.folder / "label-studio.json").unlink()

    def labels(self) -> list[str | None]:
        return [status.word for status in self.store.statuses(1).values()]

    def import_tasks(self, *tasks: dict[str, Any]) -> list[int]:
        """Import tasks of others into the project."""
        return self.studio.import_tasks(next(iter(self.fake.projects)), tasks)

    def import_copies(self, *tasks: int) -> list[int]:
        """Import copies of tasks, as an interrupted push leaves them."""
        rows = [self.fake.tasks[task] for task in tasks]
        return self.import_tasks(*({"data": row["data"], "meta": row["meta"]} for row in rows))

    def withdraw(self, task: int, when: str, *annotations: int) -> None:
        """Delete these annotations of a task, or all."""
        row = self.fake.tasks[task]
        kept = [one for n, one in enumerate(row["annotations"]) if annotations and n not in annotations]
        row.update({"annotations": kept, "updated_at": when})


def connect(fake: FakeStudio, token: str = LEGACY_TOKEN, **options: Any) -> LabelStudio:
    options = {"timeout": 5.0, "sleep": lambda _: None, **options}
    return LabelStudio(JsonClient(fake.url, ApiToken(token), **options))


@pytest.fixture
def start(fake: FakeStudio, tmp_path: Path) -> Callable[..., Session]:
    """Return a function that pushes questions about some images."""

    def push(count: int = 1, *, studio: LabelStudio | None = None, **rules: Any) -> Session:
        session = Session(fake, studio or connect(fake), image_store(tmp_path / "questions", count, **rules))
        session.push()
        return session

    return push


def choice(text: str) -> list[dict[str, Any]]:
    """Return an annotation of a whole image."""
    return [{"from_name": "class", "to_name": "image", "type": "choices", "value": {"choices": [text]}}]
