"""Fake Label Studio REST server with injectable faults."""

import base64
import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
        self.tabs: list[dict[str, Any]] = []
        self.hooks: dict[int, dict[str, Any]] = {}
        self.requests: list[tuple[str, str]] = []
        self.authorizations: list[str] = []  # Authorization headers received
        self.access: set[str] = set()
        self.refreshed = 0
        self.last_id = 0

    def next_id(self) -> int:
        self.last_id += 1
        return self.last_id

    def expire_tokens(self) -> None:
        self.access.clear()

    def annotate(self, task: int, result: Any, *, user: int = 1, seconds: float = 2.0, **extra: Any) -> int:
        annotation_id = self.next_id()
        own = {"id": annotation_id, "result": result, "completed_by": user, "lead_time": seconds}
        own.update({"was_cancelled": False, "updated_at": now(), **extra})
        self.tasks[task]["annotations"].append(own)
        done = sum(not one["was_cancelled"] for one in self.tasks[task]["annotations"])
        self.tasks[task]["is_labeled"] = done >= self.tasks[task]["overlap"]
        self.tasks[task]["updated_at"] = now()
        return annotation_id

    # -- calls ----------------------------------------------------------------------------------------

    def handle(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        if method == "GET" and path == "/api/users/":
            return 200, [{"id": n, "email": f"p{n}@example.org", "username": ""} for n in (1, 2, 3)]
        if path == "/api/projects/":
            if method == "POST":
                number = self.next_id()
                self.projects[number] = {"id": number, "model_version": "", "created_at": now(), **body}
                return 201, self.projects[number]
            title = query.get("title", "")
            found = [one for one in self.projects.values() if title in one["title"]]
            return 200, {"results": found, "next": None}
        if match := re.fullmatch(r"/api/projects/(\d+)/", path):
            project = self.projects.get(int(match[1]))
            if project is None:
                return 404, {"detail": "No Project matches"}
            body = body or {}
            versions = {
                one["model_version"] for task in self.tasks.values() for one in task.get("predictions", ())
            }
            if body.get("model_version", "") not in {"", *versions}:
                return 400, {"detail": "Model version doesn't exist"}
            project.update(body)
            return 200, project
        if match := re.fullmatch(r"/api/projects/(\d+)/import", path):
            numbers = []
            for task in body:
                number = self.next_id()
                own = {"id": number, "project": int(match[1]), "annotations": [], "updated_at": now()}
                n_annotators = self.projects[int(match[1])].get("maximum_annotations", 1)
                own.update({"overlap": n_annotators, "is_labeled": False})
                self.tasks[number] = {**task, **own}
                numbers.append(number)
            return 201, {"task_count": len(body), "task_ids": numbers}
        if path == "/api/tasks/":
            return self._list(query)
        if match := re.fullmatch(r"/api/tasks/(\d+)/", path):
            if method == "PATCH":
                self.tasks[int(match[1])].update({**body, "updated_at": now()})
                return 200, self.tasks[int(match[1])]
            gone = self.tasks.pop(int(match[1]), None)
            return (204, None) if gone else (404, {"detail": "No Task matches"})
        if path == "/api/dm/views/":
            if method == "POST":
                self.tabs.append(body)
            return 200, [tab for tab in self.tabs if str(tab["project"]) == query.get("project")]
        if path == "/api/webhooks/":
            if method == "POST":
                number = self.next_id()
                self.hooks[number] = {"id": number, **body}
                return 201, self.hooks[number]
            return 200, list(self.hooks.values())
        if match := re.fullmatch(r"/api/webhooks/(\d+)/", path):
            return (204, None) if self.hooks.pop(int(match[1]), None) else (404, {"detail": "none"})
        return 404, {"detail": f"no such call: {method} {path}"}

    def _list(self, query: dict[str, str]) -> tuple[int, Any]:
        found = [task for task in self.tasks.values() if str(task["project"]) == query["project"]]
        for one in json.loads(query["query"])["filters"]["items"]:
            if one["filter"] == "filter:tasks:data.round":
                found = [task for task in found if task["data"].get("round") == one["value"]]
            elif one["filter"] == "filter:tasks:id":
                found = [task for task in found if task["id"] > one["value"]]
            else:
                datetime.strptime(one["value"], "%Y-%m-%dT%H:%M:%S.%fZ")  # as the real server
                found = [task for task in found if task["updated_at"] > one["value"]]
        page, size = int(query["page"]), int(query["page_size"])
        fields = query["include"].split(",")
        shown = [select_fields(task, fields) for task in found[(page - 1) * size : page * size]]
        if page > 1 and not shown:
            return 404, {"detail": "Invalid page."}
        return 200, {"tasks": shown, "total": len(found)}


def select_fields(task: dict[str, Any], fields: list[str]) -> dict[str, Any]:
    """Keep only these fields of a task and of its annotations."""
    found = {field: value for field, value in task.items() if field in fields}
    found["annotations"] = [
        {field: value for field, value in one.items() if field in fields} for one in task["annotations"]
    ]
    return found


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
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = json.loads(raw) if raw else None
            with fake.lock:
                faults = fake.import_faults if parts.path.endswith("/import") else fake.faults
                fault = faults.popleft() if faults else None
                fake.requests.append((str(self.command), parts.path))
                fake.authorizations.append(self.headers.get("Authorization", ""))
                if fault == "hang up":
                    self.close_connection = True
                    return
                if fault in ("429", "503", "500 before"):
                    self._reply(int(fault[:3]), {"detail": "busy"}, {"Retry-After": "0"})
                    return
                status, reply = self._authorised(parts.path, query, body)
            if fault == "slow after":
                time.sleep(slow)
            if fault == "hang up after":
                self.close_connection = True
                return
            if fault == "500 after":
                status, reply = 500, {"detail": "processed, but reported as failed"}
            self._reply(status, reply, torn=fault == "torn after", corrupt=fault == "no JSON after")

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

        def _reply(
            self,
            status: int,
            reply: Any,
            headers: dict[str, str] | None = None,
            *,
            torn: bool = False,
            corrupt: bool = False,
        ) -> None:
            text = b"" if reply is None else json.dumps(reply).encode()
            if corrupt:
                text = b"<html>" + text
            try:
                self.send_response(status)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(text) + (10 if torn else 0)))
                self.end_headers()
                self.wfile.write(text[: len(text) // 2] if torn else text)
            except OSError:
                pass  # the client has disconnected
            if torn:
                self.close_connection = True

        do_GET = do_POST = do_PATCH = do_DELETE = _handle  # noqa: N815 - names of http.server

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
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

    def import_tasks(self, tasks: list[dict[str, Any]]) -> list[int]:
        """Import tasks of others into the project."""
        return self.studio.import_tasks(next(iter(self.fake.projects)), tasks)

    def withdraw(self, task: int, when: str, *annotations: int) -> None:
        """Delete these annotations of a task, or all."""
        own = self.fake.tasks[task]
        own["annotations"] = [
            one for index, one in enumerate(own["annotations"]) if annotations and index not in annotations
        ]
        own["updated_at"] = when


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
